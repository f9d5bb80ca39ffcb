//! The driver is killed at random moments of every call: nothing is lost, nothing is left. Needs root, loop devices and e2fsprogs.

use std::fs;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use knarr_csi::messages::*;
use knarr_csi::{CallError, Client, Code};

const MIB: i64 = 1 << 20;
const VOLUMES: usize = 12;

/// How often the driver is killed at least: the test goes on until then.
const KILLS: usize = 20;
/// Longer than any of the calls takes, so that some of them always succeed.
const LONGEST_LIFE_MILLISECONDS: u64 = 400;
const TIMEOUT: Duration = Duration::from_secs(120);

fn is_possible() -> bool {
    knarr_test_host::has(&["root", "/dev/loop-control", "mkfs.ext4"])
}

/// The driver as a process, from the example that the tests are built with.
fn start(directory: &Path) -> Child {
    let test = std::env::current_exe().expect("the test's path");
    let built = test.parent().and_then(Path::parent).expect("the target directory");
    let driver = built.join("examples/local-storage-driver");
    let mut command = Command::new(&driver);
    command.arg(directory.join("csi.sock")).arg(directory.join("data")).arg("here");
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", driver.display()))
}

/// Repeats a call until it succeeds, as Kubernetes does.
async fn insist<T, F: Future<Output = Result<T, CallError>>>(what: &str, mut call: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => {
                // A program that outlives the killed driver may be at work on the device, and keep it busy.
                let passing = !error.is_final() || matches!(error.code(), Code::Internal | Code::FailedPrecondition);
                assert!(passing && started.elapsed() < TIMEOUT, "{what}: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn request(name: &str, source: Option<VolumeContentSource>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: 24 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        volume_content_source: source,
        ..Default::default()
    }
}

fn capability() -> VolumeCapability {
    VolumeCapability::mount(MountVolume::default(), Mode::SingleNodeWriter)
}

struct Pod<'a> {
    client: &'a Client,
    directory: &'a Path,
}

impl Pod<'_> {
    fn path(&self, kind: &str, id: &str) -> String {
        self.directory.join(format!("{kind}-{id}")).to_string_lossy().into_owned()
    }

    async fn create(&self, name: &str, source: Option<VolumeContentSource>) -> String {
        let created = insist("create", || self.client.create_volume(request(name, source.clone()))).await;
        created.volume.expect("a volume").volume_id
    }

    async fn mount(&self, id: &str) -> PathBuf {
        let stage = NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path("stage", id),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        insist("stage", || self.client.node_stage_volume(stage.clone())).await;
        let publish = NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path("stage", id),
            target_path: self.path("pod", id),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        insist("publish", || self.client.node_publish_volume(publish.clone())).await;
        PathBuf::from(self.path("pod", id))
    }

    async fn unmount(&self, id: &str) {
        let unpublish = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: self.path("pod", id) };
        insist("unpublish", || self.client.node_unpublish_volume(unpublish.clone())).await;
        let unstage = NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path: self.path("stage", id) };
        insist("unstage", || self.client.node_unstage_volume(unstage.clone())).await;
    }

    async fn delete(&self, id: &str) {
        let delete = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        insist("delete", || self.client.delete_volume(delete.clone())).await;
    }

    /// One volume from its creation to its end, with a snapshot that is restored.
    async fn live(&self, number: usize) {
        let text = format!("data of {number}");
        let id = self.create(&format!("volume-{number}"), None).await;
        let target = self.mount(&id).await;
        let mut file = fs::File::create(target.join("file")).expect("creates a file");
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).expect("writes it");
        drop(file);
        let snapshot = CreateSnapshotRequest {
            name: format!("snapshot-{number}"),
            source_volume_id: id.clone(),
            ..Default::default()
        };
        let taken = insist("snapshot", || self.client.create_snapshot(snapshot.clone())).await;
        let taken = taken.snapshot.expect("a snapshot").snapshot_id;
        let expand = ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: Some(CapacityRange { required_bytes: 48 * MIB, limit_bytes: 0 }),
            ..Default::default()
        };
        insist("expand", || self.client.controller_expand_volume(expand.clone())).await;
        // It grows when it is mounted again.
        self.unmount(&id).await;
        let target = self.mount(&id).await;
        fs::write(target.join("large"), vec![1; 30 << 20]).expect("the filesystem has grown");
        assert_eq!(fs::read_to_string(target.join("file")).expect("reads"), text);
        self.unmount(&id).await;
        self.delete(&id).await;

        let restored = self.create(&format!("restored-{number}"), Some(VolumeContentSource::snapshot(&taken))).await;
        let target = self.mount(&restored).await;
        assert_eq!(fs::read_to_string(target.join("file")).expect("reads"), text);
        self.unmount(&restored).await;
        self.delete(&restored).await;
        let delete = DeleteSnapshotRequest { snapshot_id: taken, ..Default::default() };
        insist("delete the snapshot", || self.client.delete_snapshot(delete.clone())).await;
    }
}

