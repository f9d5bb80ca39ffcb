//! Image volumes: pulled when a container that mounts them starts, so that a failure is one of that container, as with its own
//! image.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};
use knarr_cri::messages::PodSandboxConfig;
use tokio::time::Instant;

use super::{Mounted, VolumeError};
use crate::context::Context;
use crate::images::{INITIAL_BACKOFF, ImageFailure};
use crate::mount;
use crate::objects::Subscription;
use crate::pod;
use crate::private;
use crate::settings::Settings;

/// The volume kind in the path below the pod's directory.
const KIND: &str = "image";

/// Pulls the images that a container mounts as volumes. Returns them by the volume's name.
pub async fn mount_for(
    context: &Context,
    pod: &Pod,
    container: &Container,
    objects: &Subscription,
    sandbox: &PodSandboxConfig,
) -> Result<Vec<(String, Mounted)>, ImageFailure> {
    let is_mounted = |name: &str| container.volume_mounts.iter().flatten().any(|mount| mount.name == name);
    let mut mounted = Vec::new();
    for volume in pod::spec(pod).volumes.iter().flatten().filter(|volume| is_mounted(&volume.name)) {
        let Some(source) = &volume.image else { continue };
        let image = ImageVolume { context, pod, name: &volume.name, source };
        mounted.push((volume.name.clone(), image.mount(objects, sandbox).await?));
    }
    Ok(mounted)
}

struct ImageVolume<'a> {
    context: &'a Context,
    pod: &'a Pod,
    name: &'a str,
    source: &'a ImageVolumeSource,
}

impl ImageVolume<'_> {
    async fn mount(&self, objects: &Subscription, sandbox: &PodSandboxConfig) -> Result<Mounted, ImageFailure> {
        let reference = self.source.reference.clone().unwrap_or_default();
        let as_container = Container {
            name: self.name.to_string(),
            image: Some(reference.clone()),
            image_pull_policy: self.source.pull_policy.clone(),
            ..Default::default()
        };
        let Context { images, metrics, runtime_name, runtime_version, .. } = self.context;
        let image = images.ensure(self.pod, &as_container, objects, sandbox.clone()).await?;
        metrics.count("kubelet_image_volume_requested_total", &[]);
        let mounted = if runtime_name != "containerd" || mounts_images(runtime_version) {
            Ok(Mounted { path: PathBuf::new(), read_only: true, relabel: false, image: Some(reference) })
        } else {
            let name = image.repo_tags.first().or(image.repo_digests.first()).cloned().unwrap_or(reference);
            self.mount_on_node(name).await
        };
        let outcome = match mounted.is_ok() {
            true => "kubelet_image_volume_mounted_succeed_total",
            false => "kubelet_image_volume_mounted_errors_total",
        };
        metrics.count(outcome, &[]);
        mounted.map_err(|error| {
            let message = error.event_message(self.name);
            ImageFailure { reason: "CreateContainerError", message, retry_at: Instant::now() + INITIAL_BACKOFF }
        })
    }

    /// Newer runtimes mount images into containers themselves; with an older containerd containers get a directory of the
    /// node.
    async fn mount_on_node(&self, image: String) -> Result<Mounted, VolumeError> {
        let directory = self.context.settings.pod_directory(pod::uid(self.pod));
        let target = kind_directory(&directory).join(self.name);
        if !mount::is_mount_point(&target) {
            private::create_all(&target).map_err(VolumeError::file(&target))?;
            let (socket, path) = (self.context.runtime.socket().to_path_buf(), target.clone());
            let work = tokio::task::spawn_blocking(move || knarr_cri::containerd::mount_image(&socket, &image, &path));
            let mounted = work.await.map_err(|error| VolumeError::Image(error.to_string()))?;
            mounted.map_err(|error| VolumeError::Image(error.to_string()))?;
        }
        Ok(Mounted { path: target, read_only: true, relabel: false, image: None })
    }
}

fn kind_directory(pod_directory: &Path) -> PathBuf {
    pod_directory.join("volumes").join(format!("kubernetes.io~{KIND}"))
}

/// Unmounts the images of a pod and releases their snapshots in the runtime.
pub fn unmount_all(settings: &Settings, pod_directory: &Path) {
    let socket = settings.runtime_endpoint.strip_prefix("unix://").unwrap_or(&settings.runtime_endpoint).to_string();
    for entry in std::fs::read_dir(kind_directory(pod_directory)).into_iter().flatten().flatten() {
        if let Err(error) = knarr_cri::containerd::unmount_image(Path::new(&socket), &entry.path()) {
            tracing::warn!(%error, volume = %entry.path().display(), "cannot unmount an image");
        }
    }
}

/// Whether this version of containerd mounts images: since 2.1.
fn mounts_images(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '~', '-', '+']).map(|part| part.parse::<u32>());
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (2, 1))
}

#[cfg(test)]
mod tests {
    #[test]
    fn protocol_versions_are_distinguished() {
        for (version, expected) in
            [("1.6.20~ds1", false), ("v2.0.5", false), ("2.1.0", true), ("v3.0", true), ("x", false)]
        {
            assert_eq!(super::mounts_images(version), expected, "{version}");
        }
    }
}
