//! Names of attachable volumes and of their VolumeAttachments, as kubelets and CSI drivers compute them too.

use aws_lc_rs::digest::{SHA256, digest};
use knarr_client::disk_name;

const PLUGIN: &str = "kubernetes.io/csi/";
const SEPARATOR: char = '^';

/// Identifies a volume, however many PersistentVolumes refer to it. For a disk of a storage network, which no CSI driver
/// attaches, the driver is the plugin, whose name no CSI driver can have.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct VolumeId {
    pub driver: String,
    pub handle: String,
}

impl VolumeId {
    pub fn new(driver: impl Into<String>, handle: impl Into<String>) -> Self {
        Self { driver: driver.into(), handle: handle.into() }
    }

    /// Reads a name from a node's `volumesAttached` or `volumesInUse`; `None` for volumes of other plugins.
    pub fn parse(unique_name: &str) -> Option<Self> {
        for plugin in [disk_name::ISCSI, disk_name::FIBRE_CHANNEL] {
            if let Some(disk) = unique_name.strip_prefix(plugin).and_then(|rest| rest.strip_prefix('/')) {
                return Some(Self::new(plugin, disk));
            }
        }
        let (driver, handle) = unique_name.strip_prefix(PLUGIN)?.split_once(SEPARATOR)?;
        Some(Self::new(driver, handle))
    }

    /// The name in a node's `volumesAttached` and `volumesInUse`.
    pub fn unique_name(&self) -> String {
        match self.is_disk() {
            true => format!("{}/{}", self.driver, self.handle),
            false => format!("{PLUGIN}{}{SEPARATOR}{}", self.driver, self.handle),
        }
    }

    /// Whether nodes attach it themselves: it has no VolumeAttachment.
    pub fn is_disk(&self) -> bool {
        [disk_name::ISCSI, disk_name::FIBRE_CHANNEL].contains(&self.driver.as_str())
    }

    /// The name of the VolumeAttachment to a node.
    pub fn attachment_name(&self, node: &str) -> String {
        let sum = digest(&SHA256, format!("{}{}{node}", self.handle, self.driver).as_bytes());
        let hex: String = sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("csi-{hex}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_kubelets_compute() {
        let id = VolumeId::new("driver", "handle");
        assert_eq!(id.unique_name(), "kubernetes.io/csi/driver^handle");
        // printf handledrivernode | sha256sum
        assert_eq!(id.attachment_name("node"), "csi-fdef298eb16db6fa42906ef1ff09a93a7f3028f8290cc9d71628ff91c237bfa7");
        for (name, expected) in [
            ("kubernetes.io/csi/driver^handle", Some(id)),
            ("kubernetes.io/csi/d.example^a^b", Some(VolumeId::new("d.example", "a^b"))),
            ("kubernetes.io/csi/driver", None),
            ("kubernetes.io/rbd/x^y", None),
            ("kubernetes.io/iscsi/1.2.3.4:iqn.d:0", Some(VolumeId::new("kubernetes.io/iscsi", "1.2.3.4:iqn.d:0"))),
            ("kubernetes.io/fc/[a b]:1", Some(VolumeId::new("kubernetes.io/fc", "[a b]:1"))),
        ] {
            if let Some(id) = &expected {
                assert_eq!(id.unique_name(), name);
            }
            assert_eq!(VolumeId::parse(name), expected, "{name}");
        }
    }
}
