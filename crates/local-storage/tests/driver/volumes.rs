//! What a volume is to a pod: mounted, grown, copied, a device, shared, without a limit.

use std::fs;
use std::process::Command;

use knarr_csi::Code;
use knarr_csi::messages::*;
use knarr_local_storage::{TOPOLOGY_KEY, release};

use super::host::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_lives_through_its_whole_life() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start().await;
    // The name is the caller's; it is never part of a path.
    let volume = host.create(request("../../pvc-1", 64, mounted())).await;
    assert_eq!(volume.capacity_bytes, 64 * MIB);
    assert_eq!(volume.accessible_topology[0].segments[TOPOLOGY_KEY], "here");
    let id = volume.volume_id.as_str();
    assert_eq!(host.create(request("../../pvc-1", 64, mounted())).await.volume_id, id);
    let error = host.client.create_volume(request("../../pvc-1", 128, mounted())).await.expect_err("another size");
    assert_eq!(error.code(), Code::AlreadyExists);

    let target = host.mount(id, "pod").await;
    assert_eq!(fs::read_dir(&target).expect("lists").count(), 0, "a new volume is empty");
    fs::write(target.join("file"), "data").expect("writes");
    // Repeated, also by a driver that knows nothing any more.
    host.restart().await;
    host.mount(id, "pod").await;
    assert_eq!(host.leftovers().iter().filter(|line| line.contains("/pod")).count(), 1, "mounted once");

    // The size is enforced.
    let large = format!("of={}", target.join("large").display());
    let full = Command::new("dd").args(["if=/dev/zero", "bs=1M", "count=100", &large]).output().expect("runs dd");
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space left on device"));
    fs::remove_file(target.join("large")).expect("removes");

    let stats = NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: host.path("pod"),
        staging_target_path: String::new(),
    };
    let stats = host.client.node_get_volume_stats(stats).await.expect("statistics");
    let bytes = stats.usage.iter().find(|usage| usage.unit() == UsageUnit::Bytes).expect("bytes");
    assert!(bytes.total > 40 * MIB && bytes.total <= 64 * MIB, "{bytes:?}");
    assert!(stats.usage.iter().any(|usage| usage.unit() == UsageUnit::Inodes && usage.total > 0));
    assert!(!stats.volume_condition.expect("a condition").abnormal);

    let delete = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
    let error = host.client.delete_volume(delete).await.expect_err("in use");
    assert_eq!(error.code(), Code::FailedPrecondition);
    host.unmount(id, "pod").await;
    host.unmount(id, "pod").await;
    assert!(!target.exists());
    host.delete(id).await;
    host.delete(id).await;
    host.expect_no_leftovers().await;
    assert_eq!(fs::read_dir(host.directory.path().join("data/volumes")).expect("lists").count(), 0);
    assert_eq!(fs::read_dir(host.directory.path().join("data/deleting")).expect("lists").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_volume_grows_and_its_snapshot_keeps_what_was() {
    if !is_possible() {
        return;
    }
    let host = Host::start().await;
    let volume = host.create(request("data", 32, mounted())).await;
    let id = volume.volume_id.as_str();
    let target = host.mount(id, "pod").await;
    fs::write(target.join("file"), "before").expect("writes");

    // No sync before: the snapshot freezes the filesystem.
    let snapshot = CreateSnapshotRequest { name: "s".into(), source_volume_id: id.into(), ..Default::default() };
    let taken = host.client.create_snapshot(snapshot.clone()).await.expect("a snapshot").snapshot.expect("set");
    assert!(taken.ready_to_use && taken.size_bytes == 32 * MIB);
    fs::write(target.join("file"), "after").expect("the filesystem is thawed");
    let again = host.client.create_snapshot(snapshot).await.expect("the same").snapshot.expect("set");
    assert_eq!(again.snapshot_id, taken.snapshot_id);

    let range = Some(CapacityRange { required_bytes: 96 * MIB, limit_bytes: 0 });
    let expand = ControllerExpandVolumeRequest { volume_id: id.into(), capacity_range: range, ..Default::default() };
    let expanded = host.client.controller_expand_volume(expand).await.expect("expands");
    assert!(expanded.capacity_bytes == 96 * MIB && expanded.node_expansion_required);
    let expand = NodeExpandVolumeRequest {
        volume_id: id.into(),
        volume_path: host.path("pod"),
        capacity_range: range,
        ..Default::default()
    };
    if let Err(error) = host.client.node_expand_volume(expand).await {
        // Where root may not resize a mounted filesystem, it grows when it is mounted next.
        assert!(!may_resize_mounted() && error.code() == Code::FailedPrecondition, "{error}");
        host.unmount(id, "pod").await;
        host.mount(id, "pod").await;
    }
    fs::write(target.join("large"), vec![1; 70 << 20]).expect("more than there was room for");

    // Restored to a larger volume: the filesystem grows when it is mounted.
    let mut restore = request("restored", 64, mounted());
    restore.volume_content_source = Some(VolumeContentSource::snapshot(&taken.snapshot_id));
    let restored = host.create(restore).await.volume_id;
    let restored_target = host.mount(&restored, "restored").await;
    assert_eq!(fs::read_to_string(restored_target.join("file")).expect("reads"), "before");
    fs::write(restored_target.join("large"), vec![1; 40 << 20]).expect("the filesystem has grown");

    let mut clone = request("clone", 96, mounted());
    clone.volume_content_source = Some(VolumeContentSource::volume(id));
    let clone = host.create(clone).await.volume_id;
    let clone_target = host.mount(&clone, "clone").await;
    assert_eq!(fs::read_to_string(clone_target.join("file")).expect("reads"), "after");

    let mut small = request("small", 16, mounted());
    small.capacity_range = Some(CapacityRange { required_bytes: 16 * MIB, limit_bytes: 16 * MIB });
    small.volume_content_source = Some(VolumeContentSource::snapshot(&taken.snapshot_id));
    let error = host.client.create_volume(small).await.expect_err("too small for its content");
    assert_eq!(error.code(), Code::OutOfRange);

    for (id, target) in [(id, "pod"), (&restored, "restored"), (&clone, "clone")] {
        host.unmount(id, target).await;
        host.delete(id).await;
    }
    let delete = DeleteSnapshotRequest { snapshot_id: taken.snapshot_id, ..Default::default() };
    host.client.delete_snapshot(delete).await.expect("deletes the snapshot");
    host.expect_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_volume_is_a_device_of_its_size() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start().await;
    let block = VolumeCapability::block(Mode::SingleNodeWriter);
    let volume = host.create(request("raw", 32, block.clone())).await;
    let id = volume.volume_id.as_str();
    let error = host.stage(id, &mounted()).await.expect_err("it has no filesystem");
    assert_eq!(error.code(), Code::InvalidArgument);
    let request = host.publication(id, "device", &block);
    let error = host.client.node_publish_volume(request.clone()).await.expect_err("not staged");
    assert_eq!(error.code(), Code::FailedPrecondition);

    host.stage(id, &block).await.expect("stages");
    host.restart().await;
    host.stage(id, &block).await.expect("stages again");
    host.client.node_publish_volume(request).await.expect("publishes");
    let device = host.directory.path().join("device");
    let size = || {
        use std::io::Seek;
        fs::File::open(&device).and_then(|mut open| open.seek(std::io::SeekFrom::End(0))).expect("a device")
    };
    assert_eq!(size(), 32 << 20);
    let range = Some(CapacityRange { required_bytes: 48 * MIB, limit_bytes: 0 });
    let expand = ControllerExpandVolumeRequest { volume_id: id.into(), capacity_range: range, ..Default::default() };
    let expanded = host.client.controller_expand_volume(expand).await.expect("expands");
    assert!(!expanded.node_expansion_required);
    assert_eq!(size(), 48 << 20);

    let unstage =
        NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path: host.path(&format!("stage-{id}")) };
    let error = host.client.node_unstage_volume(unstage).await.expect_err("still published");
    assert_eq!(error.code(), Code::FailedPrecondition);
    host.unmount(id, "device").await;
    host.expect_no_leftovers().await;
    // Removal of the node detaches what is still attached.
    host.stage(id, &block).await.expect("stages");
    assert_eq!(host.leftovers().len(), 1);
    release(&host.directory.path().join("data")).expect("detaches");
    host.expect_no_leftovers().await;
    host.delete(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_is_as_requested() {
    if !is_possible() {
        return;
    }
    let host = Host::start().await;
    let single = VolumeCapability::mount(MountVolume::default(), Mode::SingleNodeSingleWriter);
    let volume = host.create(request("single", 32, single.clone())).await;
    let id = volume.volume_id.as_str();
    host.stage(id, &single).await.expect("stages");
    for _ in 0..2 {
        host.client.node_publish_volume(host.publication(id, "first", &single)).await.expect("the one pod");
    }
    let second = host.publication(id, "second", &single);
    let error = host.client.node_publish_volume(second.clone()).await.expect_err("a second pod");
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(!host.directory.path().join("second").exists(), "a refused target is not left behind");
    host.unpublish(id, "first").await;

    let read_only = NodePublishVolumeRequest { readonly: true, ..second.clone() };
    host.client.node_publish_volume(read_only.clone()).await.expect("read-only");
    let target = host.directory.path().join("second");
    let error = fs::write(target.join("file"), "data").expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let error = host.client.node_publish_volume(second).await.expect_err("published read-only");
    assert_eq!(error.code(), Code::AlreadyExists);

    // A busy target stays mounted, and is unmounted when it is free.
    let open = fs::File::open(&target).expect("opens");
    let unpublish = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: host.path("second") };
    let error = host.client.node_unpublish_volume(unpublish).await.expect_err("busy");
    assert_eq!(error.code(), Code::FailedPrecondition);
    drop(open);
    host.unmount(id, "second").await;
    host.expect_no_leftovers().await;
    host.delete(id).await;

    let flags = MountVolume { mount_flags: vec!["noexec,noatime".into(), "commit=30".into()], ..Default::default() };
    let flagged = VolumeCapability::mount(flags, Mode::SingleNodeWriter);
    let volume = host.create(request("flags", 32, flagged.clone())).await;
    host.stage(&volume.volume_id, &flagged).await.expect("stages");
    let publication = host.publication(&volume.volume_id, "flagged", &flagged);
    host.client.node_publish_volume(publication).await.expect("publishes");
    let mounts = host.leftovers();
    let mount = mounts.iter().find(|line| line.contains("/flagged")).expect("mounted");
    assert!(mount.contains("noexec") && mount.contains("noatime") && mount.contains("commit=30"), "{mount}");
    host.unmount(&volume.volume_id, "flagged").await;
    let wrong = MountVolume { mount_flags: vec!["no-such-option".into()], ..Default::default() };
    let wrong = VolumeCapability::mount(wrong, Mode::SingleNodeWriter);
    let error = host.stage(&volume.volume_id, &wrong).await.expect_err("an unknown option");
    assert_eq!(error.code(), Code::InvalidArgument);
    host.expect_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_without_limit_gives_directories() {
    if !is_possible() {
        return;
    }
    let host = Host::start().await;
    let mut unlimited = request("directory", 16, mounted());
    unlimited.parameters = StringMap::from([("sizeLimit".to_string(), "none".to_string())]);
    let volume = host.create(unlimited.clone()).await;
    assert_eq!(volume.capacity_bytes, 0);
    let id = volume.volume_id.as_str();
    let target = host.mount(id, "pod").await;
    fs::write(target.join("large"), vec![1; 20 << 20]).expect("no limit");
    let snapshot = CreateSnapshotRequest { name: "s".into(), source_volume_id: id.into(), ..Default::default() };
    let error = host.client.create_snapshot(snapshot.clone()).await.expect_err("cannot be copied in one moment");
    assert_eq!(error.code(), Code::FailedPrecondition);
    host.unmount(id, "pod").await;
    let taken = host.client.create_snapshot(snapshot).await.expect("a snapshot").snapshot.expect("set");
    let mut restore = unlimited;
    restore.name = "restored".into();
    restore.volume_content_source = Some(VolumeContentSource::snapshot(taken.snapshot_id));
    let restored = host.create(restore).await.volume_id;
    let target = host.mount(&restored, "restored").await;
    assert_eq!(fs::metadata(target.join("large")).expect("the file").len(), 20 << 20);
    host.unmount(&restored, "restored").await;
    host.delete(&restored).await;
    host.delete(id).await;
    host.expect_no_leftovers().await;
}
