//! The volumes of a pod: created before its containers start, updated while they run, and removed after them.
//!
//! Each pod has its own directory. Secrets are on a tmpfs that all pods share, so that no secret reaches the disk and a
//! node with a hundred pods needs one mount for it instead of a hundred.

mod atomic;
mod claim;
mod command;
mod content;
mod disk;
mod empty_dir;
mod host_path;
pub mod image;
mod in_tree;
mod memory_budget;
mod mounter;
pub mod subpath;
mod trust_bundle;

pub use disk::{recorded as recorded_disks, unmount_pod as unmount_disks};
pub use in_tree::unmount_unused as unmount_unused_devices;
pub use mounter::plugin_name;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use nix::mount::MsFlags;

use self::memory_budget::MemoryBudget;
use self::mounter::VolumeMounter;
use crate::context::Context;
use crate::csi::CsiError;
use crate::downward_api::{DownwardContext, DownwardError};
use crate::mount::{self, MountError, mounts_below, unmount};
use crate::objects::{ObjectError, Subscription};
use crate::pod;
use crate::private;
use crate::settings::Settings;
use crate::tokens::TokenError;
use crate::tree;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("configmap references non-existent config key: {0}")]
    MissingConfig(String),
    #[error("references non-existent secret key: {0}")]
    MissingSecret(String),
    #[error("[{0}]")]
    Several(String),
    #[error("{0}")]
    Path(String),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Field(#[from] DownwardError),
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The volume behind a claim is unknown.
    #[error("{0}")]
    Claim(String),
    #[error(transparent)]
    Csi(#[from] CsiError),
    #[error("image volume: {0}")]
    Image(String),
    #[error(
        "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate \
         `GitRepoVolumeDriver`"
    )]
    GitRepo,
    #[error("volume {name} is of kind {kind}, which this node does not mount")]
    Unsupported { name: String, kind: &'static str },
}

impl VolumeError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::File { path: path.to_path_buf(), source }
    }
}

impl VolumeError {
    /// The event message for a volume that cannot be mounted.
    pub fn event_message(&self, name: &str) -> String {
        match self {
            Self::Claim(text) => format!(
                "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to process \
                 volumes=[{name}]: {text}"
            ),
            Self::Csi(error) => error.event_message(),
            other => format!("MountVolume.SetUp failed for volume \"{name}\" : {other}"),
        }
    }

    pub fn event_reason(&self) -> &'static str {
        if let Self::Csi(error) = self { error.event_reason() } else { "FailedMount" }
    }

    /// Nothing failed: the pod's worker is notified when the volume can be mounted.
    pub fn waits(&self) -> bool {
        matches!(self, Self::Csi(error) if error.waits)
    }

    /// The node has as many volumes as the driver can attach.
    pub fn exceeds_limit(&self) -> bool {
        matches!(self, Self::Csi(error) if error.limit_exceeded)
    }
}

/// A volume as containers mount it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub path: PathBuf,
    /// Read-only whatever the container requests.
    pub read_only: bool,
    /// Relabelled for the pod if SELinux is enabled.
    pub relabel: bool,
    /// An image that the runtime mounts itself.
    pub image: Option<String>,
}

/// All volumes of a pod, and when the first of its tokens must be renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountedVolumes {
    pub volumes: HashMap<String, Mounted>,
    pub renew_at: Option<Timestamp>,
}

impl MountedVolumes {
    /// These volumes and some more.
    pub fn with(&self, more: Vec<(String, Mounted)>) -> Self {
        let mut all = self.clone();
        all.volumes.extend(more);
        all
    }
}

/// The mount point of the shared tmpfs.
pub fn memory_directory(settings: &Settings) -> PathBuf {
    settings.root.join("memory")
}

/// Prepares the directories. Call this once before any pod is mounted.
pub fn prepare(settings: &Settings) -> Result<(), VolumeError> {
    let memory = memory_directory(settings);
    let pods = settings.plugin_root.join("pods");
    for directory in [&settings.root, &settings.plugin_root, &pods, &memory] {
        private::close(directory).map_err(VolumeError::file(directory))?;
    }
    for older in settings.pod_parents().iter().filter(|parent| parent.exists()) {
        private::close(older).map_err(VolumeError::file(older))?;
    }
    private::create_all(&settings.log_root).map_err(VolumeError::file(&settings.log_root))?;
    share(settings)?;
    if !mount::is_mount_point(&memory) {
        mount::tmpfs(&memory, "mode=0750", MsFlags::MS_NODEV | MsFlags::MS_NOSUID)?;
    }
    Ok(())
}

