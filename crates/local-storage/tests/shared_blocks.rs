//! Space on a disk that shares blocks between a volume and its copies (XFS).

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use knarr_csi::messages::*;
use knarr_csi::{Client, Code};
use knarr_local_storage::{Reserve, Settings, Sockets, run};

const MIB: i64 = 1 << 20;

/// Unmounts the disk however the test ends.
struct Disk(tempfile::TempDir);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("disk")).status();
    }
}

fn succeed(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
}

/// A disk of its own; none where that is not possible.
fn disk() -> Option<Disk> {
    if !knarr_test_host::has(&["root", "/dev/loop-control", "mkfs.xfs"]) {
        return None;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (image, mounted) = (directory.path().join("disk.img"), directory.path().join("disk"));
    fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).expect("an image");
    fs::create_dir(&mounted).expect("a directory");
    let made = succeed("mkfs.xfs", &["-q", "-m", "reflink=1", &image.to_string_lossy()])
        && succeed("mount", &["-o", "loop", &image.to_string_lossy(), &mounted.to_string_lossy()]);
    if !made {
        knarr_test_host::skip("this test needs a kernel with XFS");
    }
    made.then_some(Disk(directory))
}

async fn available(client: &Client) -> i64 {
    client.get_capacity(GetCapacityRequest::default()).await.expect("the capacity").available_capacity
}

fn block(name: &str, mebibytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: mebibytes * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability::block(Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

/// A snapshot that took no space needs it once the volume is written to: nobody else may have it by then.
#[tokio::test(flavor = "multi_thread")]
async fn space_of_shared_blocks_is_promised() {
    let Some(disk) = disk() else { return };
    let root = disk.0.path().join("disk/data");
    let csi = disk.0.path().join("csi.sock");
    let client = Client::connect(&csi.to_string_lossy()).expect("a client");
    let settings = Settings { root: root.clone(), node: "here".into(), reserve: Reserve::Bytes(0) };
    let mut driver = tokio::spawn(run(settings, Sockets { csi, registration: None }));
    while let Err(error) = client.probe(ProbeRequest {}).await {
        assert!(error.is_unavailable() && !driver.is_finished(), "{error}");
        tokio::task::yield_now().await;
    }
    let volume = client.create_volume(block("v", 100)).await.expect("created").volume.expect("a volume");
    let image = fs::File::options().write(true).open(root.join("volumes").join(&volume.volume_id).join("image"));
    let image = image.expect("the image");
    let write = |byte: u8| {
        image
            .write_all_at(&vec![byte; 100 << 20], 0)
            .and_then(|()| image.sync_all())
            .expect("room for what was promised");
    };
    write(1);
    let before = available(&client).await;
    let request =
        CreateSnapshotRequest { source_volume_id: volume.volume_id.clone(), name: "s".into(), ..Default::default() };
    let snapshot = client.create_snapshot(request).await.expect("taken").snapshot.expect("a snapshot");
    let near = |one: i64, other: i64| (one - other).abs() < 8 * MIB;
    let promised = available(&client).await;
    assert!(near(before - promised, 100 * MIB), "{before} {promised}");
    let greedy = client.create_volume(block("greedy", before / MIB - 20)).await.expect_err("promised to the volume");
    assert_eq!(greedy.code(), Code::ResourceExhausted);
    client.create_volume(block("rest", promised / MIB - 8)).await.expect("the rest is free");
    write(2);
    let written = available(&client).await;
    assert!(written < 16 * MIB, "what was promised is now in use: {written}");
    client
        .delete_snapshot(DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() })
        .await
        .expect("deleted");
    // XFS frees the blocks of a removed file in the background.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !near(available(&client).await, written + 100 * MIB) {
        assert!(std::time::Instant::now() < deadline, "not free again");
        tokio::task::yield_now().await;
    }
    driver.abort();
    let _ = (&mut driver).await;
}
