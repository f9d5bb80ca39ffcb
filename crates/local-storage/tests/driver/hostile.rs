//! Handles that are paths, a killed driver, and a disk without space.

use std::fs;
use std::path::Path;
use std::process::Command;

use knarr_csi::Code;
use knarr_csi::messages::*;
use knarr_local_storage::{Reserve, Settings, Sockets, TOPOLOGY_KEY, run};

use super::host::*;

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
