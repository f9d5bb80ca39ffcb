//! Persistent record of which file created which objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use knarr_client::kube::core::{DynamicObject, GroupVersionKind};
use serde::{Deserialize, Serialize};

/// The identity of an object in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ManifestObject {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl ManifestObject {
    pub fn of(object: &DynamicObject) -> Self {
        let types = object.types.clone().unwrap_or_default();
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        ManifestObject {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: types.kind,
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone().unwrap_or_default(),
        }
    }

    pub fn kind(&self) -> GroupVersionKind {
        GroupVersionKind::gvk(&self.group, &self.version, &self.kind)
    }
}

pub struct Record {
    path: PathBuf,
    made: BTreeMap<String, Vec<ManifestObject>>,
    /// Logged messages per file: retries do not log them again.
    logged: BTreeMap<String, BTreeSet<String>>,
}

impl Record {
    /// An unreadable record counts as empty: then objects that a file no longer contains are not deleted.
    pub fn open(path: &Path) -> Self {
        let made = match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "cannot read the record of manifests' objects");
                BTreeMap::new()
            }),
            Err(_) => BTreeMap::new(),
        };
        Record { path: path.to_owned(), made, logged: BTreeMap::new() }
    }

    /// Whether a message is new for a file since it last succeeded.
    pub fn is_new_message(&mut self, file: &str, message: &str) -> bool {
        self.logged.entry(file.to_owned()).or_default().insert(message.to_owned())
    }

    pub fn succeeded(&mut self, file: &str) {
        self.logged.remove(file);
    }

    pub fn files(&self) -> Vec<String> {
        self.made.keys().cloned().collect()
    }

    pub fn of(&self, file: &str) -> Vec<ManifestObject> {
        self.made.get(file).cloned().unwrap_or_default()
    }

    pub fn set(&mut self, file: &str, made: Vec<ManifestObject>) -> anyhow::Result<()> {
        if made.is_empty() {
            self.made.remove(file);
        } else {
            self.made.insert(file.to_owned(), made);
        }
        let text = serde_json::to_vec_pretty(&self.made)?;
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, text)
            .and_then(|()| knarr_files::rename_durably(&beside, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
