//! Image volumes.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};

use super::{Mounted, VolumeError};
use crate::context::Context;
use crate::mount;
use crate::objects::Subscription;
use crate::private;
use crate::settings::Settings;

/// The volume kind in the path below the pod's directory.
pub const KIND: &str = "image";

/// Pulls the image. A newer runtime mounts it into containers itself; for an older containerd it is mounted on the
/// node, and containers get that directory.
pub async fn mount(
    context: &Context,
    pod: &Pod,
    objects: &Subscription,
    name: &str,
    source: &ImageVolumeSource,
    target: PathBuf,
) -> Result<Mounted, VolumeError> {
    let reference = source.reference.clone().unwrap_or_default();
    let container = Container {
        name: name.to_string(),
        image: Some(reference.clone()),
        image_pull_policy: source.pull_policy.clone(),
        ..Default::default()
    };
    let image = context.images.ensure_for_volume(pod, &container, objects).await.map_err(VolumeError::Image)?;
    if context.runtime_name != "containerd" || mounts_images(&context.runtime_version) {
        return Ok(Mounted { path: PathBuf::new(), read_only: true, relabel: false, image: Some(reference) });
    }
    if !mount::is_mount_point(&target) {
        private::create_all(&target).map_err(VolumeError::file(&target))?;
        let name = image.repo_tags.first().or(image.repo_digests.first()).cloned().unwrap_or(reference);
        let (socket, directory) = (context.runtime.socket().to_path_buf(), target.clone());
        let work = tokio::task::spawn_blocking(move || knarr_cri::containerd::mount_image(&socket, &name, &directory));
        let mounted = work.await.map_err(|error| VolumeError::Image(error.to_string()))?;
        mounted.map_err(|error| VolumeError::Image(error.to_string()))?;
    }
    Ok(Mounted { path: target, read_only: true, relabel: false, image: None })
}

/// Unmounts the images of a pod and releases their snapshots in the runtime.
pub fn unmount_all(settings: &Settings, pod_directory: &Path) {
    let socket = settings.runtime_endpoint.strip_prefix("unix://").unwrap_or(&settings.runtime_endpoint).to_string();
    let directory = pod_directory.join("volumes").join(format!("kubernetes.io~{KIND}"));
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
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
