//! The CSI drivers that are registered on this node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use knarr_csi::messages::{Mode, NodeGetInfoRequest, NodeGetInfoResponse};
use knarr_csi::messages::{
    MountVolume, NodeCapability, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, VolumeCapability,
};
use knarr_csi::{CallError, Client};
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::volume::CsiVolume;

/// How long a driver may take for a call. The call is repeated after that, or undone.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Driver {
    pub client: Client,
    pub version: Version,
}

/// A version of the CSI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let text = text.split(['-', '+']).next()?;
        let mut numbers = text.split('.').map(|part| part.parse::<u32>());
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let patch = numbers.next().transpose().ok()?.unwrap_or(0);
        Some(Self(major, minor, patch))
    }

    /// The highest version of CSI 1 among those that a driver supports. Other major versions are incompatible.
    pub fn highest(versions: &[String]) -> Option<Self> {
        versions.iter().filter_map(|text| Self::parse(text)).filter(|version| version.0 == 1).max()
    }
}

#[derive(Default)]
pub struct Drivers {
    by_name: RwLock<HashMap<String, Arc<Driver>>>,
    /// Other drivers are registered, or one's object in the API changed.
    pub changed: Notify,
}

impl Drivers {
    pub fn get(&self, name: &str) -> Option<Arc<Driver>> {
        self.by_name.read().get(name).cloned()
    }

    pub fn names(&self) -> Vec<String> {
        self.by_name.read().keys().cloned().collect()
    }

    /// The text of a missing driver.
    pub fn missing(name: &str) -> String {
        format!("driver name {name} not found in the list of registered CSI drivers")
    }

    pub fn put(&self, name: &str, driver: Driver) {
        self.by_name.write().insert(name.to_string(), Arc::new(driver));
        self.changed.notify_one();
    }

    pub fn remove(&self, name: &str) {
        self.by_name.write().remove(name);
        self.changed.notify_one();
    }
}

impl Driver {
    /// Whether the driver serves at this endpoint.
    pub fn is_at(&self, endpoint: &str) -> bool {
        Client::connect(endpoint).is_ok_and(|client| client.socket() == self.client.socket())
    }

    pub async fn capabilities(&self) -> Result<Capabilities, CallError> {
        self.client.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.map(Capabilities)
    }

    pub async fn node_info(&self) -> Result<NodeGetInfoResponse, CallError> {
        self.client.node_get_info(NodeGetInfoRequest {}).await
    }
}

/// What the driver can do on the node.
#[derive(Clone, Debug, Default)]
pub struct Capabilities(NodeGetCapabilitiesResponse);

impl Capabilities {
    pub fn stages(&self) -> bool {
        self.0.has(NodeCapability::StageUnstageVolume)
    }

    pub fn expands(&self) -> bool {
        self.0.has(NodeCapability::ExpandVolume)
    }

    pub fn measures(&self) -> bool {
        self.0.has(NodeCapability::GetVolumeStats)
    }

    pub fn reports_condition(&self) -> bool {
        self.0.has(NodeCapability::VolumeCondition)
    }

    /// The driver applies the pod's group itself.
    pub fn applies_group(&self) -> bool {
        self.0.has(NodeCapability::VolumeMountGroup)
    }

    /// How the volume is accessed, in the driver's words.
    pub fn capability(&self, volume: &CsiVolume, options: &[String], group: Option<i64>) -> VolumeCapability {
        let mode = self.mode(volume.access_mode());
        if volume.block {
            return VolumeCapability::block(mode);
        }
        let group = group.filter(|_| self.applies_group());
        let mount = MountVolume {
            fs_type: volume.fs_type.clone(),
            mount_flags: options.to_vec(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        };
        VolumeCapability::mount(mount, mode)
    }

    /// Drivers that distinguish one writer from many of one node get the difference.
    fn mode(&self, mode: &str) -> Mode {
        let distinguishes = self.0.has(NodeCapability::SingleNodeMultiWriter);
        match (mode, distinguishes) {
            ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
            ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
            ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
            ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
            ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
            _ => Mode::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_of_csi_1_counts() {
        let highest =
            |versions: &[&str]| Version::highest(&versions.iter().map(ToString::to_string).collect::<Vec<_>>());
        for (versions, expected) in [
            (&["1.0.0"][..], Some(Version(1, 0, 0))),
            (&["0.3.0", "1.1.0", "v1.9"][..], Some(Version(1, 9, 0))),
            (&["2.0.0", "1.2.3"][..], Some(Version(1, 2, 3))),
            (&["0.3.0"][..], None),
            (&["x", ""][..], None),
        ] {
            assert_eq!(highest(versions), expected, "{versions:?}");
        }
    }

    #[test]
    fn access_modes_are_those_that_the_driver_knows() {
        let plain = Capabilities::default();
        let fine = Capabilities(NodeGetCapabilitiesResponse::of(&[NodeCapability::SingleNodeMultiWriter]));
        for (mode, expected, distinguished) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
        ] {
            assert_eq!((plain.mode(mode), fine.mode(mode)), (expected, distinguished), "{mode}");
        }
    }
}
