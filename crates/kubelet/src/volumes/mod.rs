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
mod in_tree;
mod mount;
mod ownership;
pub mod subpath;
mod tokens;

pub use in_tree::unmount_unused as unmount_unused_devices;
pub use mount::{bind as bind_mount, is_mount_point, mounts_below, unmount, unmount_all_at};
pub use ownership::apply_group as set_group;
pub use tokens::Tokens;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use nix::mount::MsFlags;

use crate::container::env::{DownwardContext, EnvError};
use crate::context::Context;
use crate::csi::{CsiError, CsiVolume, MountRequest};
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

/// Creates or updates all volumes at the same time; correct ones stay unchanged. Records an event for each failure, and
/// returns all of them. `first` means that the pod has no volumes yet.
pub async fn mount_all(
    context: &Context,
    pod: &Pod,
    downward: &DownwardContext,
    objects: &Subscription,
    first: bool,
) -> Result<MountedVolumes, Vec<(String, VolumeError)>> {
    let used = used_names(pod);
    let volumes = pod::spec(pod).volumes.iter().flatten().filter(|volume| used.contains(volume.name.as_str()));
    let mounts = volumes.map(|volume| async move {
        let is_csi = AtomicBool::new(volume.csi.is_some());
        let mounter = VolumeMounter { context, pod, downward, objects, volume, first, is_csi };
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

struct VolumeMounter<'a> {
    context: &'a Context,
    pod: &'a Pod,
    downward: &'a DownwardContext,
    objects: &'a Subscription,
    volume: &'a Volume,
    first: bool,
    /// It is a CSI volume, which for a claim is known only when it was read.
    is_csi: AtomicBool,
}

impl VolumeMounter<'_> {
    async fn run(&self) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
        // Updates are steps only if they fail: some volumes are checked every minute.
        let step = self.first.then(|| journey_events::volume(self.pod, self.volume));
        let started = std::time::Instant::now();
        let mount = self.mount().await;
        if mount.is_err() || self.first {
            let step = step.unwrap_or_else(|| journey_events::volume(self.pod, self.volume));
            journey_events::outcome(&step, &mount);
        }
        match &mount {
            Err(error) if error.waits() => {}
            mount => self.measure(started.elapsed(), mount.is_ok()),
        }
        if let Err(error) = &mount
            && !error.waits()
        {
            let message = error.event_message(&self.volume.name);
            self.context.pod_event(self.pod, true, error.event_reason(), message);
        }
        mount
    }

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
            return self.mount_claimed(claimed, source.read_only.unwrap_or(false)).await;
        }
        if volume.ephemeral.is_some() {
            let name = format!("{}-{}", pod::name(self.pod), volume.name);
            let claimed = claim::resolve_owned(self.context, self.pod, &name).await?;
            return self.mount_claimed(claimed, false).await;
        }
        if let Some(source) = &volume.nfs {
            let path = self.directory("nfs");
            in_tree::mount_nfs(source, &[], &path).await?;
            let read_only = source.read_only == Some(true);
            return Ok((Mounted { path, read_only, relabel: false, image: None }, None));
        }
        if let Some(inline) = CsiVolume::inline(self.pod, volume) {
            return self.mount_csi(&inline, None).await;
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
        let plugin = match self.is_csi.load(Ordering::Relaxed) {
            true => "kubernetes.io/csi",
            false => plugin_name(self.volume),
        };
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

    async fn mount_csi(
        &self,
        volume: &CsiVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
        self.is_csi.store(true, Ordering::Relaxed);
        let (name, notify) = (self.volume.name.as_str(), self.objects.notifier());
        let request = MountRequest { pod: self.pod, volume, name, claim, notify };
        let mounted = self.context.csi.mount(&request).await?;
        for note in &mounted.notes {
            match claim.filter(|_| note.on_claim) {
                Some(claim) => self.context.claim_event(claim, note.warning, note.reason, &note.message),
                None => self.context.pod_event(self.pod, note.warning, note.reason, note.message.clone()),
            }
        }
        let again_at = mounted.again_after.and_then(|wait| {
            // Pods that started together do not all ask at once.
            let wait = SignedDuration::try_from(wait.mul_f64(rand::random_range(1.0..1.5))).ok()?;
            Timestamp::now().saturating_add(wait).ok()
        });
        let (path, read_only, relabel) = (mounted.path, mounted.read_only, !mounted.labelled);
        Ok((Mounted { path, read_only, relabel, image: None }, again_at))
    }

    async fn mount_claimed(
        &self,
        claimed: claim::ClaimedVolume,
        read_only: bool,
    ) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
        claim::check_mode(&claimed.volume, self.pod, &self.volume.name)?;
        if let Some(volume) = CsiVolume::persistent(&claimed.volume, read_only) {
            return self.mount_csi(&volume, Some(&claimed.claim)).await;
        }
        let claimed = self.claimed_directory(&claimed.volume, read_only).await?;
        if claimed.owned_by_pod
            && !read_only
            && let Some(group) = self.group()
        {
            let always = self.change_policy() != Some("OnRootMismatch");
            crate::blocking::in_place(|| ownership::apply_group(&claimed.path, group, always))?;
        }
        let read_only = read_only || claimed.read_only;
        Ok((Mounted { path: claimed.path, read_only, relabel: true, image: None }, None))
    }

    /// The directory of a claimed volume, mounted if it must be.
    async fn claimed_directory(
        &self,
        volume: &PersistentVolume,
        read_only: bool,
    ) -> Result<claim::ClaimedDirectory, VolumeError> {
        let (settings, uid) = (&self.context.settings, pod::uid(self.pod));
        let spec = volume.spec.as_ref();
        if let Some(source) = spec.and_then(|spec| spec.nfs.as_ref()) {
            let mut source = source.clone();
            source.read_only = Some(source.read_only == Some(true) || read_only);
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let directory = settings.pod_directory(uid).join("volumes/kubernetes.io~nfs");
            let invalid = || VolumeError::Path(format!("the name {name} is not a name of a directory"));
            let path = crate::beneath::join(&directory, name).ok_or_else(invalid)?;
            let options = spec.and_then(|spec| spec.mount_options.clone()).unwrap_or_default();
            in_tree::mount_nfs(&source, &options, &path).await?;
            return Ok(claim::ClaimedDirectory { path, read_only: false, owned_by_pod: false });
        }
        let mut claimed = claim::directory_of(volume)?;
        let is_block = spec.is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"));
        if claimed.owned_by_pod && !is_block && in_tree::is_device(&claimed.path) {
            claimed.path = in_tree::mount_device(settings, uid, volume).await?;
        }
        Ok(claimed)
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
        (volume.csi.is_some(), "kubernetes.io/csi"),
        (volume.downward_api.is_some(), "kubernetes.io/downward-api"),
        (volume.empty_dir.is_some(), "kubernetes.io/empty-dir"),
        (volume.host_path.is_some(), "kubernetes.io/host-path"),
        (volume.image.is_some(), "kubernetes.io/image"),
        (volume.nfs.is_some(), "kubernetes.io/nfs"),
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
    if volume.iscsi.is_some() {
        "iscsi"
    } else if volume.fc.is_some() {
        "fc"
    } else {
        "unknown"
    }
}

/// Unmounts the parts of volumes that are mounted for containers.
pub fn unmount_sub_paths(settings: &Settings, uid: &str) -> Result<(), VolumeError> {
    mounts_below(&settings.pod_directory(uid).join("volume-subpaths")).iter().try_for_each(|point| unmount(point))
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
