//! What a container sees mounted: its volumes, the managed hosts file, and the file for its last words.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use knarr_cri::messages::{ImageSpec, Mount, MountPropagation};

use super::env::expand;
use super::user_namespace;
use crate::pod;
use crate::private;
use crate::settings::Settings;
use crate::volumes::{MountedVolumes, VolumeError, subpath};

pub struct Mounting<'a> {
    pub settings: &'a Settings,
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub volumes: &'a MountedVolumes,
    pub environment: &'a BTreeMap<String, String>,
    pub hosts_file: Option<PathBuf>,
    /// How often the container has been started, so that each start has mounts of its own.
    pub attempt: u32,
    pub recursive_read_only: bool,
}

impl Mounting<'_> {
    pub fn mounts(&self) -> Result<Vec<Mount>, VolumeError> {
        let mut mounts = Vec::new();
        for (index, wanted) in self.container.volume_mounts.iter().flatten().enumerate() {
            mounts.push(self.volume_mount(index, wanted)?);
        }
        let taken = |path: &str| self.container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == path);
        if let Some(hosts) = self.hosts_file.as_ref().filter(|_| !taken("/etc/hosts")) {
            mounts.push(plain("/etc/hosts", hosts));
        }
        if let Some(path) = self.container.termination_message_path.as_deref().filter(|path| !path.is_empty()) {
            mounts.push(plain(path, &self.termination_file()?));
        }
        if let Some(range) = user_namespace::of(self.settings, self.pod) {
            // Files keep the owners they have, as the pod's users see them.
            for mount in &mut mounts {
                mount.uid_mappings = vec![range.mapping()];
                mount.gid_mappings = vec![range.mapping()];
            }
        }
        Ok(mounts)
    }

    fn volume_mount(&self, index: usize, wanted: &VolumeMount) -> Result<Mount, VolumeError> {
        let unknown = || VolumeError::Path(format!("cannot find volume \"{}\" to mount into container", wanted.name));
        let volume = self.volumes.volumes.get(&wanted.name).ok_or_else(unknown)?;
        let readonly = wanted.read_only.unwrap_or(false) || volume.read_only;
        let propagation = match wanted.mount_propagation.as_deref() {
            Some("Bidirectional") => MountPropagation::Bidirectional,
            Some("HostToContainer") => MountPropagation::HostToContainer,
            _ => MountPropagation::Private,
        } as i32;
        let sub_path = self.sub_path(wanted)?;
        sub_path.as_deref().map_or(Ok(()), subpath::check)?;
        if let Some(image) = &volume.image {
            return Ok(Mount {
                container_path: absolute(&wanted.mount_path),
                readonly: true,
                image: Some(ImageSpec {
                    image: image.clone(),
                    user_specified_image: image.clone(),
                    ..Default::default()
                }),
                image_sub_path: sub_path.unwrap_or_default(),
                propagation,
                ..Default::default()
            });
        }
        let host_path = match sub_path {
            Some(sub_path) => {
                let target = self
                    .settings
                    .pod_directory(pod::uid(self.pod))
                    .join("volume-subpaths")
                    .join(&wanted.name)
                    .join(&self.container.name)
                    .join(format!("{index}-{}", self.attempt));
                subpath::bind(&volume.path, &sub_path, &target).map_err(|error| self.unprepared(wanted, error))?
            }
            None => {
                // A bare host path that is not there is made, as it always was.
                if !volume.path.exists() {
                    std::fs::create_dir_all(&volume.path)
                        .map_err(|source| VolumeError::File { path: volume.path.clone(), source })?;
                }
                volume.path.clone()
            }
        };
        let recursive = match wanted.recursive_read_only.as_deref() {
            Some("Enabled") if !self.recursive_read_only => {
                return Err(VolumeError::Path(format!(
                    "failed to resolve recursive read-only mode: volume \"{}\" requested recursive read-only mode, but it \
                     is not supported by the runtime",
                    wanted.name
                )));
            }
            Some("Enabled") => true,
            Some("IfPossible") => self.recursive_read_only,
            _ => false,
        };
        Ok(Mount {
            container_path: absolute(&wanted.mount_path),
            host_path: host_path.to_string_lossy().into_owned(),
            readonly,
            selinux_relabel: volume.relabel && Path::new("/sys/fs/selinux/enforce").exists(),
            propagation,
            recursive_read_only: readonly && recursive,
            ..Default::default()
        })
    }

    /// What the node could not do inside the volume is not for the pod's eyes: it may tell of other files.
    fn unprepared(&self, wanted: &VolumeMount, error: VolumeError) -> VolumeError {
        let VolumeError::File { .. } = error else { return error };
        tracing::warn!(%error, pod = pod::title(self.pod), container = self.container.name, "a sub-path can't be mounted");
        VolumeError::Path(format!(
            "failed to prepare subPath for volumeMount \"{}\" of container \"{}\"",
            wanted.name, self.container.name
        ))
    }

    fn sub_path(&self, wanted: &VolumeMount) -> Result<Option<String>, VolumeError> {
        if let Some(expression) = wanted.sub_path_expr.as_deref().filter(|path| !path.is_empty()) {
            let path = expand(expression, self.environment);
            if let Some(name) = unknown_name(&path) {
                return Err(VolumeError::Path(format!("missing value for {name}")));
            }
            return Ok(Some(path));
        }
        Ok(wanted.sub_path.clone().filter(|path| !path.is_empty()))
    }

    /// One file a start, writable by whoever the container runs as.
    fn termination_file(&self) -> Result<PathBuf, VolumeError> {
        use std::os::unix::fs::PermissionsExt;
        let folder = self.settings.pod_directory(pod::uid(self.pod)).join("containers").join(&self.container.name);
        private::create_all(&folder).map_err(|source| VolumeError::File { path: folder.clone(), source })?;
        let file = folder.join(format!("{}-{}", self.attempt, uuid::Uuid::new_v4().simple()));
        std::fs::write(&file, b"").map_err(|source| VolumeError::File { path: file.clone(), source })?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666))
            .map_err(|source| VolumeError::File { path: file.clone(), source })?;
        Ok(file)
    }
}

