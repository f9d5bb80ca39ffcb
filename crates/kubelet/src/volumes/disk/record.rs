//! What this node knows of an attached disk: how to detach it, and which pods have it. It is written before the disk is
//! attached, so that a kubelet that was killed at any point can detach it.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::host::names;
use super::{fibre_channel, iscsi};
use crate::private;
use crate::settings::Settings;
use crate::volumes::VolumeError;

const FILE: &str = "disk.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Disk {
    Iscsi(iscsi::Unit),
    FibreChannel(fibre_channel::Disk),
}

impl Disk {
    /// The name of the volume plugin, without `kubernetes.io/`.
    pub fn plugin(&self) -> &'static str {
        match self {
            Self::Iscsi(_) => "iscsi",
            Self::FibreChannel(_) => "fc",
        }
    }

    fn hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

pub struct Record {
    pub disk: Disk,
    directory: PathBuf,
    settings: Settings,
}

impl Record {
    pub fn new(settings: &Settings, disk: &Disk) -> Self {
        let directory = parent(settings, disk.plugin()).join(disk.hash());
        Self { disk: disk.clone(), directory, settings: settings.clone() }
    }

    /// The records of all disks of one plugin.
    pub fn all(settings: &Settings, plugin: &str) -> Result<Vec<Self>, VolumeError> {
        let parent = parent(settings, plugin);
        let mut records = Vec::new();
        for name in names(&parent) {
            let directory = parent.join(name);
            let file = directory.join(FILE);
            let text = match std::fs::read(&file) {
                // Nothing was attached yet, or everything was detached.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(VolumeError::file(&file))?,
            };
            let disk = serde_json::from_slice(&text)
                .map_err(|error| VolumeError::Path(format!("{}: {error}", file.display())))?;
            records.push(Self { disk, directory, settings: settings.clone() });
        }
        Ok(records)
    }

    /// Where the disk is mounted for all pods.
    pub fn mount_point(&self) -> PathBuf {
        self.directory.join("mount")
    }

    fn users(&self) -> PathBuf {
        self.directory.join("pods")
    }

    /// Records that a pod is about to use the disk, and its name in the node's status. Returns false if it was recorded
    /// before.
    pub fn add_user(&self, uid: &str, unique_name: &str) -> Result<bool, VolumeError> {
        let user = self.users().join(uid);
        if self.directory.join(FILE).exists() && user.exists() {
            return Ok(false);
        }
        let write = || {
            // Pods are known to be gone when their directory is.
            private::create_all(&self.settings.pod_directory(uid))?;
            private::create_all(&self.users())?;
            let temporary = self.directory.join(".disk.json.new");
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec(&self.disk)?)?;
            file.sync_all()?;
            knarr_files::rename_durably(&temporary, &self.directory.join(FILE))?;
            let mut file = File::create(&user)?;
            file.write_all(unique_name.as_bytes())?;
            file.sync_all()
        };
        write().map_err(VolumeError::file(&user))?;
        Ok(true)
    }

    /// The names of the disk in the node's status while pods use it.
    pub fn unique_names(&self) -> Vec<String> {
        let users = names(&self.users()).into_iter();
        users.filter_map(|user| std::fs::read_to_string(self.users().join(user)).ok()).collect()
    }

    pub fn has_user(&self, uid: &str) -> bool {
        self.users().join(uid).exists()
    }

    pub fn has_other_users(&self, uid: &str) -> bool {
        let users = names(&self.users());
        users.iter().any(|user| user != uid && self.settings.pod_directory(user).exists())
    }

    pub fn remove_user(&self, uid: &str) -> Result<(), VolumeError> {
        let user = self.users().join(uid);
        std::fs::remove_file(&user).map_err(VolumeError::file(&user))
    }

    /// Removes the record of a disk that is detached.
    pub fn remove(&self) -> Result<(), VolumeError> {
        let remove = || {
            let point = self.mount_point();
            if point.exists() {
                // Fails if anything is mounted or was written there.
                std::fs::remove_dir(point)?;
            }
            std::fs::remove_dir_all(&self.directory)
        };
        remove().map_err(VolumeError::file(&self.directory))
    }
}

fn parent(settings: &Settings, plugin: &str) -> PathBuf {
    settings.plugin_root.join("plugins/kubernetes.io").join(plugin)
}
