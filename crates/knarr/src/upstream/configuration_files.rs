//! The configuration files of the kubelet and the service proxy, with the kubelet's directory of drop-ins.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use knarr_component_flags::{Component, Given, configure, merge};
use serde_json::Value;

/// The flags with what the configuration files set, and warnings about their fields.
pub fn apply(mut given: Given) -> anyhow::Result<(Given, Vec<String>)> {
    let file = PathBuf::from(given.value("config"));
    let warnings = match given.component() {
        Component::Kubelet if given.is_given("config") || given.is_given("config-dir") => {
            let document = kubelet(&file, Path::new(&given.value("config-dir")))?;
            configure(&mut given, &document, true)
                .map_err(|error| anyhow!("{}, error failed to decode: {error}", kubelet_failure(&file)))?
        }
        // With a file, the flags of the proxy do not count.
        Component::Proxy if given.is_given("config") => {
            let document = read(&file).map_err(|error| anyhow!("failed complete: {error}"))?;
            configure(&mut given, &document, false).map_err(|error| anyhow!("failed complete: {error}"))?
        }
        _ => Vec::new(),
    };
    Ok((given, warnings))
}

/// The kubelet's file with its drop-ins merged over it, in the order of their names.
fn kubelet(file: &Path, directory: &Path) -> anyhow::Result<Value> {
    let load = |path: &Path| {
        read(path).map_err(|error| {
            anyhow!("{}, error failed to read kubelet config file {path:?}, error: {error}", kubelet_failure(path))
        })
    };
    let mut document = match file.as_os_str().is_empty() {
        true => serde_json::json!({"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}),
        false => load(file)?,
    };
    for path in drop_ins(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        merge(&mut document, load(&path)?);
    }
    Ok(document)
}

fn kubelet_failure(path: &Path) -> String {
    let path = path.display();
    format!("failed to load kubelet config file, path: {path}, error: failed to load Kubelet config file {path}")
}

/// The files of a directory and its subdirectories that end in `.conf`, by name.
fn drop_ins(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if directory.as_os_str().is_empty() {
        return Ok(found);
    }
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found.extend(drop_ins(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            found.push(path);
        }
    }
    Ok(found)
}

/// A YAML or JSON file; errors read like Go's.
fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!("open {}: no such file or directory", path.display()),
        io::ErrorKind::PermissionDenied => anyhow!("open {}: permission denied", path.display()),
        _ => anyhow!("open {}: {error}", path.display()),
    })?;
    serde_yaml_ng::from_str(&text).with_context(|| format!("{} is not YAML", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_component_flags::{CommandLine, parse};

    fn applied(component: Component, words: &[String]) -> anyhow::Result<Given> {
        match parse(component, words).unwrap() {
            CommandLine::Run(given) => apply(given).map(|(given, _)| given),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn drop_ins_take_precedence_over_the_file_and_flags_over_both() {
        let directory = tempfile::tempdir().unwrap();
        let head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("{head}{text}")).unwrap();
            path.display().to_string()
        };
        let file = write("kubelet.yaml", "maxPods: 10\nclusterDomain: a\nport: 1\nhealthzPort: 7\n");
        write("conf.d/20-more.conf", "clusterDomain: c\nport: 3\n");
        write("conf.d/10-some.conf", "clusterDomain: b\nmaxPods: 20\n");
        write("conf.d/30-other.yaml", "clusterDomain: d\n");
        let words = [
            format!("--config={file}"),
            format!("--config-dir={}", directory.path().join("conf.d").display()),
            "--port=4".to_owned(),
        ];
        let given = applied(Component::Kubelet, &words).unwrap();
        let values = ["max-pods", "cluster-domain", "port", "healthz-port"].map(|name| given.value(name));
        assert_eq!(values, ["20", "c", "4", "7"]);
    }

    #[test]
    fn missing_files_are_reported_as_kubernetes_reports_them() {
        let words = ["--config=/nonexistent".to_owned()];
        assert_eq!(
            applied(Component::Kubelet, &words).unwrap_err().to_string(),
            "failed to load kubelet config file, path: /nonexistent, error: failed to load Kubelet config file /nonexistent, \
             error failed to read kubelet config file \"/nonexistent\", error: open /nonexistent: no such file or directory"
        );
        assert_eq!(
            applied(Component::Proxy, &words).unwrap_err().to_string(),
            "failed complete: open /nonexistent: no such file or directory"
        );
    }
}
