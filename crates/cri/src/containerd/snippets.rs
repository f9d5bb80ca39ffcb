//! Snippets of containerd's configuration, such as those that NVIDIA, gVisor and Kata document, merged into ours.
//!
//! containerd's own `imports` would replace whole sections, and a snippet may be written for another release: version 2 has
//! one CRI plugin, which version 3 divides into three.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::config::{CRI, Format};

/// A file of the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Snippet {
    pub path: PathBuf,
    pub content: Table,
}

/// Why a snippet cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnippetError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not TOML: {reason}")]
    Syntax { path: PathBuf, reason: String },
    #[error("{path} sets {key}, which Knarr sets itself")]
    Reserved { path: PathBuf, key: &'static str },
    #[error("{path} has version {version}; Knarr reads versions 2 and 3 of containerd's configuration")]
    Version { path: PathBuf, version: String },
}

const RUNTIME: &str = "io.containerd.cri.v1.runtime";
const IMAGES: &str = "io.containerd.cri.v1.images";

/// Keys of the CRI plugin of version 2 that stay in its place in version 3.
const STREAMING: [&str; 6] = [
    "disable_tcp_service",
    "enable_tls_streaming",
    "stream_idle_timeout",
    "stream_server_address",
    "stream_server_port",
    "x509_key_pair_streaming",
];
/// Keys that moved to the plugin of images.
const OF_IMAGES: [&str; 5] =
    ["image_decryption", "image_pull_progress_timeout", "max_concurrent_downloads", "registry", "stats_collect_period"];
/// Keys of the section `containerd` that moved there, too.
const OF_SNAPSHOTS: [&str; 3] = ["disable_snapshot_annotations", "discard_unpacked_layers", "snapshotter"];
/// Settings of our own process, as section and key: another value would separate it from us.
const RESERVED: [(&str, &str); 6] =
    [("root", ""), ("state", ""), ("imports", ""), ("grpc", "address"), ("ttrpc", "address"), ("plugin_dir", "")];

/// Reads the files of a directory that end in `.toml`, in the order of their names; none if there is no directory.
pub fn read_directory(directory: &Path) -> Result<Vec<Snippet>, SnippetError> {
    let unreadable = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SnippetError::Read { path, source }
    };
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(unreadable(directory))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable(directory))?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).map_err(unreadable(&path))?;
        parse(path, &text)
    };
    paths.into_iter().map(read).collect()
}

fn parse(path: PathBuf, text: &str) -> Result<Snippet, SnippetError> {
    let content: Table = text.parse().map_err(|error: toml::de::Error| {
        let reason = error.to_string().trim_end().replace('\n', " ");
        SnippetError::Syntax { path: path.clone(), reason }
    })?;
    for (section, key) in RESERVED {
        let found = content.get(section).filter(|value| key.is_empty() || value.get(key).is_some());
        if found.is_some() {
            let key = match section {
                "grpc" => "grpc.address",
                "ttrpc" => "ttrpc.address",
                other => other,
            };
            return Err(SnippetError::Reserved { path, key });
        }
    }
    match content.get("version") {
        None | Some(Value::Integer(2 | 3)) => Ok(Snippet { path, content }),
        Some(other) => Err(SnippetError::Version { path, version: other.to_string() }),
    }
}

/// Merges a snippet into a configuration of this format: tables key by key, everything else as a whole.
pub fn merge(all: &mut Table, snippet: &Snippet, format: Format) {
    let mut own = converted(snippet.content.clone(), format);
    own.remove("version");
    merge_tables(all, own);
}

fn merge_tables(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(known)), Value::Table(more)) => merge_tables(known, more),
            // Both say what not to load.
            (Some(Value::Array(known)), Value::Array(more)) if key == "disabled_plugins" => {
                let new: Vec<Value> = more.into_iter().filter(|name| !known.contains(name)).collect();
                known.extend(new);
            }
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// A configuration in this format. What is in it already stays as it is.
pub fn converted(mut all: Table, format: Format) -> Table {
    all.insert("version".into(), Value::from(format.number()));
    let Some(Value::Table(plugins)) = all.get_mut("plugins") else { return all };
    match format {
        Format::Version3 | Format::Version3WithBinDirs => divide(plugins),
        Format::Version2 => join(plugins),
    }
    all
}

fn section<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Table> {
    table.entry(key.to_owned()).or_insert_with(|| Value::Table(Table::new())).as_table_mut()
}

fn put(table: &mut Table, key: &str, value: Value) {
    merge_tables(table, Table::from_iter([(key.to_owned(), value)]));
}

/// Divides the CRI plugin of version 2.
fn divide(plugins: &mut Table) {
    let Some(Value::Table(cri)) = plugins.remove(CRI) else { return };
    let (mut streaming, mut images, mut runtime) = (Table::new(), Table::new(), Table::new());
    for (key, value) in cri {
        match (key.as_str(), value) {
            (key, value) if STREAMING.contains(&key) => put(&mut streaming, key, value),
            (key, value) if OF_IMAGES.contains(&key) => put(&mut images, key, value),
            ("sandbox_image", value) => {
                put(&mut images, "pinned_images", Value::Table(Table::from_iter([("sandbox".to_owned(), value)])));
            }
            ("containerd", Value::Table(mut containerd)) => {
                for key in OF_SNAPSHOTS {
                    if let Some(value) = containerd.remove(key) {
                        put(&mut images, key, value);
                    }
                }
                put(&mut runtime, "containerd", Value::Table(containerd));
            }
            (key, value) => put(&mut runtime, key, value),
        }
    }
    for (name, part) in [(CRI, streaming), (IMAGES, images), (RUNTIME, runtime)] {
        if let Some(known) = (!part.is_empty()).then(|| section(plugins, name)).flatten() {
            merge_tables(known, part);
        }
    }
}

