//! The volumes of a pod: created before its containers start, updated while they run, and removed after them.
//!
//! Each pod has its own directory. Secrets are on a tmpfs that all pods share, so that no secret reaches the disk and a
//! node with a hundred pods needs one mount for it instead of a hundred.

mod atomic;
mod claim;
mod content;
mod empty_dir;
mod host_path;
mod image;
mod mount;
mod ownership;
pub mod subpath;
mod tokens;

pub use mount::{mounts_below, unmount};
pub use tokens::Tokens;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::jiff::Timestamp;
use nix::mount::MsFlags;

use crate::container::env::{DownwardContext, EnvError};
use crate::context::Context;
use crate::journey_events;
use crate::objects::{ObjectError, Subscription};
use crate::pod;
use crate::private;
use crate::settings::Settings;
use crate::tree;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("mount of {path}: {source}")]
    Mount { path: PathBuf, source: nix::Error },
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
    Field(#[from] EnvError),
    #[error("failed to fetch token: {0}")]
    Token(String),
    #[error("{0}")]
    Claim(String),
    #[error("persistentvolumeclaim \"{0}\" not found")]
    NoClaim(String),
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
    pub fn event_message(&self, pod: &Pod, name: &str) -> String {
        match self {
            Self::NoClaim(claim) => format!(
                "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to process \
                 volumes=[{name}]: error processing PVC {}/{claim}: failed to fetch PVC from API server: \
                 persistentvolumeclaims \"{claim}\" not found",
                pod::namespace(pod)
            ),
            other => format!("MountVolume.SetUp failed for volume \"{name}\" : {other}"),
        }
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

/// The mount point of the shared tmpfs.
pub fn memory_directory(settings: &Settings) -> PathBuf {
    settings.root.join("memory")
}

/// Prepares the directories. Call this once before any pod is mounted.
pub fn prepare(settings: &Settings) -> Result<(), VolumeError> {
    let memory = memory_directory(settings);
    for directory in [&settings.root, &settings.root.join("pods"), &memory] {
        private::close(directory).map_err(VolumeError::file(directory))?;
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

/// Creates or updates all volumes; correct ones stay unchanged. Returns all failures.
pub async fn mount_all(
    context: &Context,
    pod: &Pod,
    downward: &DownwardContext,
    objects: &Subscription,
) -> Result<MountedVolumes, Vec<(String, VolumeError)>> {
    let mut mounted = MountedVolumes::default();
    let mut failed = Vec::new();
    let used = used_names(pod);
    for volume in pod::spec(pod).volumes.iter().flatten() {
        if !used.contains(volume.name.as_str()) {
            continue;
        }
        let mounter = VolumeMounter { context, pod, downward, objects, volume };
        let step = journey_events::volume(pod, volume);
        let started = std::time::Instant::now();
        let mount = mounter.mount().await;
        journey_events::outcome(&step, &mount);
        mounter.measure(started.elapsed(), mount.is_ok());
        drop(step);
        match mount {
            Ok((result, renew_at)) => {
                mounted.volumes.insert(volume.name.clone(), result);
                mounted.renew_at = [mounted.renew_at, renew_at].into_iter().flatten().min();
            }
            Err(error) => failed.push((volume.name.clone(), error)),
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

struct VolumeMounter<'a> {
    context: &'a Context,
    pod: &'a Pod,
    downward: &'a DownwardContext,
    objects: &'a Subscription,
    volume: &'a Volume,
}

impl VolumeMounter<'_> {
    async fn mount(&self) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
        let volume = self.volume;
        let writable = |path: PathBuf| Mounted { path, read_only: false, relabel: true, image: None };
        if let Some(source) = &volume.empty_dir {
            let path = self.directory("empty-dir");
            empty_dir::create(&path, source, self.group(), self.context.memory_for(self.pod))?;
            return Ok((writable(path), None));
        }
        if let Some(source) = &volume.host_path {
            let path = host_path::check(&source.path, source.type_.as_deref().unwrap_or_default())?;
            return Ok((Mounted { path, read_only: false, relabel: false, image: None }, None));
        }
        if let Some(source) = &volume.image {
            let target = self.directory(image::KIND);
            return Ok((
                image::mount(self.context, self.pod, self.objects, &self.volume.name, source, target).await?,
                None,
            ));
        }
        if let Some(source) = &volume.persistent_volume_claim {
            let claimed = claim::resolve(self.context, self.pod, &source.claim_name).await?;
            return self.mount_claimed(claimed, source.read_only.unwrap_or(false));
        }
        if volume.ephemeral.is_some() {
            let name = format!("{}-{}", pod::name(self.pod), volume.name);
            let claimed = claim::resolve_owned(self.context, self.pod, &name).await?;
            return self.mount_claimed(claimed, false);
        }
        if let Some(content) = content::collect(self).await? {
            let path = self.content_directory(content.kind);
            let in_memory = path.starts_with(memory_directory(&self.context.settings));
            atomic::write(&path, &content.files, self.group(), in_memory)?;
            return Ok((Mounted { path, read_only: true, relabel: true, image: None }, content.renew_at));
        }
        Err(unsupported(volume))
    }

    /// Records the duration and outcome of a mount.
    fn measure(&self, took: std::time::Duration, succeeded: bool) {
        let metrics = &self.context.metrics;
        let plugin = plugin_name(self.volume);
        let labels = [
            ("migrated", "false"),
            ("operation_name", "volume_mount"),
            ("status", if succeeded { "success" } else { "fail-unknown" }),
            ("volume_plugin", plugin),
        ];
        metrics.observe("storage_operation_duration_seconds", &labels, took);
        if succeeded {
            let labels = [("operation_name", "overall_volume_mount"), ("plugin_name", plugin)];
            metrics.observe("volume_operation_total_seconds", &labels, took);
        }
        if self.volume.image.is_some() {
            metrics.count("kubelet_image_volume_requested_total", &[]);
            let outcome = match succeeded {
                true => "kubelet_image_volume_mounted_succeed_total",
                false => "kubelet_image_volume_mounted_errors_total",
            };
            metrics.count(outcome, &[]);
        }
    }

    fn mount_claimed(
        &self,
        claimed: claim::ResolvedClaim,
        read_only: bool,
    ) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
        if claimed.owned_by_pod
            && !read_only
            && let Some(group) = self.group()
        {
            let always = self.change_policy() != Some("OnRootMismatch");
            ownership::apply_group(&claimed.path, group, always)?;
        }
        let read_only = read_only || claimed.read_only;
        Ok((Mounted { path: claimed.path, read_only, relabel: true, image: None }, None))
    }

    fn group(&self) -> Option<i64> {
        pod::spec(self.pod).security_context.as_ref().and_then(|context| context.fs_group)
    }

    fn change_policy(&self) -> Option<&str> {
        pod::spec(self.pod).security_context.as_ref()?.fs_group_change_policy.as_deref()
    }

    fn directory(&self, kind: &str) -> PathBuf {
        let directory = self.context.settings.pod_directory(pod::uid(self.pod));
        directory.join("volumes").join(format!("kubernetes.io~{kind}")).join(&self.volume.name)
    }

    fn content_directory(&self, kind: &str) -> PathBuf {
        // A container that an older version started has the directory on disk mounted.
        let on_disk = kind == "downward-api" && self.directory(kind).exists();
        if matches!(kind, "secret" | "projected" | "downward-api") && !on_disk {
            return memory_directory(&self.context.settings).join(pod::uid(self.pod)).join(&self.volume.name);
        }
        self.directory(kind)
    }
}

/// The plugin label of a volume in metrics.
pub fn plugin_name(volume: &Volume) -> &'static str {
    [
        (volume.config_map.is_some(), "kubernetes.io/configmap"),
        (volume.downward_api.is_some(), "kubernetes.io/downward-api"),
        (volume.empty_dir.is_some(), "kubernetes.io/empty-dir"),
        (volume.host_path.is_some(), "kubernetes.io/host-path"),
        (volume.image.is_some(), "kubernetes.io/image"),
        (volume.projected.is_some(), "kubernetes.io/projected"),
        (volume.secret.is_some(), "kubernetes.io/secret"),
        (volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some(), "kubernetes.io/local-volume"),
    ]
    .into_iter()
    .find(|(is_it, _)| *is_it)
    .map_or("unknown", |(_, name)| name)
}

/// Git repositories are never cloned: a URL could name a local path of the node, or run hooks here.
fn unsupported(volume: &Volume) -> VolumeError {
    match volume.git_repo {
        Some(_) => VolumeError::GitRepo,
        None => VolumeError::Unsupported { name: volume.name.clone(), kind: kind_of(volume) },
    }
}

fn kind_of(volume: &Volume) -> &'static str {
    if volume.csi.is_some() {
        "csi"
    } else if volume.nfs.is_some() {
        "nfs"
    } else if volume.iscsi.is_some() {
        "iscsi"
    } else {
        "unknown"
    }
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
    for directory in [settings.root.join("pods"), memory_directory(settings)] {
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        found.extend(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()));
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn repositories_are_not_cloned() {
        let volume = json!({ "name": "v", "gitRepo": { "repository": "/etc/.git", "directory": "g/.git" } });
        let volume: Volume = serde_json::from_value(volume).expect("a volume");
        assert_eq!(
            unsupported(&volume).to_string(),
            "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate \
             `GitRepoVolumeDriver`"
        );
    }

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
        let modes = [&root, &pods, &settings.log_root]
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
