//! Disks of iSCSI targets, attached with `iscsiadm`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::devices;
use super::host::{Host, wait_for, write_owned};
use super::iscsi_plan::{interface_steps, log_in_steps, log_out_steps, show_interface};
use super::step::carry_out;
use crate::volumes::VolumeError;

const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often portals without a device are tried while others have one.
const ATTEMPTS: usize = 2;

/// A logical unit of a target. It contains no secret: it is written to disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    pub portals: Vec<String>,
    pub target: String,
    pub number: i32,
    pub interface: String,
    /// The interface that `interface` is created from, with another name of the initiator.
    pub clone_of: Option<(String, String)>,
}

/// Names and passwords for a target. It has no `Debug` on purpose.
#[derive(Clone, Default)]
pub struct Chap {
    pub discovery: bool,
    pub session: bool,
    pub secret: BTreeMap<String, String>,
}

impl Unit {
    /// Whether a link in `/dev/disk/by-path` leads to this unit through the portal.
    fn is_link(&self, portal: &str, link: &str) -> bool {
        let name = self.link(portal);
        // Adapters with a transport of their own put their address first.
        link == name || link.starts_with("pci-") && link.strip_suffix(&name).is_some_and(|rest| rest.ends_with('-'))
    }

    fn link(&self, portal: &str) -> String {
        // Links have no brackets around IPv6 addresses.
        let portal = portal.replace(['[', ']'], "");
        format!("ip-{portal}-iscsi-{}-lun-{}", self.target, self.number)
    }

    fn paths_through(&self, host: &impl Host, portal: &str) -> Vec<String> {
        devices::linked(host, "/dev/disk/by-path", |link| self.is_link(portal, link))
    }

    /// Whether another unit needs the sessions of this one.
    pub fn shares_sessions(&self, other: &Self) -> bool {
        self.target == other.target && self.portals.iter().any(|portal| other.portals.contains(portal))
    }

    /// Attaches the unit through as many portals as respond, and returns its device without `/dev/`.
    pub async fn attach(&self, host: &impl Host, chap: &Chap) -> Result<String, VolumeError> {
        let mut failure = None;
        for _ in 0..ATTEMPTS {
            let missing: Vec<&String> =
                self.portals.iter().filter(|portal| self.paths_through(host, portal).is_empty()).collect();
            if missing.is_empty() {
                break;
            }
            let mut connected = Vec::new();
            for portal in missing {
                match self.connect(host, chap, portal).await {
                    Ok(()) => connected.push(portal),
                    Err(error) => failure = Some(error),
                }
            }
            for portal in connected {
                let find = || self.paths_through(host, portal).into_iter().next();
                if wait_for(DEVICE_TIMEOUT, find).await.is_none() {
                    failure = Some(VolumeError::Path(format!(
                        "Timed out waiting for device at path /dev/disk/by-path/{} after {}s",
                        self.link(portal),
                        DEVICE_TIMEOUT.as_secs()
                    )));
                }
            }
            if self.paths(host).is_empty() {
                break;
            }
        }
        let paths = self.paths(host);
        if let (Some(error), false) = (&failure, paths.is_empty()) {
            tracing::warn!(%error, target = self.target, paths = paths.len(), "an iSCSI disk lacks some of its paths");
        }
        match devices::choose(host, &paths).await {
            Some(device) => Ok(device),
            None => Err(failure.unwrap_or_else(|| VolumeError::Path("no iSCSI device found".to_string()))),
        }
    }

    /// The devices that lead to the unit, without `/dev/`.
    pub fn paths(&self, host: &impl Host) -> Vec<String> {
        let found: BTreeSet<String> = self.portals.iter().flat_map(|portal| self.paths_through(host, portal)).collect();
        found.into_iter().collect()
    }

    /// Logs in unless there is a session, and has its host look for the unit and no other.
    async fn connect(&self, host: &impl Host, chap: &Chap, portal: &str) -> Result<(), VolumeError> {
        if !devices::sessions(host, &self.target).contains_key(portal) {
            if let Some((base, initiator)) = &self.clone_of {
                let shown = carry_out(host, &[show_interface(base)]).await?;
                let steps = interface_steps(&self.interface, initiator, &shown).map_err(VolumeError::Path)?;
                carry_out(host, &steps).await?;
            }
            carry_out(host, &log_in_steps(self, chap, portal)).await?;
        }
        let Some(number) = devices::sessions(host, &self.target).get(portal).copied() else {
            let text = format!("Could not get SCSI host number for portal {portal} after logging in");
            return Err(VolumeError::Path(text));
        };
        write_owned(host, &format!("/sys/class/scsi_host/host{number}/scan"), format!("0 0 {}", self.number)).await
    }

    /// Removes the devices, and ends the sessions unless others need them.
    pub async fn detach(&self, host: &impl Host, keep_sessions: bool) -> Result<(), VolumeError> {
        devices::remove(host, &devices::units(host, &self.target, self.number)).await?;
        if !keep_sessions {
            carry_out(host, &log_out_steps(self)).await?;
        }
        Ok(())
    }
}
