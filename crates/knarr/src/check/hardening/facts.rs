//! Collects what the controls are evaluated on. What cannot be read is left out; the controls say so.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use knarr_network::protocol::Protocol;
use nix::unistd::Pid;

use super::{ClusterFacts, Facts, FileFacts, Version};
use crate::{admin_client, configuration, data_directory_lock, paths};

/// How long the cluster may take to list its objects.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(10);

const SYSCTLS: [&str; 5] =
    ["kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "kernel/kptr_restrict", "fs/suid_dumpable"];

/// Collects the facts of a host whose role is `server` or `agent`.
pub async fn collect(data: &Path, role: &str, command: clap::Command) -> anyhow::Result<Facts> {
    let pid = data_directory_lock::find(data)?;
    let settings = settings(role, command, pid.map(command_line).unwrap_or_default())?;
    let is_server = role == "server";
    let is_node = !settings.get("disable-agent").is_some_and(|values| values.iter().any(|value| value == "true"));
    let first = |name: &str| settings.get(name).and_then(|values| values.first()).map(PathBuf::from);
    let encryption = first("encryption-provider-config");
    let audit_policy = first("audit-policy-file");
    let mut paths = interesting(data);
    paths.extend(
        [&encryption, &audit_policy, &first("audit-log-path"), &first("token-file")].into_iter().flatten().cloned(),
    );
    paths.extend(["etcd-keyfile", "pod-manifest-path", "cni-conf-dir"].into_iter().filter_map(first));
    let files: BTreeMap<PathBuf, FileFacts> =
        paths.into_iter().filter_map(|path| file_facts(&path).map(|facts| (path, facts))).collect();
    let certificate_groups = files.keys().filter_map(|path| Some((path.clone(), groups(path)?))).collect();
    Ok(Facts {
        data: data.to_owned(),
        is_server,
        is_node,
        files,
        encryption: encryption
            .and_then(|path| std::fs::read_to_string(path).ok())
            .map(|text| providers(&text))
            .unwrap_or_default(),
        audit_levels: audit_policy
            .and_then(|path| std::fs::read_to_string(path).ok())
            .map(|text| levels(&text))
            .unwrap_or_default(),
        settings,
        listening: listening(),
        containerd: version("containerd"),
        runc: version("runc"),
        sysctls: SYSCTLS.into_iter().filter_map(|name| Some((name, sysctl(name)?))).collect(),
        core_limit: pid.and_then(core_limit),
        certificate_groups,
        cluster: if is_server { cluster(data).await } else { None },
    })
}

/// The flags of the running process, or of the configuration file.
fn settings(
    role: &str,
    command: clap::Command,
    running: Vec<OsString>,
) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let typed = if running.len() > 1 { running } else { ["knarr", role].map(OsString::from).into() };
    let command = command.mut_subcommand(role, |reader| reader.mut_args(|argument| argument.required(false)));
    let merged = configuration::with_file(typed, &command)?;
    // Controls that hold by default would seem to hold if the settings were left out.
    let matches = command
        .clone()
        .try_get_matches_from(merged.words)
        .map_err(|error| configuration::without_secret(error, &command))
        .context("cannot read the settings of the server or agent")?;
    let (Some((name, matches)), Some(reader)) = (matches.subcommand(), command.find_subcommand(role)) else {
        anyhow::bail!("{role} is not the role of the running process");
    };
    let arguments = reader.get_arguments().filter(|_| name == role);
    let values = arguments.filter_map(|argument| {
        let raw = matches.get_raw(argument.get_id().as_str())?;
        let values: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
        Some((argument.get_long()?.to_owned(), values))
    });
    Ok(values.collect())
}

fn command_line(pid: Pid) -> Vec<OsString> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Files and directories of Knarr that hold secrets or decide what runs.
fn interesting(data: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        ["", "pki", "store", "manifests", "kubelet", "pods", "containerd", "cni", "cni/net.d", "kubeconfig.yaml"]
            .into_iter()
            .map(|name| if name.is_empty() { data.to_owned() } else { data.join(name) })
            .collect();
    all.extend([paths::CONFIGURATION, configuration::FILE].map(PathBuf::from));
    all.push(paths::kubeconfig(data));
    all.push("/etc/systemd/system/knarr.service".into());
    for directory in ["pki", "kubelet/pki", "cni/net.d", "manifests", "store"] {
        let entries = std::fs::read_dir(data.join(directory)).into_iter().flatten().flatten();
        all.extend(entries.map(|entry| entry.path()));
    }
    all
}

fn file_facts(path: &Path) -> Option<FileFacts> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(FileFacts {
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        is_directory: metadata.is_dir(),
    })
}

/// The groups that a client certificate stands for.
fn groups(path: &Path) -> Option<Vec<String>> {
    if path.extension().is_none_or(|extension| extension != "crt" && extension != "pem") {
        return None;
    }
    let (_, pem) = x509_parser::pem::parse_x509_pem(&std::fs::read(path).ok()?).ok()?;
    Some(knarr_identity::of_certificate(&pem.contents).ok()?.groups)
}

/// The names of the providers in the first rule of an EncryptionConfiguration that covers Secrets, in order.
pub(super) fn providers(text: &str) -> Vec<String> {
    let document: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).unwrap_or_default();
    let rules = document["resources"].as_sequence().cloned().unwrap_or_default();
    let covers = |rule: &serde_yaml_ng::Value| {
        let resources = rule["resources"].as_sequence().cloned().unwrap_or_default();
        resources.iter().any(|name| matches!(name.as_str(), Some("secrets" | "*." | "*.*")))
    };
    let rule = rules.iter().find(|rule| covers(rule));
    let providers = rule.and_then(|rule| rule["providers"].as_sequence().cloned()).unwrap_or_default();
    let names =
        providers.iter().filter_map(|provider| provider.as_mapping()?.keys().next()?.as_str().map(str::to_owned));
    names.collect()
}

/// The levels of an audit policy's rules.
pub(super) fn levels(text: &str) -> BTreeSet<String> {
    let document: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).unwrap_or_default();
    let rules = document["rules"].as_sequence().cloned().unwrap_or_default();
    rules.iter().filter_map(|rule| rule["level"].as_str().map(str::to_owned)).collect()
}

fn listening() -> BTreeMap<u16, bool> {
    let mut found = BTreeMap::new();
    for (protocol, address, port) in knarr_network::listening::all() {
        if protocol == Protocol::Tcp {
            *found.entry(port).or_default() |= !address.to_canonical().is_loopback();
        }
    }
    found
}

fn version(program: &str) -> Option<Version> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Version::find(&String::from_utf8_lossy(&output.stdout))
}

fn sysctl(name: &str) -> Option<String> {
    Some(std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().to_owned())
}

fn core_limit(pid: Pid) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Max core file size"))?;
    line.split_whitespace().nth(4).map(str::to_owned)
}

async fn cluster(data: &Path) -> Option<ClusterFacts> {
    let client = admin_client::connect(&paths::kubeconfig(data)).await.ok()?;
    tokio::time::timeout(CLUSTER_TIMEOUT, ClusterFacts::read(client)).await.ok()?.ok()
}