/// Enables mount propagation to and from containers below the volume directories. Skips directories with mounts of a
/// previous process, which would be duplicated.
fn share(settings: &Settings) -> Result<(), VolumeError> {
    for directory in [&settings.root, &settings.plugin_root] {
        private::create_all(directory).map_err(VolumeError::file(directory))?;
        if mounts_below(directory).iter().all(|point| point == directory) {
            mount::share(directory)?;
        }
    }
    Ok(())
}

/// Creates or updates all volumes but images at the same time; correct ones stay unchanged. Records an event for each failure, and
/// returns all of them. `first` means that the pod has no volumes yet.
pub async fn mount_all(
    context: &Context,
    pod: &Pod,
    downward: &DownwardContext,
    objects: &Subscription,
    first: bool,
) -> Result<MountedVolumes, Vec<(String, VolumeError)>> {
    let used = used_names(pod);
    let volumes = pod::spec(pod).volumes.iter().flatten();
    let volumes = volumes.filter(|volume| volume.image.is_none() && used.contains(volume.name.as_str()));
    let memory = &MemoryBudget::default();
    let mounts = volumes.map(|volume| async move {
        let is_csi = AtomicBool::new(volume.csi.is_some());
        let mounter = VolumeMounter { context, pod, downward, objects, volume, first, is_csi, memory };
        (volume.name.clone(), mounter.run().await)
    });
    let mut mounted = MountedVolumes::default();
    let mut failed = Vec::new();
    for (name, mount) in futures::future::join_all(mounts).await {
        match mount {
            Ok((result, renew_at)) => {
                mounted.volumes.insert(name, result);
                mounted.renew_at = [mounted.renew_at, renew_at].into_iter().flatten().min();
            }
            Err(error) => failed.push((name, error)),
        }
    }
    if failed.is_empty() { Ok(mounted) } else { Err(failed) }
}

/// The names of volumes that a container uses. Others are not created.
fn used_names(pod: &Pod) -> std::collections::HashSet<&str> {
    let spec = pod::spec(pod);
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mounts = plain.clone().flat_map(|container| container.volume_mounts.iter().flatten());
    let more = ephemeral.flat_map(|container| container.volume_mounts.iter().flatten());
    let devices = plain.clone().flat_map(|container| container.volume_devices.iter().flatten());
    let files = plain.flat_map(|container| container.env.iter().flatten());
    let files =
        files.filter_map(|variable| Some(variable.value_from.as_ref()?.file_key_ref.as_ref()?.volume_name.as_str()));
    mounts
        .chain(more)
        .map(|mount| mount.name.as_str())
        .chain(devices.map(|device| device.name.as_str()))
        .chain(files)
        .collect()
}

/// Unmounts the parts of volumes that are mounted for containers.
pub fn unmount_sub_paths(settings: &Settings, uid: &str) -> Result<(), VolumeError> {
    let mounted = mounts_below(&settings.pod_directory(uid).join("volume-subpaths"));
    Ok(mounted.iter().try_for_each(|point| unmount(point))?)
}

/// Removes everything of a pod: mounts first, and files only when no mount is left below.
pub fn remove_all(settings: &Settings, uid: &str) -> Result<(), VolumeError> {
    let directory = settings.pod_directory(uid);
    let memory = memory_directory(settings).join(uid);
    image::unmount_all(settings, &directory);
    for below in [&directory, &memory] {
        for point in mounts_below(below) {
            unmount(&point)?;
        }
    }
    for directory in [directory, memory] {
        tree::remove(&directory).map_err(VolumeError::file(&directory))?;
    }
    Ok(())
}

/// The uids of pods that have directories.
pub fn pods_with_directories(settings: &Settings) -> Vec<String> {
    let mut found = std::collections::BTreeSet::new();
    for directory in settings.pod_parents().into_iter().chain([memory_directory(settings)]) {
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        found.extend(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()));
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn other_users_of_the_host_do_not_reach_volumes() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("kubelet");
        let pods = root.join("pods");
        std::fs::create_dir_all(&pods).expect("made");
        for open in [&root, &pods] {
            std::fs::set_permissions(open, PermissionsExt::from_mode(0o755)).expect("set");
        }
        let mut settings = Settings::new("n", &root, "/run/x.sock".into());
        settings.log_root = directory.path().join("logs");
        settings.plugin_root = directory.path().join("plugins");
        let prepared = prepare(&settings);
        let current = settings.plugin_root.join("pods");
        let modes = [&root, &pods, &current, &settings.log_root]
            .map(|path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o7777));
        for point in mounts_below(directory.path()) {
            unmount(&point).expect("unmounted");
        }
        prepared.expect("prepared");
        for mode in modes {
            assert_eq!(mode.expect("there") & 0o027, 0);
        }
    }
}
