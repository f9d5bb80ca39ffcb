//! Kubeconfig files: their clusters, users and contexts, and the files that they name.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KubeconfigError {
    #[error("{0}: {1}")]
    File(PathBuf, String),
    #[error("{0}: no current-context, or it names no cluster")]
    NoCluster(PathBuf),
    #[error("{0}: {1:?} is no server URL")]
    Server(PathBuf, String),
    #[error("{0}: {1} is not supported here")]
    Unsupported(PathBuf, &'static str),
    #[error("{0}: invalid base64 in {1}")]
    Encoding(PathBuf, &'static str),
    #[error("{0}: {1}")]
    User(PathBuf, String),
}

/// A parsed file.
pub struct Kubeconfig {
    path: PathBuf,
    document: Value,
}

impl Kubeconfig {
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let unreadable = |error: String| KubeconfigError::File(path.to_owned(), error);
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        let document = decode::untyped_yaml(text.as_bytes()).map_err(|error| unreadable(error.to_string()))?.value;
        Ok(Kubeconfig { path: path.to_owned(), document })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cluster of the current context, or null.
    pub fn cluster(&self) -> &Value {
        self.named("clusters", self.context().text(&["cluster"]), "cluster")
    }

    /// The name of the user of the current context, and the user, or null.
    pub fn user(&self) -> (&str, &Value) {
        let name = self.context().text(&["user"]);
        (name, self.named("users", name, "user"))
    }

    /// All users by their names.
    pub fn users(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.document.items(&["users"]).iter().map(|entry| (entry.text(&["name"]), entry.at(&["user"])))
    }

    fn context(&self) -> &Value {
        self.named("contexts", self.document.text(&["current-context"]), "context")
    }

    fn named(&self, list: &str, name: &str, field: &str) -> &Value {
        let mut entries = self.document.items(&[list]).iter();
        entries.find(|entry| entry.text(&["name"]) == name).map_or(&Value::Null, |entry| entry.at(&[field]))
    }

    /// PEM given in place, or in a file whose path is relative to the kubeconfig.
    pub fn data(&self, of: &Value, file: &'static str, inline: &'static str) -> Result<String, KubeconfigError> {
        let given = of.text(&[inline]);
        if !given.is_empty() {
            let bytes = STANDARD.decode(given).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            return bytes.ok_or_else(|| KubeconfigError::Encoding(self.path.clone(), inline));
        }
        match of.text(&[file]) {
            "" => Ok(String::new()),
            named => {
                let named = self.beside(named);
                std::fs::read_to_string(&named).map_err(|error| KubeconfigError::File(named, error.to_string()))
            }
        }
    }

    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    pub fn beside(&self, named: &str) -> PathBuf {
        self.directory().join(named)
    }
}
