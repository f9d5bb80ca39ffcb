//! The record of a staged or published volume, `vol_data.json`: what must be known to remove the volume when neither
//! the pod nor the previous process is there any more. Written before the driver is called.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::private;

const FILE: &str = "vol_data.json";
const MAX_SIZE: u64 = 1 << 20;

/// Fields that do not apply are left out. Their names are Kubernetes', so that either kubelet can clean up after the
/// other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    pub driver_name: String,
    pub volume_handle: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub spec_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment: String,
    #[serde(rename = "volumeLifecycleMode", skip_serializing_if = "String::is_empty")]
    pub lifecycle: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub se_linux_mount_context: String,
}

impl Record {
    /// Writes the record, complete or not at all.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        private::create_all(directory)?;
        let text = serde_json::to_vec(self)?;
        let temporary = directory.join(".vol_data.json.new");
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&temporary, directory.join(FILE))
    }

    /// None if there is no record.
    pub fn load(directory: &Path) -> io::Result<Option<Self>> {
        let path = directory.join(FILE);
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(found) if found.len() > MAX_SIZE => return Err(io::ErrorKind::InvalidData.into()),
            Ok(_) => {}
        }
        let record: Self = serde_json::from_slice(&std::fs::read(&path)?)?;
        match record.driver_name.is_empty() || record.volume_handle.is_empty() {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(Some(record)),
        }
    }

    pub fn remove(directory: &Path) -> io::Result<()> {
        for name in [FILE, ".vol_data.json.new"] {
            missing_is_fine(std::fs::remove_file(directory.join(name)))?;
        }
        Ok(())
    }
}

pub fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_names_of_kubernetes() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("v");
        assert_eq!(Record::load(&path).expect("no error"), None);
        let record = Record {
            driver_name: "d".into(),
            volume_handle: "h".into(),
            spec_name: "pv".into(),
            node_name: "n".into(),
            attachment: "csi-1".into(),
            lifecycle: "Persistent".into(),
            ..Default::default()
        };
        record.save(&path).expect("saved");
        let text = std::fs::read_to_string(path.join(FILE)).expect("written");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!({ "driverName": "d", "volumeHandle": "h", "specVolID": "pv", "nodeName": "n",
                "attachmentID": "csi-1", "volumeLifecycleMode": "Persistent" })
        );
        assert_eq!(Record::load(&path).expect("read"), Some(record));
        std::fs::write(path.join(FILE), "{").expect("written");
        Record::load(&path).expect_err("cut off");
        std::fs::write(path.join(FILE), "{}").expect("written");
        Record::load(&path).expect_err("names no volume");
        Record::remove(&path).expect("removed");
        Record::remove(&path).expect("nothing to remove");
    }
}