/// Joins the plugins of version 3 to the one of version 2.
fn join(plugins: &mut Table) {
    let images = plugins.remove(IMAGES);
    let runtime = plugins.remove(RUNTIME);
    if images.is_none() && runtime.is_none() {
        return;
    }
    let Some(cri) = section(plugins, CRI) else { return };
    if let Some(Value::Table(runtime)) = runtime {
        merge_tables(cri, runtime);
    }
    let Some(Value::Table(images)) = images else { return };
    for (key, value) in images {
        match (key.as_str(), value) {
            ("pinned_images", Value::Table(mut pinned)) => {
                if let Some(value) = pinned.remove("sandbox") {
                    put(cri, "sandbox_image", value);
                }
            }
            (key, value) if OF_SNAPSHOTS.contains(&key) => {
                put(cri, "containerd", Value::Table(Table::from_iter([(key.to_owned(), value)])));
            }
            (key, value) => put(cri, key, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containerd::config::tests::{at, config};
    use crate::containerd::render;

    const NVIDIA: &str = r#"
        version = 2
        [plugins."io.containerd.grpc.v1.cri".containerd]
          default_runtime_name = "nvidia"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
          BinaryName = "/usr/bin/nvidia-container-runtime"
    "#;
    const GVISOR: &str = r#"
        version = 3
        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc]
          runtime_type = "io.containerd.runsc.v1"
    "#;
    const KATA: &str = r#"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
          runtime_type = "io.containerd.kata.v2"
          privileged_without_host_devices = true
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata.options]
          ConfigPath = "/opt/kata/share/defaults/kata-containers/configuration.toml"
    "#;

    #[test]
    fn handlers_of_snippets_are_in_both_formats() {
        let snippets = [("a.toml", NVIDIA), ("b.toml", GVISOR), ("c.toml", KATA)]
            .map(|(name, text)| parse(PathBuf::from(name), text).expect("valid"));
        let config = crate::containerd::ContainerdConfig { snippets: snippets.to_vec(), ..config() };
        for (format, plugin) in [(Format::Version2, CRI), (Format::Version3, RUNTIME)] {
            let file = render(&config, format);
            for (handler, kind) in [
                ("runc", "io.containerd.runc.v2"),
                ("nvidia", "io.containerd.runc.v2"),
                ("runsc", "io.containerd.runsc.v1"),
                ("kata", "io.containerd.kata.v2"),
            ] {
                let found = at(&file, &["plugins", plugin, "containerd", "runtimes", handler, "runtime_type"]);
                assert_eq!(found, Some(kind.into()), "{handler} in\n{file}");
            }
            let default = at(&file, &["plugins", plugin, "containerd", "default_runtime_name"]);
            assert_eq!(default, Some("nvidia".into()), "{file}");
            assert_eq!(at(&file, &["version"]), Some(format.number().into()));
        }
    }

    #[test]
    fn a_conversion_there_and_back_loses_nothing() {
        let file = render(&config(), Format::Version2);
        let two: Table = file.parse().expect("TOML");
        let three = converted(two.clone(), Format::Version3);
        assert_ne!(two, three);
        assert_eq!(converted(three.clone(), Format::Version2), two);
        assert_eq!(converted(three.clone(), Format::Version3), three);
    }

    #[test]
    fn wrong_snippets_are_refused() {
        for (text, expected) in [
            ("root = '/x'", "a.toml sets root, which Knarr sets itself"),
            ("[grpc]\naddress = '/x'", "a.toml sets grpc.address, which Knarr sets itself"),
            ("imports = []", "a.toml sets imports, which Knarr sets itself"),
            ("version = 1", "a.toml has version 1; Knarr reads versions 2 and 3 of containerd's configuration"),
        ] {
            let error = parse(PathBuf::from("a.toml"), text).expect_err(text);
            assert_eq!(error.to_string(), expected);
        }
        let error = parse(PathBuf::from("a.toml"), "[a\nb").expect_err("no TOML").to_string();
        assert!(error.starts_with("a.toml is not TOML: TOML parse error at line 1"), "{error}");
        assert!(parse(PathBuf::from("a.toml"), "[grpc]\nmax_recv_message_size = 1").is_ok());
    }

    #[test]
    fn only_files_of_that_ending_are_read_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(read_directory(&directory.path().join("none")).expect("none"), []);
        for name in ["20.toml", "10.toml", "30.toml.bak"] {
            std::fs::write(directory.path().join(name), "oom_score = 1").expect("written");
        }
        let found = read_directory(directory.path()).expect("read");
        let names: Vec<_> = found.iter().filter_map(|one| one.path.file_name()?.to_str()).collect();
        assert_eq!(names, ["10.toml", "20.toml"]);
        std::fs::write(directory.path().join("40.toml"), "=").expect("written");
        assert!(read_directory(directory.path()).is_err());
    }
}
