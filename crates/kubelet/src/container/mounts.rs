//! The mounts of a container: its volumes, the managed hosts file, and the termination message file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use knarr_cri::messages::{ImageSpec, Mount, MountPropagation};

use super::env::{Budget, expand};
use super::user_namespace;
use crate::pod;
use crate::private;
use crate::settings::Settings;
use crate::volumes::{MountedVolumes, VolumeError, subpath};

pub struct ContainerMounts<'a> {
    pub settings: &'a Settings,
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub volumes: &'a MountedVolumes,
    pub environment: &'a BTreeMap<String, String>,
    pub hosts_file: Option<PathBuf>,
    /// The number of earlier starts, so that each start has its own mounts.
    pub attempt: u32,
    pub recursive_read_only: bool,
}

impl ContainerMounts<'_> {
    pub fn mounts(&self) -> Result<Vec<Mount>, VolumeError> {
        let mut mounts = Vec::new();
        self.remove_old_sub_paths();
        for (index, mount) in self.container.volume_mounts.iter().flatten().enumerate() {
            mounts.push(self.volume_mount(index, mount)?);
        }
        let is_mounted =
            |path: &str| self.container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == path);
        if let Some(hosts) = self.hosts_file.as_ref().filter(|_| !is_mounted("/etc/hosts")) {
            mounts.push(plain("/etc/hosts", hosts));
        }
        if let Some(path) = self.container.termination_message_path.as_deref().filter(|path| !path.is_empty()) {
            mounts.push(plain(path, &self.termination_file()?));
        }
        if let Some(range) = user_namespace::of(self.settings, self.pod) {
            // Map ids so that files keep their owners inside the pod.
            for mount in &mut mounts {
                mount.uid_mappings = vec![range.mapping()];
                mount.gid_mappings = vec![range.mapping()];
            }
        }
        Ok(mounts)
    }

    fn volume_mount(&self, index: usize, mount: &VolumeMount) -> Result<Mount, VolumeError> {
        let unknown = || VolumeError::Path(format!("cannot find volume \"{}\" to mount into container", mount.name));
        let volume = self.volumes.volumes.get(&mount.name).ok_or_else(unknown)?;
        let readonly = mount.read_only.unwrap_or(false) || volume.read_only;
        let propagation = match mount.mount_propagation.as_deref() {
            Some("Bidirectional") => MountPropagation::Bidirectional,
            Some("HostToContainer") => MountPropagation::HostToContainer,
            _ => MountPropagation::Private,
        } as i32;
        let sub_path = self.sub_path(mount)?;
        sub_path.as_deref().map_or(Ok(()), subpath::check)?;
        if let Some(image) = &volume.image {
            return Ok(Mount {
                container_path: absolute(&mount.mount_path),
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
                let target = self.sub_path_directory(&mount.name).join(format!("{index}-{}", self.attempt));
                subpath::bind(&volume.path, &sub_path, &target).map_err(|error| self.hide_file_error(mount, error))?
            }
            None => {
                // A missing host path without a type is created, as in Kubernetes.
                if !volume.path.exists() {
                    std::fs::create_dir_all(&volume.path)
                        .map_err(|source| VolumeError::File { path: volume.path.clone(), source })?;
                }
                volume.path.clone()
            }
        };
        let recursive = self.is_recursive_read_only(mount)?;
        Ok(Mount {
            container_path: absolute(&mount.mount_path),
            host_path: host_path.to_string_lossy().into_owned(),
            readonly,
            selinux_relabel: volume.relabel && Path::new("/sys/fs/selinux/enforce").exists(),
            propagation,
            recursive_read_only: readonly && recursive,
            ..Default::default()
        })
    }

    /// Whether mounts below a read-only one are read-only, too, as the pod requests it and the runtime can.
    fn is_recursive_read_only(&self, mount: &VolumeMount) -> Result<bool, VolumeError> {
        match mount.recursive_read_only.as_deref() {
            Some("Enabled") if !self.recursive_read_only => Err(VolumeError::Path(format!(
                "failed to resolve recursive read-only mode: volume \"{}\" requested recursive read-only mode, but it \
                 is not supported by the runtime",
                mount.name
            ))),
            Some("Enabled") => Ok(true),
            Some("IfPossible") => Ok(self.recursive_read_only),
            _ => Ok(false),
        }
    }

    /// Where parts of a volume are mounted for the container.
    fn sub_path_directory(&self, volume: &str) -> PathBuf {
        let directory = self.settings.pod_directory(pod::uid(self.pod));
        directory.join("volume-subpaths").join(volume).join(&self.container.name)
    }

    fn remove_old_sub_paths(&self) {
        let parts = self.container.volume_mounts.iter().flatten();
        let parts = parts.filter(|mount| mount.sub_path.is_some() || mount.sub_path_expr.is_some());
        let volumes: BTreeSet<&str> = parts.map(|mount| mount.name.as_str()).collect();
        for volume in volumes {
            subpath::remove_others(&self.sub_path_directory(volume), self.attempt);
        }
    }

    /// Hides file errors inside the volume from the pod's author, as they may describe other files.
    fn hide_file_error(&self, mount: &VolumeMount, error: VolumeError) -> VolumeError {
        let VolumeError::File { .. } = error else { return error };
        tracing::warn!(%error, pod = pod::title(self.pod), container = self.container.name, "cannot mount a sub-path");
        VolumeError::Path(format!(
            "failed to prepare subPath for volumeMount \"{}\" of container \"{}\"",
            mount.name, self.container.name
        ))
    }

    fn sub_path(&self, mount: &VolumeMount) -> Result<Option<String>, VolumeError> {
        if let Some(expression) = mount.sub_path_expr.as_deref().filter(|path| !path.is_empty()) {
            let path = expand(expression, self.environment, &mut Budget::of_path())
                .map_err(|error| VolumeError::Path(format!("subPathExpr of volume \"{}\": {error}", mount.name)))?;
            if let Some(name) = unknown_name(&path) {
                return Err(VolumeError::Path(format!("missing value for {name}")));
            }
            return Ok(Some(path));
        }
        Ok(mount.sub_path.clone().filter(|path| !path.is_empty()))
    }

    /// One file per start, writable by any user of the container.
    fn termination_file(&self) -> Result<PathBuf, VolumeError> {
        use std::os::unix::fs::PermissionsExt;
        let directory = self.settings.pod_directory(pod::uid(self.pod)).join("containers").join(&self.container.name);
        private::create_all(&directory).map_err(|source| VolumeError::File { path: directory.clone(), source })?;
        let file = directory.join(format!("{}-{}", self.attempt, uuid::Uuid::new_v4().simple()));
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
    use crate::mount::{mounts_below, unmount};
    use crate::volumes::Mounted;
    use serde_json::json;

    /// The mounts of a container that requests a writable sub-path.
    fn mounted(directory: &Path, sub_path: &str, image: Option<&str>) -> Result<Vec<Mount>, VolumeError> {
        started(directory, sub_path, image, 1).map(|(mounts, _)| mounts)
    }

    /// The same after several starts, with the number of mount points that are left.
    fn started(
        directory: &Path,
        sub_path: &str,
        image: Option<&str>,
        starts: u32,
    ) -> Result<(Vec<Mount>, usize), VolumeError> {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "u" }, "spec": {
            "containers": [{ "name": "c", "volumeMounts": [
                { "name": "v", "mountPath": "/m", "subPathExpr": "$(PART)", "readOnly": false }] }] } }))
        .expect("a pod");
        let volume = Mounted {
            path: directory.join("v"),
            read_only: true,
            relabel: false,
            image: image.map(ToString::to_string),
        };
        let volumes = MountedVolumes { volumes: [("v".to_string(), volume)].into(), renew_at: None };
        let settings = Settings::new("n", directory.join("data"), "/run/x.sock".into());
        let environment = BTreeMap::from([("PART".to_string(), sub_path.to_string())]);
        let mounting = |attempt| ContainerMounts {
            settings: &settings,
            pod: &pod,
            container: &pod::spec(&pod).containers[0],
            volumes: &volumes,
            environment: &environment,
            hosts_file: None,
            attempt,
            recursive_read_only: false,
        };
        let mounts = (0..starts).try_fold(Vec::new(), |_, attempt| mounting(attempt).mounts());
        let points = mounts_below(directory);
        for point in &points {
            unmount(point).expect("unmounted");
        }
        Ok((mounts?, points.len()))
    }

    #[test]
    fn restarts_do_not_fill_the_mount_table() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(directory.path().join("v/part")).expect("made");
        let (mounts, points) = started(directory.path(), "part", None, 5).expect("mounted");
        assert_eq!((mounts.len(), points), (1, 1), "{mounts:?}");
        std::fs::write(directory.path().join("v/file"), "").expect("written");
        let (_, points) = started(directory.path(), "file", None, 3).expect("mounted");
        assert_eq!(points, 1);
    }

    #[test]
    fn parts_of_read_only_volumes_are_read_only() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(directory.path().join("v/part")).expect("made");
        let mounts = mounted(directory.path(), "part", None).expect("mounted");
        assert!(mounts.len() == 1 && mounts[0].readonly, "{mounts:?}");
    }

    #[test]
    fn parts_of_images_stay_inside_too() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(mounted(directory.path(), "a/b", Some("image")).is_ok());
        for (part, expected) in [
            ("/etc", "error SubPath `/etc` must not be an absolute path"),
            ("a/../../b", "unable to provision SubPath `a/../../b`: must not contain '..'"),
        ] {
            let refused = mounted(directory.path(), part, Some("image")).expect_err(part);
            assert_eq!(refused.to_string(), expected);
        }
    }
}
