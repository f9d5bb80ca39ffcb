//! Reads manifest files.

use std::path::Path;

use anyhow::{Context as _, bail};
use knarr_client::kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

/// A manifest file.
pub struct File {
    pub name: String,
    pub text: String,
}

#[derive(Debug)]
pub struct Manifest {
    pub objects: Vec<DynamicObject>,
}

/// All manifests of a directory by name, without hidden files and editors' temporary files.
pub fn list(directory: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_manifest = [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending));
        if !is_manifest || name.starts_with('.') || !path.is_file() {
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => files.push(File { name, text }),
            // Deleted since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(files)
}

impl Manifest {
    /// Parses YAML or JSON documents, and flattens lists.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut objects = Vec::new();
        for (index, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
            let number = index + 1;
            let value = Value::deserialize(document).with_context(|| format!("document {number} is not valid YAML"))?;
            collect(value, &mut objects).with_context(|| format!("document {number}"))?;
        }
        Ok(Manifest { objects })
    }
}

fn collect(value: Value, objects: &mut Vec<DynamicObject>) -> anyhow::Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    if kind.is_empty() || value["apiVersion"].as_str().is_none_or(str::is_empty) {
        bail!("kind or apiVersion is missing");
    }
    if let (true, Value::Array(items)) = (kind.ends_with("List"), &value["items"]) {
        return items.iter().cloned().try_for_each(|item| collect(item, objects));
    }
    if value["metadata"]["name"].as_str().is_none_or(str::is_empty) {
        bail!("the {kind} has no name");
    }
    objects.push(serde_json::from_value(value).with_context(|| format!("the {kind} is invalid"))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_flattened() {
        let text = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n# nothing\n---\napiVersion: v1\n\
            kind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n- {apiVersion: v1, kind: Secret, \
            metadata: {name: c}}\n";
        let manifest = Manifest::parse(text).unwrap();
        let names: Vec<_> = manifest.objects.iter().map(|object| object.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn errors_name_their_document() {
        for (text, reason) in [
            ("apiVersion: v1\nkind: Pod\n", "document 1: the Pod has no name"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nfoo: bar\n",
                "document 2: kind or apiVersion is missing",
            ),
            ("a: [", "document 1 is not valid YAML"),
        ] {
            let error = format!("{:#}", Manifest::parse(text).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
    }
}
