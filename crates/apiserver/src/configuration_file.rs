//! Configuration files in the formats of Kubernetes: strict decoding, and reloading when they change.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;
use tokio::sync::watch;

/// How often a file is checked for changes.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a field of a configuration may hold.
#[derive(Clone, Copy)]
pub enum Shape {
    Text,
    Flag,
    Integer,
    /// Anything; checked by whoever reads it.
    Any,
    List(&'static Shape),
    Map(&'static Shape),
    Object(&'static [(&'static str, Shape)]),
}

/// A configuration kind: its group, versions and fields besides `apiVersion` and `kind`.
pub struct Kind {
    pub group: &'static str,
    pub versions: &'static [&'static str],
    pub kind: &'static str,
    pub fields: &'static [(&'static str, Shape)],
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, String),
    #[error("{0}")]
    Syntax(String),
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    #[error("strict decoding error: {0}")]
    Strict(String),
    #[error("{0}")]
    Type(String),
}

impl Kind {
    /// Reads YAML or JSON. Unknown and duplicate fields are errors: what they were meant to do would be missing.
    pub fn decode(&self, text: &str) -> Result<Value, FileError> {
        let decoded = decode::untyped_yaml(text.as_bytes()).map_err(|error| FileError::Syntax(error.to_string()))?;
        let mut problems: Vec<String> = decoded.problems.iter().map(ToString::to_string).collect();
        let value = decoded.value;
        self.check_kind(&value)?;
        let mut mistyped = Vec::new();
        for (name, field) in value.as_object().into_iter().flatten() {
            if name == "apiVersion" || name == "kind" {
                continue;
            }
            match self.fields.iter().find(|(own, _)| own == name) {
                None => problems.push(format!("unknown field {name:?}")),
                Some((_, shape)) => shape.check(name, field, &mut problems, &mut mistyped),
            }
        }
        if let Some(first) = mistyped.into_iter().next() {
            return Err(FileError::Type(first));
        }
        if problems.is_empty() { Ok(value) } else { Err(FileError::Strict(problems.join(", "))) }
    }

    fn check_kind(&self, value: &Value) -> Result<(), FileError> {
        let (version, kind) = (value.text(&["apiVersion"]), value.text(&["kind"]));
        if kind.is_empty() {
            return Err(FileError::Syntax("Object 'Kind' is missing".to_owned()));
        }
        if version.is_empty() {
            return Err(FileError::Syntax("Object 'apiVersion' is missing".to_owned()));
        }
        let own = version.split_once('/').filter(|(group, _)| *group == self.group);
        if kind == self.kind && own.is_some_and(|(_, version)| self.versions.contains(&version)) {
            return Ok(());
        }
        Err(FileError::Kind { kind: kind.to_owned(), version: version.to_owned() })
    }

    /// Reads a file.
    pub fn read(&self, path: &Path) -> Result<Value, FileError> {
        self.decode(&read(path)?)
    }
}

/// Reads a text file.
pub fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|error| FileError::Unreadable(path.to_owned(), error.to_string()))
}

impl Shape {
    fn check(&self, path: &str, value: &Value, problems: &mut Vec<String>, mistyped: &mut Vec<String>) {
        let mut wrong = |expected: &str| {
            let found = match value {
                Value::Null => "null",
                Value::Bool(_) => "bool",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            mistyped.push(format!("json: cannot unmarshal {found} into Go struct field .{path} of type {expected}"));
        };
        match (self, value) {
            (_, Value::Null) | (Shape::Any, _) => {}
            (Shape::Text, Value::String(_)) | (Shape::Flag, Value::Bool(_)) => {}
            (Shape::Integer, Value::Number(number)) if number.is_i64() => {}
            (Shape::Text, _) => wrong("string"),
            (Shape::Flag, _) => wrong("bool"),
            (Shape::Integer, _) => wrong("int32"),
            (Shape::List(item), Value::Array(items)) => {
                for (index, value) in items.iter().enumerate() {
                    item.check(&format!("{path}[{index}]"), value, problems, mistyped);
                }
            }
            (Shape::List(_), _) => wrong("[]"),
            (Shape::Map(item), Value::Object(entries)) => {
                for (key, value) in entries {
                    item.check(&format!("{path}.{key}"), value, problems, mistyped);
                }
            }
            (Shape::Map(_), _) => wrong("map"),
            (Shape::Object(fields), Value::Object(entries)) => {
                for (name, value) in entries {
                    let inner = format!("{path}.{name}");
                    match fields.iter().find(|(own, _)| own == name) {
                        None => problems.push(format!("unknown field {inner:?}")),
                        Some((_, shape)) => shape.check(&inner, value, problems, mistyped),
                    }
                }
            }
            (Shape::Object(_), _) => wrong("struct"),
        }
    }
}

/// A duration of a flag or configuration, such as `30s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = knarr_api::go_duration::parse(text)?;
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| format!("duration {text:?} is negative"))
}

/// Calls `changed` with the new contents whenever a file changes, until the server stops. Unreadable files are ignored:
/// a file may be missing for a moment while it is replaced.
pub async fn watch(
    path: PathBuf,
    mut known: String,
    mut stopping: watch::Receiver<bool>,
    mut changed: impl FnMut(&str),
) {
    let mut seen: Option<Fingerprint> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let Some(current) = Fingerprint::of(&path) else { continue };
        if seen.as_ref() == Some(&current) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        seen = Some(current);
        if text != known {
            changed(&text);
            known = text;
        }
    }
}

#[derive(PartialEq)]
struct Fingerprint {
    modified: SystemTime,
    length: u64,
    inode: u64,
}

impl Fingerprint {
    fn of(path: &Path) -> Option<Fingerprint> {
        let metadata = std::fs::metadata(path).ok()?;
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        Some(Fingerprint { modified: metadata.modified().ok()?, length: metadata.len(), inode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        group: "example.io",
        versions: &["v1"],
        kind: "Example",
        fields: &[("list", Shape::List(&Shape::Object(&[("name", Shape::Text), ("count", Shape::Integer)])))],
    };

    #[test]
    fn unknown_fields_kinds_and_types_are_refused() {
        let decode = |text: &str| KIND.decode(&format!("apiVersion: example.io/v1\nkind: Example\n{text}"));
        assert!(decode("list: [{name: a, count: 1}]").is_ok());
        let refused = |text: &str| decode(text).unwrap_err().to_string();
        assert_eq!(refused("list: [{nam: a}]"), "strict decoding error: unknown field \"list[0].nam\"");
        assert_eq!(refused("lists: []"), "strict decoding error: unknown field \"lists\"");
        assert!(refused("list: [{name: 1}]").starts_with("json: cannot unmarshal number into"));
        assert!(refused("list: {}").contains("cannot unmarshal object"));
        let other = KIND.decode("apiVersion: example.io/v2\nkind: Example\n").unwrap_err().to_string();
        assert_eq!(other, "no kind \"Example\" is registered for version \"example.io/v2\"");
        assert!(KIND.decode("{}").is_err() && KIND.decode("[").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let (stop, stopping) = watch::channel(false);
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let watching = tokio::spawn(watch(path.clone(), "one".to_owned(), stopping, move |text| {
            let _ = sender.send(text.to_owned());
        }));
        std::fs::write(directory.path().join("new"), "two").unwrap();
        std::fs::rename(directory.path().join("new"), &path).unwrap();
        assert_eq!(receiver.recv().await.as_deref(), Some("two"));
        stop.send_replace(true);
        watching.await.unwrap();
    }
}
