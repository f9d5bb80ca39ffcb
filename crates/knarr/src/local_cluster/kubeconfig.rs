//! The contexts of clusters in a user's kubeconfig file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_yaml_ng::{Mapping, Value};

use super::spec::Spec;

/// The name of a cluster's context, cluster and user.
pub fn context_of(name: &str) -> String {
    format!("knarr-{name}")
}

/// The file that the first server writes.
pub fn path(spec: &Spec, directory: &Path) -> PathBuf {
    spec.data(directory, 1).join("kubeconfig.yaml")
}

/// The kubeconfig of a cluster, for those who reach its API server at an address.
pub fn read(spec: &Spec, directory: &Path, address: &str) -> anyhow::Result<Value> {
    let path = path(spec, directory);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    rename(&text, &context_of(&spec.name), address)
}

/// The kubeconfig of a cluster's server with another address and with names of its own.
fn rename(server: &str, context: &str, address: &str) -> anyhow::Result<Value> {
    let file: Value = serde_yaml_ng::from_str(server).context("cannot parse the server's kubeconfig")?;
    let first = |list: &str, item: &str| {
        let value = file.get(list).and_then(|list| list.get(0)).and_then(|entry| entry.get(item));
        value.cloned().with_context(|| format!("the server's kubeconfig has no {item}"))
    };
    let mut cluster = first("clusters", "cluster")?;
    if let Value::Mapping(fields) = &mut cluster {
        fields.insert("server".into(), address.into());
    }
    let user = first("users", "user")?;
    let entry = |item: &str, value: Value| {
        Value::Sequence(vec![Value::Mapping(Mapping::from_iter([
            ("name".into(), context.into()),
            (item.into(), value),
        ]))])
    };
    let context_value = Mapping::from_iter([("cluster".into(), context.into()), ("user".into(), context.into())]);
    Ok(Value::Mapping(Mapping::from_iter([
        ("apiVersion".into(), "v1".into()),
        ("kind".into(), "Config".into()),
        ("clusters".into(), entry("cluster", cluster)),
        ("users".into(), entry("user", user)),
        ("contexts".into(), entry("context", Value::Mapping(context_value))),
        ("current-context".into(), context.into()),
    ])))
}

const LISTS: [&str; 3] = ["clusters", "users", "contexts"];

/// A user's file with the entries of a cluster, which becomes the current context.
pub fn merge(existing: &str, added: &Value, context: &str) -> anyhow::Result<String> {
    let mut file = without(existing, context)?;
    for list in LISTS {
        let entries = added.get(list).and_then(Value::as_sequence).cloned().unwrap_or_default();
        let target = file.entry(list.into()).or_insert_with(|| Value::Sequence(Vec::new()));
        if target.is_null() {
            *target = Value::Sequence(Vec::new());
        }
        target.as_sequence_mut().with_context(|| format!("{list} is not a list"))?.extend(entries);
    }
    file.entry("apiVersion".into()).or_insert_with(|| "v1".into());
    file.entry("kind".into()).or_insert_with(|| "Config".into());
    file.insert("current-context".into(), context.into());
    Ok(serde_yaml_ng::to_string(&file)?)
}

/// A user's file without the entries of a cluster.
pub fn remove(existing: &str, context: &str) -> anyhow::Result<String> {
    Ok(serde_yaml_ng::to_string(&without(existing, context)?)?)
}

fn without(existing: &str, context: &str) -> anyhow::Result<Mapping> {
    let file: Value = serde_yaml_ng::from_str(existing)?;
    let mut file = match file {
        Value::Null => Mapping::new(),
        Value::Mapping(file) => file,
        _ => anyhow::bail!("not a kubeconfig"),
    };
    for list in LISTS {
        if let Some(Value::Sequence(entries)) = file.get_mut(list) {
            entries.retain(|entry| entry.get("name").and_then(Value::as_str) != Some(context));
        }
    }
    if file.get("current-context").and_then(Value::as_str) == Some(context) {
        file.insert("current-context".into(), "".into());
    }
    Ok(file)
}

/// Changes a user's file; a file that does not exist is empty. The new text replaces the old one at once, readable by the
/// user only.
pub fn change(path: &Path, change: impl FnOnce(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let existing = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let text = change(&existing).with_context(|| format!("cannot change {}", path.display()))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let file = tempfile::NamedTempFile::new_in(directory)?;
    std::fs::write(file.path(), text)?;
    file.as_file().sync_all()?;
    // A link, as some keep their file elsewhere, stays one.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    file.persist(&target).with_context(|| format!("cannot write {}", target.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "
apiVersion: v1
kind: Config
clusters: [{name: knarr, cluster: {server: 'https://127.0.0.1:6443', certificate-authority-data: Y2E=}}]
users: [{name: admin, user: {client-key-data: a2V5}}]
contexts: [{name: knarr, context: {cluster: knarr, user: admin}}]
current-context: knarr
";

    #[test]
    fn a_cluster_is_added_once_and_removed_again() {
        let own = rename(SERVER, "knarr-dev", "https://10.190.1.11:6443").unwrap();
        let theirs =
            "{clusters: [{name: work, cluster: {server: a}}], users: null, current-context: work, extra: kept}";
        let merged = merge(theirs, &own, "knarr-dev").unwrap();
        let again = merge(&merged, &own, "knarr-dev").unwrap();
        assert_eq!(merged, again);
        let file: Value = serde_yaml_ng::from_str(&merged).unwrap();
        assert_eq!(file["current-context"], "knarr-dev");
        assert_eq!(file["clusters"].as_sequence().unwrap().len(), 2);
        assert_eq!(file["clusters"][1]["cluster"]["server"], "https://10.190.1.11:6443");
        assert_eq!(file["users"][0]["user"]["client-key-data"], "a2V5");
        assert_eq!(file["extra"], "kept");
        let file: Value = serde_yaml_ng::from_str(&remove(&merged, "knarr-dev").unwrap()).unwrap();
        assert_eq!(file["clusters"].as_sequence().unwrap().len(), 1);
        assert_eq!(file["current-context"], "");
    }

    #[test]
    fn a_file_that_is_no_kubeconfig_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, "- a list").unwrap();
        assert!(change(&path, |text| remove(text, "knarr-dev")).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "- a list");
        let absent = directory.path().join("new/config");
        let own = rename(SERVER, "knarr-dev", "https://a").unwrap();
        change(&absent, |text| merge(text, &own, "knarr-dev")).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&absent).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
