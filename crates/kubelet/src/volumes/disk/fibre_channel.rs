//! Disks of a Fibre Channel network. Its adapters see all disks that the network assigns to the host, so that attaching
//! one means finding it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::devices;
use super::host::{Host, names, wait_for, write};
use crate::volumes::VolumeError;

const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a disk is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disk {
    /// A logical unit of ports with these names.
    Unit { ports: Vec<String>, number: i32 },
    /// Identifiers of the disk itself.
    Identifiers(Vec<String>),
}

impl Disk {
    fn paths_by(&self, host: &impl Host, id: &str) -> Vec<String> {
        match self {
            Self::Unit { number, .. } => {
                devices::linked(host, "/dev/disk/by-path", |link| is_unit_link(link, id, *number))
            }
            Self::Identifiers(_) => devices::linked(host, "/dev/disk/by-id", |link| link == format!("scsi-{id}")),
        }
    }

    fn ids(&self) -> &[String] {
        match self {
            Self::Unit { ports, .. } => ports,
            Self::Identifiers(ids) => ids,
        }
    }

    /// The devices that lead to the disk, without `/dev/`.
    pub fn paths(&self, host: &impl Host) -> Vec<String> {
        let found: std::collections::BTreeSet<String> =
            self.ids().iter().flat_map(|id| self.paths_by(host, id)).collect();
        found.into_iter().collect()
    }

    fn is_complete(&self, host: &impl Host) -> bool {
        self.ids().iter().all(|id| !self.paths_by(host, id).is_empty())
    }

    /// Finds the disk, if need be after all adapters looked for new ones.
    pub async fn attach(&self, host: &impl Host) -> Result<String, VolumeError> {
        if !self.is_complete(host) {
            for adapter in names(&host.path("/sys/class/scsi_host")) {
                if let Err(error) = write(host, &format!("/sys/class/scsi_host/{adapter}/scan"), "- - -").await {
                    tracing::warn!(%error, adapter, "cannot scan for disks");
                }
            }
            let is_complete = || self.is_complete(host).then_some(());
            if wait_for(DEVICE_TIMEOUT, is_complete).await.is_none() {
                tracing::warn!(disk = ?self, "a Fibre Channel disk lacks some of its paths");
            }
        }
        devices::choose(host, &self.paths(host)).await.ok_or_else(|| {
            let text = match names(&host.path("/sys/class/fc_host")).is_empty() {
                true => "no fc disk found: this node has no Fibre Channel adapter",
                false => "no fc disk found",
            };
            VolumeError::Path(text.to_string())
        })
    }

    pub async fn detach(&self, host: &impl Host) -> Result<(), VolumeError> {
        devices::remove(host, &self.paths(host)).await
    }
}

/// Whether a link in `/dev/disk/by-path` is that of a unit: `fc-0xPORT-lun-N`, after the adapter's address if it has one.
fn is_unit_link(link: &str, port: &str, number: i32) -> bool {
    let Some(rest) = link.strip_suffix(&format!("fc-0x{port}-lun-{number}")) else { return false };
    rest.is_empty() || rest.starts_with("pci-") && rest.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_port_and_unit() {
        for (link, expected) in [
            ("fc-0x50060e801049cfd1-lun-0", true),
            ("pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-0", true),
            ("pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-0-part1", false),
            ("fc-0x50060e801049cfd1-lun-10", false),
            ("fc-0x60060e801049cfd1-lun-0", false),
            ("evil-fc-0x50060e801049cfd1-lun-0", false),
        ] {
            assert_eq!(is_unit_link(link, "50060e801049cfd1", 0), expected, "{link}");
        }
    }
}
