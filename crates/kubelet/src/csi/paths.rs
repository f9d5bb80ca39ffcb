//! Where CSI volumes are staged and published. Drivers, other tools and an upstream kubelet on the same host rely on
//! these paths.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::settings::Settings;

/// The plugin's directory below the volumes of a pod.
pub const ESCAPED_PLUGIN: &str = "kubernetes.io~csi";
/// The last component of a staging path.
pub const GLOBAL_MOUNT: &str = "globalmount";

#[derive(Clone, Debug)]
pub struct Paths {
    settings: Settings,
}

impl Paths {
    pub fn new(settings: &Settings) -> Self {
        Self { settings: settings.clone() }
    }

    /// The parent of all directories of drivers.
    pub fn plugin(&self) -> PathBuf {
        self.settings.plugin_root.join("plugins/kubernetes.io/csi")
    }

    /// Where registration sockets appear.
    pub fn registry(&self) -> PathBuf {
        self.settings.plugin_root.join("plugins_registry")
    }

    /// The staging path of a file system, shared by all pods that use the volume.
    pub fn stage(&self, driver: &str, handle: &str) -> PathBuf {
        self.plugin().join(component(driver)).join(hex(handle)).join(GLOBAL_MOUNT)
    }

    /// The directory of one volume of a pod, which holds its record and its mount point.
    pub fn pod_volume(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.pod_volumes(uid).join(component(spec_name))
    }

    /// The directory of all CSI volumes of a pod.
    pub fn pod_volumes(&self, uid: &str) -> PathBuf {
        self.settings.pod_directory(uid).join("volumes").join(ESCAPED_PLUGIN)
    }

    /// The mount point of a file system in a pod.
    pub fn publish(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.pod_volume(uid, spec_name).join("mount")
    }

    /// The directory of all CSI block devices of a pod.
    pub fn pod_devices(&self, uid: &str) -> PathBuf {
        self.settings.pod_directory(uid).join("volumeDevices").join(ESCAPED_PLUGIN)
    }

    /// The link to a pod's block device.
    pub fn pod_device(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.pod_devices(uid).join(component(spec_name))
    }

    fn devices(&self) -> PathBuf {
        self.plugin().join("volumeDevices")
    }

    pub fn device_stage(&self, spec_name: &str) -> PathBuf {
        self.devices().join("staging").join(component(spec_name))
    }

    pub fn device_publish(&self, spec_name: &str, uid: &str) -> PathBuf {
        self.device_publish_directory(spec_name).join(component(uid))
    }

    pub fn device_publish_directory(&self, spec_name: &str) -> PathBuf {
        self.devices().join("publish").join(component(spec_name))
    }

    /// The directory of a block volume's record and maps.
    pub fn device_volume(&self, spec_name: &str) -> PathBuf {
        self.devices().join(component(spec_name))
    }

    /// The directory of a block volume's record.
    pub fn device_data(&self, spec_name: &str) -> PathBuf {
        self.device_volume(spec_name).join("data")
    }

    /// The block device as one pod uses it, mounted from where the driver published it.
    pub fn device_map(&self, spec_name: &str, uid: &str) -> PathBuf {
        self.device_volume(spec_name).join("dev").join(component(uid))
    }

    /// Whether this is the directory of a block volume, and not one of the parents of all block volumes.
    pub fn is_device_volume(name: &str) -> bool {
        !matches!(name, "staging" | "publish")
    }

    /// The directories of block volumes.
    pub fn device_volumes(&self) -> PathBuf {
        self.devices()
    }

    /// The directories of all pods.
    pub fn pods(&self) -> Vec<PathBuf> {
        self.settings.pod_parents()
    }
}

/// A name as one component of a path: it never leads out of its directory.
fn component(name: &str) -> String {
    match name {
        "" | "." | ".." => "~".to_string(),
        name => name.replace('/', "~"),
    }
}

/// The name of a volume's attachment to a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hex(&format!("{handle}{driver}{node}")))
}

/// The handle of a volume that exists for one pod only.
pub fn inline_handle(uid: &str, volume: &str) -> String {
    format!("csi-{}", hex(&format!("{uid}{volume}")))
}

fn hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The pod and volume of a published path's directory: `PODS/UID/volumes/kubernetes.io~csi/NAME`.
pub fn pod_of(directory: &Path) -> Option<String> {
    let uid = directory.ancestors().nth(3)?.file_name()?;
    Some(uid.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_kubernetes() {
        let mut settings = Settings::new("n", "/data", "/x".into());
        settings.plugin_root = "/var/lib/kubelet".into();
        let paths = Paths::new(&settings);
        let digest = "5a2770a65a6db8c8371ae5ee78a2aa4bbd44f0ebdd0b4a4a6b1cb5a6c7fd58a6";
        let stage = paths.stage("d.example.com", "h");
        assert!(stage.starts_with("/var/lib/kubelet/plugins/kubernetes.io/csi/d.example.com"), "{stage:?}");
        assert!(stage.ends_with("globalmount"));
        assert_eq!(stage.parent().and_then(Path::file_name).map(|name| name.len()), Some(digest.len()));
        let expected = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount";
        assert_eq!(paths.publish("u", "pv"), Path::new(expected));
        assert_eq!(pod_of(&paths.pod_volume("u", "pv")).as_deref(), Some("u"));
        assert_eq!(
            paths.device_publish("pv", "u"),
            Path::new("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u")
        );
        assert_eq!(
            paths.pod_device("u", "pv"),
            Path::new("/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~csi/pv")
        );
        // The digest of "volume", "driver" and "node" joined.
        assert_eq!(attachment_name("volume", "driver", "node"), format!("csi-{}", hex("volumedrivernode")));
        assert_eq!(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn names_stay_below_their_directory() {
        for (name, expected) in [("a/b", "a~b"), ("..", "~"), ("", "~"), ("../x", "..~x")] {
            assert_eq!(component(name), expected);
        }
    }
}
