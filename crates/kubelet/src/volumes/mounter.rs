//! Mounts one volume of a pod, whatever its kind.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::memory_budget::MemoryBudget;
use super::memory_directory;
use super::{Mounted, VolumeError, atomic, claim, content, disk, empty_dir, host_path, in_tree};
use crate::context::Context;
use crate::csi::{CsiVolume, MountRequest};
use crate::downward_api::DownwardContext;
use crate::journey_events;
use crate::objects::Subscription;
use crate::ownership;
use crate::pod;

pub(super) struct VolumeMounter<'a> {
    pub(super) context: &'a Context,
    pub(super) pod: &'a Pod,
    pub(super) downward: &'a DownwardContext,
    pub(super) objects: &'a Subscription,
    pub(super) volume: &'a Volume,
    pub(super) first: bool,
    /// It is a CSI volume, which for a claim is known only when it was read.
    pub(super) is_csi: AtomicBool,
    /// The memory that all volumes of the pod together may use.
    pub(super) memory: &'a MemoryBudget,
}

impl VolumeMounter<'_> {
    pub(super) async fn run(&self) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
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
            self.context.events.about_pod(self.pod, true, error.event_reason(), message);
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
        if let Some(source) = disk::DiskSource::inline(volume)? {
            return self.mount_disk(&source).await;
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
                Some(claim) => self.context.events.about_claim(claim, note.warning, note.reason, &note.message),
                None => self.context.events.about_pod(self.pod, note.warning, note.reason, note.message.clone()),
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
        if let Some(source) = disk::DiskSource::persistent(&claimed.volume, read_only)? {
            return self.mount_disk(&source).await;
        }
        let is_block = claim::is_block(&claimed.volume);
        let claimed = self.claimed_directory(&claimed.volume, read_only).await?;
        if claimed.owned_by_pod && !read_only && !is_block {
            self.apply_group(&claimed.path)?;
        }
        let read_only = read_only || claimed.read_only;
        Ok((Mounted { path: claimed.path, read_only, relabel: true, image: None }, None))
    }

    async fn mount_disk(&self, source: &disk::DiskSource) -> Result<(Mounted, Option<Timestamp>), VolumeError> {
        let settings = &self.context.settings;
        // As for volumes of drivers: a disk for one node must not be mounted by two.
        if disk::register(settings, pod::uid(self.pod), source)? {
            self.context.csi.set_disks(disk::recorded(settings));
            self.context.csi.wait_for_attach(&source.unique_name, &source.name, &self.objects.notifier())?;
        }
        let secret = match &source.secret {
            Some(secret) => claim::secret(self.context, self.pod, secret).await?,
            None => std::collections::BTreeMap::new(),
        };
        let path = disk::mount(settings, pod::uid(self.pod), source, secret).await?;
        let read_only = source.read_only();
        if !read_only && !source.block {
            self.apply_group(&path)?;
        }
        Ok((Mounted { path, read_only, relabel: true, image: None }, None))
    }

    /// Gives the pod's group a volume that belongs to the pod.
    fn apply_group(&self, path: &Path) -> Result<(), VolumeError> {
        let Some(group) = self.group() else { return Ok(()) };
        let always = self.change_policy() != Some("OnRootMismatch");
        Ok(crate::blocking::in_place(|| ownership::apply_group(path, group, always))?)
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
        if claimed.owned_by_pod && !claim::is_block(volume) && in_tree::is_device(&claimed.path) {
            claimed.path = in_tree::mount_device(settings, uid, volume).await?;
        }
        Ok(claimed)
    }

    pub(super) fn group(&self) -> Option<i64> {
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
        (volume.fc.is_some(), "kubernetes.io/fc"),
        (volume.host_path.is_some(), "kubernetes.io/host-path"),
        (volume.image.is_some(), "kubernetes.io/image"),
        (volume.iscsi.is_some(), "kubernetes.io/iscsi"),
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
        None => VolumeError::Unsupported { name: volume.name.clone(), kind: "unknown" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
