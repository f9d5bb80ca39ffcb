//! Which file made which objects, kept over restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use knarr_client::kube::core::{DynamicObject, GroupVersionKind};
use serde::{Deserialize, Serialize};

/// One object of the cluster by all that names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Made {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl Made {
    pub fn of(object: &DynamicObject) -> Self {
        let types = object.types.clone().unwrap_or_default();
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        Made {
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
    made: BTreeMap<String, Vec<Made>>,
    /// What was said of each file: it is tried again and again, and need not be said each time.
    said: BTreeMap<String, BTreeSet<String>>,
}

impl Record {
    /// One that cannot be read counts as empty: then nothing is deleted that a file no longer names.
    pub fn open(path: &Path) -> Self {
        let made = match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "it is unknown what manifests have made");
                BTreeMap::new()
            }),
            Err(_) => BTreeMap::new(),
        };
        Record { path: path.to_owned(), made, said: BTreeMap::new() }
    }

    /// Whether something is said of a file for the first time since it last succeeded.
    pub fn is_news(&mut self, file: &str, complaint: &str) -> bool {
        self.said.entry(file.to_owned()).or_default().insert(complaint.to_owned())
    }

    pub fn succeeded(&mut self, file: &str) {
        self.said.remove(file);
    }

    pub fn files(&self) -> Vec<String> {
        self.made.keys().cloned().collect()
    }

    pub fn of(&self, file: &str) -> Vec<Made> {
        self.made.get(file).cloned().unwrap_or_default()
    }

    pub fn set(&mut self, file: &str, made: Vec<Made>) -> anyhow::Result<()> {
        if made.is_empty() {
            self.made.remove(file);
        } else {
            self.made.insert(file.to_owned(), made);
        }
        let text = serde_json::to_vec_pretty(&self.made)?;
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
