//! Records of the claims that are or may be prepared for pods, in memory and on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private;

const FILE: &str = "dra_claims.json";
const MAX_BYTES: usize = 64 << 20;

/// Claims by namespace and name.
pub type Records = BTreeMap<String, Record>;

/// A claim of which devices are or may be prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The UIDs of the pods that use it.
    pub pods: BTreeSet<String>,
    /// All drivers have prepared it.
    pub is_prepared: bool,
    /// Devices by driver.
    pub drivers: BTreeMap<String, Vec<PreparedDevice>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedDevice {
    pub pool: String,
    pub device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// The requests it is for; all if it is empty.
    #[serde(default)]
    pub requests: Vec<String>,
    #[serde(default)]
    pub cdi_devices: Vec<String>,
}

pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl Record {
    /// The CDI devices for a request of a container; all if it names none. Devices of a subrequest are named with it.
    pub fn cdi_devices(&self, request: Option<&str>) -> Vec<String> {
        self.devices_for(request).flat_map(|(_, device)| device.cdi_devices.iter().cloned()).collect()
    }

    /// The devices for a request, with their drivers.
    pub fn devices_for(&self, request: Option<&str>) -> impl Iterator<Item = (&str, &PreparedDevice)> {
        let is_for = move |device: &PreparedDevice| match request {
            None => true,
            Some(request) => {
                let is_same = |own: &String| own.split('/').next() == Some(request);
                device.requests.is_empty() || device.requests.iter().any(is_same)
            }
        };
        let all =
            self.drivers.iter().flat_map(|(driver, devices)| devices.iter().map(|device| (driver.as_str(), device)));
        all.filter(move |(_, device)| is_for(device))
    }
}

/// The file of records.
pub struct Checkpoint(PathBuf);

impl Checkpoint {
    pub fn new(root: &Path) -> Self {
        Checkpoint(root.join(FILE))
    }

    pub fn load(&self) -> io::Result<Records> {
        match std::fs::metadata(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Records::new()),
            Err(error) => return Err(error),
            Ok(found) if found.len() > MAX_BYTES as u64 => return Err(io::ErrorKind::InvalidData.into()),
            Ok(_) => {}
        }
        Ok(serde_json::from_slice(&std::fs::read(&self.0)?)?)
    }

    /// Writes all records, complete or not at all. What a later process would not read is refused: drivers say how many
    /// devices there are, and how long their names.
    pub fn save(&self, records: &Records) -> io::Result<()> {
        let text = serde_json::to_vec(records)?;
        if text.len() > MAX_BYTES {
            let message = format!("the devices of claims take {} bytes of at most {MAX_BYTES}", text.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let directory = self.0.parent().unwrap_or(Path::new("/"));
        private::create_all(directory)?;
        let fresh = directory.join(format!(".{FILE}.new"));
        let mut file = File::create(&fresh)?;
        file.write_all(&text)?;
        file.sync_all()?;
        knarr_files::rename_durably(&fresh, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_can_be_loaded() {
        let directory = tempfile::tempdir().expect("a directory");
        let checkpoint = Checkpoint::new(directory.path());
        let with_device = |name: String| {
            let device = PreparedDevice { device: name, ..PreparedDevice::default() };
            let drivers = BTreeMap::from([("driver".to_owned(), vec![device])]);
            Records::from([("ns/claim".to_owned(), Record { drivers, ..Record::default() })])
        };
        let short = with_device("gpu".to_owned());
        checkpoint.save(&short).expect("saved");
        checkpoint.save(&with_device("x".repeat(MAX_BYTES))).expect_err("nobody would read it");
        assert_eq!(checkpoint.load().expect("the records from before"), short);
    }
}
