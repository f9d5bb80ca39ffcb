//! The files that all servers of a cluster share: authorities, keys, and settings that must not differ between servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::ThisServer;
use super::member::write_private;
use crate::cluster::Cluster;

/// Exists if the authority was replaced.
const CROSS: &str = "ca-cross.crt";

/// The files below `pki` that all servers share.
const FILES: [&str; 8] = [
    "ca.crt",
    "ca.key",
    CROSS,
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "service-account.key",
    "etcd/ca.crt",
    "etcd/ca.key",
];

/// The files and settings that a new server receives.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// Contents by path below `pki`.
    files: BTreeMap<String, String>,
    /// The EncryptionConfiguration, if objects are encrypted at rest.
    encryption: Option<String>,
    settings: Settings,
    /// The members of etcd with the new one, if Knarr runs etcd.
    pub initial_cluster: Option<String>,
}

/// Settings that must be the same on all servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    services: Vec<String>,
    cluster: BTreeMap<String, String>,
}

impl Bundle {
    /// Reads the shared files of this server.
    pub fn collect(this: &ThisServer, cluster: &Cluster) -> anyhow::Result<Self> {
        let pki = this.data.join("pki");
        let mut files = BTreeMap::new();
        for name in FILES {
            let path = pki.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => drop(files.insert(name.to_owned(), text)),
                // A cluster on an etcd of its own has no authority for etcd.
                Err(error)
                    if error.kind() == std::io::ErrorKind::NotFound && (name.starts_with("etcd/") || name == CROSS) => {
                }
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            }
        }
        let encryption = match &this.encryption {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                Some(text.with_context(|| format!("cannot read {}", path.display()))?)
            }
            None => None,
        };
        let settings = Settings { services: this.service_ranges.clone(), cluster: cluster.to_data() };
        Ok(Self { files, encryption, settings, initial_cluster: None })
    }

    /// Writes everything into the data directory of a new server. Files of another cluster are never replaced.
    pub fn install(&self, data: &Path) -> anyhow::Result<()> {
        let pki = data.join("pki");
        for (name, text) in &self.files {
            if !FILES.contains(&name.as_str()) {
                bail!("the server sent the unknown file {name}");
            }
            let path = pki.join(name);
            match std::fs::read_to_string(&path) {
                Ok(existing) if existing != *text => bail!(
                    "{} belongs to another cluster: use an empty data directory for a server that joins",
                    path.display()
                ),
                _ => write_private(&path, text.as_bytes())?,
            }
        }
        if let Some(encryption) = &self.encryption {
            write_private(&encryption_file(data), encryption.as_bytes())?;
        }
        write_private(&settings_file(data), serde_json::to_string_pretty(&self.settings)?.as_bytes())
    }
}

/// The settings of the cluster that a server has joined, which replace those of its flags.
pub struct SharedSettings {
    /// The networks of Services.
    pub service_ranges: Vec<String>,
    pub cluster: Cluster,
}

/// The settings of its cluster, if this server has joined one.
pub fn shared_settings(data: &Path) -> anyhow::Result<Option<SharedSettings>> {
    let path = settings_file(data);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let settings: Settings = serde_json::from_slice(&text).with_context(|| format!("{} is invalid", path.display()))?;
    let cluster = Cluster::from_data(&settings.cluster).with_context(|| format!("{} is invalid", path.display()))?;
    Ok(Some(SharedSettings { service_ranges: settings.services, cluster }))
}

/// The encryption configuration that this server has from others, if it has one.
pub fn received_encryption(data: &Path) -> Option<PathBuf> {
    Some(encryption_file(data)).filter(|path| path.exists())
}

fn settings_file(data: &Path) -> PathBuf {
    data.join("joined.json")
}

/// Where a server keeps the encryption configuration that it has from others.
pub fn encryption_file(data: &Path) -> PathBuf {
    data.join("encryption.yaml")
}

/// Whether this server has joined before.
pub fn has_joined(data: &Path) -> bool {
    settings_file(data).exists()
}

// Prints no contents, which are keys.
impl std::fmt::Debug for Bundle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Bundle").field("files", &self.files.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn bundle(authority: &str) -> Bundle {
        let cluster = Cluster { domain: "example.org".into(), ..Cluster::default() };
        Bundle {
            files: [("ca.crt".to_owned(), authority.to_owned()), ("etcd/ca.key".to_owned(), "key".to_owned())].into(),
            encryption: Some("kind: EncryptionConfiguration".to_owned()),
            settings: Settings { services: vec!["10.43.0.0/16".to_owned()], cluster: cluster.to_data() },
            initial_cluster: None,
        }
    }

    #[test]
    fn what_was_received_is_private_and_never_replaces_another_cluster() {
        let directory = tempfile::tempdir().unwrap();
        bundle("one").install(directory.path()).unwrap();
        bundle("one").install(directory.path()).unwrap();
        let mode = std::fs::metadata(directory.path().join("pki/etcd/ca.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = bundle("two").install(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("belongs to another cluster"), "{refused}");
        assert!(!format!("{:?}", bundle("secret")).contains("secret"));
        let mut outside = bundle("one");
        outside.files.insert("../../root".to_owned(), String::new());
        assert!(outside.install(directory.path()).is_err());
    }
}
