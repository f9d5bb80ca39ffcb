//! Names of attachable volumes and of their VolumeAttachments, as kubelets and CSI drivers compute them too.

use aws_lc_rs::digest::{SHA256, digest};

const PLUGIN: &str = "kubernetes.io/csi/";
const SEPARATOR: char = '^';

/// Identifies a volume of a CSI driver, however many PersistentVolumes refer to it.
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
        let (driver, handle) = unique_name.strip_prefix(PLUGIN)?.split_once(SEPARATOR)?;
        Some(Self::new(driver, handle))
    }

    /// The name in a node's `volumesAttached` and `volumesInUse`.
    pub fn unique_name(&self) -> String {
        format!("{PLUGIN}{}{SEPARATOR}{}", self.driver, self.handle)
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
            ("kubernetes.io/iscsi/x^y", None),
        ] {
            assert_eq!(VolumeId::parse(name), expected, "{name}");
        }
    }
}