/// The name of a variable that is still to be replaced.
fn unknown_name(expanded: &str) -> Option<&str> {
    expanded.split_once("$(")?.1.split_once(')').map(|(name, _)| name)
}

fn plain(container_path: &str, host_path: &Path) -> Mount {
    Mount {
        container_path: container_path.to_string(),
        host_path: host_path.to_string_lossy().into_owned(),
        ..Default::default()
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_string() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::{Mounted, mounts_below, unmount};
    use serde_json::json;

    /// The mounts of a container that asks for a part of a volume to be writable.
    fn mounted(folder: &Path, sub_path: &str, image: Option<&str>) -> Result<Vec<Mount>, VolumeError> {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "u" }, "spec": {
            "containers": [{ "name": "c", "volumeMounts": [
                { "name": "v", "mountPath": "/m", "subPathExpr": "$(PART)", "readOnly": false }] }] } }))
        .expect("a pod");
        let volume =
            Mounted { path: folder.join("v"), read_only: true, relabel: false, image: image.map(ToString::to_string) };
        let volumes = MountedVolumes { volumes: [("v".to_string(), volume)].into(), renew_at: None };
        let settings = Settings::new("n", folder.join("data"), "/run/x.sock".into());
        let mounting = Mounting {
            settings: &settings,
            pod: &pod,
            container: &pod::spec(&pod).containers[0],
            volumes: &volumes,
            environment: &BTreeMap::from([("PART".to_string(), sub_path.to_string())]),
            hosts_file: None,
            attempt: 0,
            recursive_read_only: false,
        };
        let mounts = mounting.mounts();
        for point in mounts_below(folder) {
            unmount(&point).expect("unmounted");
        }
        mounts
    }

    #[test]
    fn parts_of_read_only_volumes_are_read_only() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("v/part")).expect("made");
        let mounts = mounted(folder.path(), "part", None).expect("mounted");
        assert!(mounts.len() == 1 && mounts[0].readonly, "{mounts:?}");
    }

    #[test]
    fn parts_of_images_stay_inside_too() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(mounted(folder.path(), "a/b", Some("image")).is_ok());
        for (part, expected) in [
            ("/etc", "error SubPath `/etc` must not be an absolute path"),
            ("a/../../b", "unable to provision SubPath `a/../../b`: must not contain '..'"),
        ] {
            let refused = mounted(folder.path(), part, Some("image")).expect_err(part);
            assert_eq!(refused.to_string(), expected);
        }
    }
}
