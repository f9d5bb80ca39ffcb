//! A driver on this host, and the calls that kubelets and provisioners send to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use knarr_csi::Client;
use knarr_csi::messages::*;
use knarr_local_storage::{Reserve, Settings, Sockets, run};
use tokio::task::JoinHandle;

pub const MIB: i64 = 1 << 20;

/// A driver with directories of its own; everything is unmounted and removed at the end.
pub struct Host {
    pub directory: tempfile::TempDir,
    pub client: Client,
    task: JoinHandle<Result<(), knarr_local_storage::Error>>,
}

pub fn is_possible() -> bool {
    knarr_test_host::has(&["root", "/dev/loop-control", "mkfs.ext4"])
}

impl Host {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (client, task) = serve(directory.path()).await;
        Self { directory, client, task }
    }

    /// As after `kill -9`: nothing is cleaned up.
    pub async fn restart(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
        (self.client, self.task) = serve(self.directory.path()).await;
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_string_lossy().into_owned()
    }

    pub async fn create(&self, request: CreateVolumeRequest) -> Volume {
        let created = self.client.create_volume(request).await.expect("creates the volume");
        created.volume.expect("a volume")
    }

    pub async fn stage(&self, id: &str, capability: &VolumeCapability) -> Result<(), knarr_csi::CallError> {
        let request = NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path(&format!("stage-{id}")),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        self.client.node_stage_volume(request).await.map(drop)
    }

    pub async fn unstage(&self, id: &str) {
        let staging_target_path = self.path(&format!("stage-{id}"));
        let request = NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
        self.client.node_unstage_volume(request).await.expect("unstages");
    }

    pub fn publication(&self, id: &str, target: &str, capability: &VolumeCapability) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: self.path(&format!("stage-{id}")),
            target_path: self.path(target),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        }
    }

    pub async fn mount(&self, id: &str, target: &str) -> PathBuf {
        self.stage(id, &mounted()).await.expect("stages");
        let request = self.publication(id, target, &mounted());
        self.client.node_publish_volume(request).await.expect("publishes");
        self.directory.path().join(target)
    }

    pub async fn unpublish(&self, id: &str, target: &str) {
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: self.path(target) };
        self.client.node_unpublish_volume(request).await.expect("unpublishes");
    }

    pub async fn unmount(&self, id: &str, target: &str) {
        self.unpublish(id, target).await;
        self.unstage(id).await;
    }

    pub async fn delete(&self, id: &str) {
        let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        self.client.delete_volume(request).await.expect("deletes");
    }

    /// Mounts and loop devices below this host's directory.
    pub fn leftovers(&self) -> Vec<String> {
        let below = self.directory.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        let mounts = mounts.lines().filter(|line| line.contains(&below)).map(str::to_string);
        let loops = fs::read_dir("/sys/block").expect("devices").flatten();
        let loops = loops.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        mounts.chain(loops.filter(|file| file.contains(&below))).collect()
    }

    /// The kernel detaches loop devices a moment after their last user is gone.
    pub async fn expect_no_leftovers(&self) {
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

pub async fn serve(directory: &Path) -> (Client, JoinHandle<Result<(), knarr_local_storage::Error>>) {
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
pub fn may_resize_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("the status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    u64::from_str_radix(effective.trim(), 16).expect("a number") & (1 << 24) != 0
}

pub fn mounted() -> VolumeCapability {
    VolumeCapability::mount(MountVolume::default(), Mode::SingleNodeWriter)
}

pub fn request(name: &str, mebibytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: mebibytes * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}
