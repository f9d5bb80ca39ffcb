//! Files of the folder and what they hold.

use std::path::Path;

use anyhow::{Context as _, bail};
use knarr_client::kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

/// A file that counts as a manifest.
pub struct File {
    pub name: String,
    pub text: String,
}

#[derive(Debug)]
pub struct Manifest {
    pub objects: Vec<DynamicObject>,
}

/// All manifests of a folder by name. Hidden files, and those of editors, are none.
pub fn list(folder: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_manifest = [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending));
        if !is_manifest || name.starts_with('.') || !path.is_file() {
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => files.push(File { name, text }),
            // Gone since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(files)
}

impl Manifest {
    /// Documents of YAML or JSON, lists taken apart.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut objects = Vec::new();
        for (index, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
            let number = index + 1;
            let value = Value::deserialize(document).with_context(|| format!("document {number} is not YAML"))?;
            take(value, &mut objects).with_context(|| format!("document {number}"))?;
        }
        Ok(Manifest { objects })
    }
}

fn take(value: Value, objects: &mut Vec<DynamicObject>) -> anyhow::Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    if kind.is_empty() || value["apiVersion"].as_str().is_none_or(str::is_empty) {
        bail!("it lacks its kind or apiVersion");
    }
    if let (true, Value::Array(items)) = (kind.ends_with("List"), &value["items"]) {
        return items.iter().cloned().try_for_each(|item| take(item, objects));
    }
    if value["metadata"]["name"].as_str().is_none_or(str::is_empty) {
        bail!("the {kind} lacks a name");
    }
    objects.push(serde_json::from_value(value).with_context(|| format!("the {kind} has the wrong form"))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_taken_apart() {
        let text = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n# nothing\n---\napiVersion: v1\n\
            kind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n- {apiVersion: v1, kind: Secret, \
            metadata: {name: c}}\n";
        let manifest = Manifest::parse(text).unwrap();
        let names: Vec<_> = manifest.objects.iter().map(|object| object.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, reason) in [
            ("apiVersion: v1\nkind: Pod\n", "document 1: the Pod lacks a name"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nfoo: bar\n", "document 2: it lacks its kind"),
            ("a: [", "document 1 is not YAML"),
        ] {
            let error = format!("{:#}", Manifest::parse(text).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
    }
}