/// Kills and restarts the driver. When it is dropped, driver, mounts and loop devices are gone.
struct Killer {
    directory: PathBuf,
    done: Arc<AtomicBool>,
    kills: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Child>>,
    driver: Option<Child>,
}

impl Killer {
    fn start(directory: &Path) -> Self {
        let (done, kills) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (until, count, path) = (done.clone(), kills.clone(), directory.to_path_buf());
        let thread = std::thread::spawn(move || {
            let mut driver = start(&path);
            while !until.load(Ordering::SeqCst) {
                let life = 20 + rand::random::<u64>() % LONGEST_LIFE_MILLISECONDS;
                std::thread::sleep(Duration::from_millis(life));
                driver.kill().and_then(|()| driver.wait()).expect("kills the driver");
                count.fetch_add(1, Ordering::SeqCst);
                driver = start(&path);
            }
            driver
        });
        Self { directory: directory.to_path_buf(), done, kills, thread: Some(thread), driver: None }
    }

    /// Leaves the driver running; returns how often it was killed.
    fn stop_killing(&mut self) -> usize {
        self.done.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            self.driver = thread.join().ok();
        }
        self.kills.load(Ordering::SeqCst)
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.stop_killing();
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill().and_then(|()| driver.wait());
        }
        for line in leftovers(&self.directory).iter().rev() {
            if let Some(target) = line.split(' ').nth(4) {
                let _ = Command::new("umount").args(["-l", target]).status();
            }
        }
        let _ = knarr_local_storage::release(&self.directory);
    }
}

/// Mounts and loop devices below a directory.
fn leftovers(directory: &Path) -> Vec<String> {
    let below = directory.to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let mounts = mounts.lines().filter(|line| line.contains(&below)).map(str::to_string);
    let loops = fs::read_dir("/sys/block").expect("devices").flatten();
    let loops = loops.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    mounts.chain(loops.filter(|file| file.contains(&below))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_all_the_time_loses_and_leaks_nothing() {
    if !is_possible() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let client = Client::connect(&directory.path().join("csi.sock").to_string_lossy()).expect("a client");
    let mut killer = Killer::start(directory.path());
    let pod = Pod { client: &client, directory: directory.path() };
    let mut number = 0;
    while number < VOLUMES || killer.kills.load(Ordering::SeqCst) < KILLS {
        pod.live(number).await;
        number += 1;
    }
    let kills = killer.stop_killing();
    insist("probe", || client.probe(ProbeRequest {})).await;
    println!("{kills} kills during the lives of {number} volumes");

    let listed = client.list_volumes(ListVolumesRequest::default()).await.expect("lists");
    assert!(listed.entries.is_empty(), "{listed:?}");
    for parent in ["volumes", "snapshots", "creating", "deleting"] {
        let count = fs::read_dir(directory.path().join("data").join(parent)).expect("lists").count();
        assert_eq!(count, 0, "left in {parent}");
    }
    let started = Instant::now();
    while !leftovers(directory.path()).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", leftovers(directory.path()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
