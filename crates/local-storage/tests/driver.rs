//! The driver over its socket, with real loop devices and mounts. Needs root, loop devices and e2fsprogs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use knarr_csi::messages::*;
use knarr_csi::{Client, Code};
use knarr_local_storage::{Reserve, Settings, Sockets, TOPOLOGY_KEY, release, run};
use tokio::task::JoinHandle;

const MIB: i64 = 1 << 20;

/// A driver with directories of its own; everything is unmounted and removed at the end.
struct Host {
    directory: tempfile::TempDir,
    client: Client,
    task: JoinHandle<Result<(), knarr_local_storage::Error>>,
}

fn is_possible() -> bool {
    knarr_test_host::has(&["root", "/dev/loop-control", "mkfs.ext4"])
}

impl Host {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (client, task) = serve(directory.path()).await;
        Self { directory, client, task }
    }

    /// As after `kill -9`: nothing is cleaned up.
    async fn restart(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
        (self.client, self.task) = serve(self.directory.path()).await;
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_string_lossy().into_owned()
    }

    async fn create(&self, request: CreateVolumeRequest) -> Volume {
        let created = self.client.create_volume(request).await.expect("creates the volume");
        created.volume.expect("a volume")
    }

    async fn stage(&self, id: &str, capability: &VolumeCapability) -> Result<(), knarr_csi::CallError> {
        let request = NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path(&format!("stage-{id}")),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        self.client.node_stage_volume(request).await.map(drop)
    }

    async fn unstage(&self, id: &str) {
        let staging_target_path = self.path(&format!("stage-{id}"));
        let request = NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
        self.client.node_unstage_volume(request).await.expect("unstages");
    }

    fn publication(&self, id: &str, target: &str, capability: &VolumeCapability) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path(&format!("stage-{id}")),
            target_path: self.path(target),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        }
    }

    async fn mount(&self, id: &str, target: &str) -> PathBuf {
        self.stage(id, &mounted()).await.expect("stages");
        let request = self.publication(id, target, &mounted());
        self.client.node_publish_volume(request).await.expect("publishes");
        self.directory.path().join(target)
    }

    async fn unpublish(&self, id: &str, target: &str) {
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: self.path(target) };
        self.client.node_unpublish_volume(request).await.expect("unpublishes");
    }

    async fn unmount(&self, id: &str, target: &str) {
        self.unpublish(id, target).await;
        self.unstage(id).await;
    }

    async fn delete(&self, id: &str) {
        let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        self.client.delete_volume(request).await.expect("deletes");
    }

    /// Mounts and loop devices below this host's directory.
    fn leftovers(&self) -> Vec<String> {
        let below = self.directory.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        let mounts = mounts.lines().filter(|line| line.contains(&below)).map(str::to_string);
        let loops = fs::read_dir("/sys/block").expect("devices").flatten();
        let loops = loops.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        mounts.chain(loops.filter(|file| file.contains(&below))).collect()
    }

    /// The kernel detaches loop devices a moment after their last user is gone.
    async fn expect_no_leftovers(&self) {
        for _ in 0..500 {
            if self.leftovers().is_empty() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("left: {:?}", self.leftovers());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
        let below = self.directory.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let targets = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| path.starts_with(&below));
        for target in targets.collect::<Vec<_>>().into_iter().rev() {
            let _ = Command::new("umount").args(["-l", target]).status();
        }
        let listed = Command::new("losetup").args(["-n", "-O", "NAME,BACK-FILE"]).output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for line in listed.lines().filter(|line| line.contains(&below)) {
            let device = line.split_whitespace().next().unwrap_or_default();
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

async fn serve(directory: &Path) -> (Client, JoinHandle<Result<(), knarr_local_storage::Error>>) {
    let settings = Settings { root: directory.join("data"), node: "here".into(), reserve: Reserve::Bytes(0) };
    let csi = directory.join("csi.sock");
    let client = Client::connect(&csi.to_string_lossy()).expect("a client");
    let mut task = tokio::spawn(run(settings, Sockets { csi, registration: None }));
    loop {
        tokio::select! {
            ended = &mut task => panic!("the driver ended: {ended:?}"),
            probed = client.probe(ProbeRequest {}) => match probed {
                Ok(_) => return (client, task),
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            },
        }
        tokio::task::yield_now().await;
    }
}

/// Whether this process has `CAP_SYS_RESOURCE`, the 24th capability.
fn may_resize_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("the status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    u64::from_str_radix(effective.trim(), 16).expect("a number") & (1 << 24) != 0
}

fn mounted() -> VolumeCapability {
    VolumeCapability::mount(MountVolume::default(), Mode::SingleNodeWriter)
}

fn request(name: &str, mebibytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: mebibytes * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

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

/// A PersistentVolume's handle is whatever its author wrote: it names a known volume, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn handles_that_are_paths_touch_nothing() {
    if !is_possible() {
        return;
    }
    let host = Host::start().await;
    let id = host.create(request("pvc-1", 64, mounted())).await.volume_id;
    let outside = host.directory.path().join("precious");
    fs::create_dir(&outside).expect("a directory");
    fs::write(outside.join("file"), "data").expect("a file");
    let up = "../".repeat(3);
    for handle in [
        format!("{up}precious"),
        format!("../volumes/{id}"),
        format!("{id}/."),
        outside.display().to_string(),
        "..".into(),
    ] {
        // Deleting what does not exist succeeds, as the specification demands.
        host.delete(&handle).await;
        let request = DeleteSnapshotRequest { snapshot_id: handle.clone(), ..Default::default() };
        host.client.delete_snapshot(request).await.expect("deletes nothing");
        let error = host.stage(&handle, &mounted()).await.expect_err("no such volume");
        assert!(matches!(error.code(), Code::NotFound | Code::InvalidArgument), "{handle}: {error}");
        let source = VolumeContentSource::volume(handle.clone());
        let copy = CreateVolumeRequest { volume_content_source: Some(source), ..request_of("copy") };
        assert_eq!(
            host.client.create_volume(copy).await.expect_err("no such source").code(),
            Code::NotFound,
            "{handle}"
        );
    }
    assert_eq!(fs::read_to_string(outside.join("file")).expect("still there"), "data");
    host.mount(&id, "pod").await;
    host.unmount(&id, "pod").await;
    host.delete(&id).await;
    host.expect_no_leftovers().await;
}

fn request_of(name: &str) -> CreateVolumeRequest {
    request(name, 64, mounted())
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
async fn what_a_killed_driver_leaves_is_removed_and_nothing_else() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start().await;
    let volume = host.create(request("kept", 32, mounted())).await;
    let target = host.mount(&volume.volume_id, "pod").await;
    fs::write(target.join("file"), "data").expect("writes");
    let data = host.directory.path().join("data");
    for parent in ["creating", "deleting"] {
        let half = data.join(parent).join("0123456789abcdef0123456789abcdef");
        fs::create_dir(&half).expect("a directory");
        fs::File::create(half.join("image")).and_then(|image| image.set_len(1 << 20)).expect("an image");
        let attached = Command::new("losetup").arg("-f").arg(half.join("image")).status().expect("runs losetup");
        assert!(attached.success());
    }
    fs::create_dir(data.join("volumes/damaged")).expect("a directory");
    fs::write(data.join("volumes/damaged/volume.json"), "{").expect("half a record");
    // Killed during a snapshot.
    assert!(Command::new("fsfreeze").arg("-f").arg(&target).status().expect("runs fsfreeze").success());

    host.restart().await;
    fs::write(target.join("file"), "more data").expect("it was thawed");
    assert_eq!(fs::read_dir(data.join("creating")).expect("lists").count(), 0);
    assert_eq!(fs::read_dir(data.join("deleting")).expect("lists").count(), 0);
    assert!(data.join("volumes/damaged").exists(), "what cannot be read is kept");
    assert!(!host.leftovers().iter().any(|line| line.contains("/creating/") || line.contains("/deleting/")));
    assert_eq!(host.create(request("kept", 32, mounted())).await.volume_id, volume.volume_id);

    let settings = Settings { root: data, node: "here".into(), reserve: Reserve::Bytes(0) };
    let second = run(settings, Sockets { csi: host.directory.path().join("second.sock"), registration: None }).await;
    assert!(second.expect_err("two drivers on one directory").to_string().contains("another driver"));
    host.unmount(&volume.volume_id, "pod").await;
    host.expect_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_disk_has_is_never_promised() {
    if !is_possible() {
        return;
    }
    let host = Host::start().await;
    // A disk of its own, so that nothing else changes what is free.
    let disk = host.directory.path().join("disk.img");
    fs::File::create(&disk).and_then(|file| file.set_len(256 << 20)).expect("an image");
    let mounted_at = host.directory.path().join("disk");
    fs::create_dir(&mounted_at).expect("a directory");
    let run_command = |program: &str, arguments: &[&str]| {
        assert!(Command::new(program).args(arguments).status().expect("runs").success(), "{program}");
    };
    run_command("mkfs.ext4", &["-q", "-F", "-m", "0", &disk.to_string_lossy()]);
    run_command("mount", &["-o", "loop", &disk.to_string_lossy(), &mounted_at.to_string_lossy()]);
    {
        let (client, task) = serve(&mounted_at).await;
        let capacity = client.get_capacity(GetCapacityRequest::default()).await.expect("the capacity");
        let available = capacity.available_capacity;
        assert!(available > 100 * MIB && available < 256 * MIB, "{available}");
        client.create_volume(request("a", 100, mounted())).await.expect("fits");
        let left = client.get_capacity(GetCapacityRequest::default()).await.expect("the capacity").available_capacity;
        assert!((available - left - 100 * MIB).abs() < 4 * MIB, "{available} {left}");
        // The image is sparse: the disk is almost empty, and yet not free.
        let error = client.create_volume(request("b", 200, mounted())).await.expect_err("promised to another");
        assert_eq!(error.code(), Code::ResourceExhausted);
        let elsewhere = Topology { segments: StringMap::from([(TOPOLOGY_KEY.to_string(), "there".to_string())]) };
        let elsewhere = GetCapacityRequest { accessible_topology: Some(elsewhere), ..Default::default() };
        assert_eq!(client.get_capacity(elsewhere).await.expect("the capacity").available_capacity, 0);
        task.abort();
        let _ = task.await;
    }
    unmount_when_unused(&mounted_at).await;
}

/// Connections of a driver that ended, and programs that other tests start, hold files for a moment longer.
async fn unmount_when_unused(directory: &Path) {
    for _ in 0..500 {
        let output = Command::new("umount").arg(directory).output().expect("runs umount");
        if output.status.success() {
            return;
        }
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("busy"), "{message}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} stays in use", directory.display());
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
