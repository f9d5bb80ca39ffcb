//! The processes of a cluster's nodes. They go on when the command that started them ends.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::spec::Spec;
use crate::data_directory_lock;

const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// This program in the network of a node.
fn knarr(spec: &Spec, directory: &Path, number: u8) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", spec.namespace(number))).arg("--").arg(program).stdin(Stdio::null());
    // The settings of a Knarr on this host itself are not those of the cluster.
    command.env("KNARR_CONFIG", settings_path(directory, false)).env_remove("KUBECONFIG");
    Ok(command)
}

/// The configuration file of the server, or of the agents.
pub fn settings_path(directory: &Path, is_server: bool) -> PathBuf {
    directory.join(if is_server { "server.yaml" } else { "agent.yaml" })
}

/// The log of a node.
pub fn log_path(spec: &Spec, directory: &Path, number: u8) -> PathBuf {
    directory.join(format!("{}.log", spec.node_name(number)))
}

/// How a node joins.
pub struct Join {
    server: String,
    token: String,
}

/// Starts a node. Its process group is its own, so that the terminal's signals do not reach it.
pub fn start(spec: &Spec, directory: &Path, number: u8, join: Option<&Join>) -> anyhow::Result<Child> {
    let log = log_path(spec, directory, number);
    let log = File::options().create(true).append(true).open(&log).with_context(|| log.display().to_string())?;
    let mut command = command(spec, directory, number, join)?;
    command.stdout(log.try_clone()?).stderr(log).process_group(0);
    command.spawn().with_context(|| format!("cannot start {}", spec.node_name(number)))
}

/// The command of a node. The token is no argument: every user of the host sees those, and reaches the API server.
fn command(spec: &Spec, directory: &Path, number: u8, join: Option<&Join>) -> anyhow::Result<Command> {
    let mut command = knarr(spec, directory, number)?;
    command.args(spec.arguments(directory, number));
    if let Some(join) = join {
        command.args(["--server", &join.server]).env("KNARR_TOKEN", &join.token);
    }
    command.env("KNARR_CONFIG", settings_path(directory, spec.is_server(number)));
    Ok(command)
}

/// Creates a token that joins a server or an agent: its role says which.
pub fn join(spec: &Spec, directory: &Path, role: &str) -> anyhow::Result<Join> {
    let data = spec.data(directory, 1);
    let mut command = knarr(spec, directory, 1)?;
    command.args(["token", "create", "--print-join-command", "--role", role, "--ttl", "1h", "--data-dir"]).arg(data);
    let printed = output(&mut command)?;
    parse_join(&printed).context("cannot read the command that joins a node")
}

/// Reads `knarr agent --server URL --token TOKEN`.
fn parse_join(printed: &str) -> Option<Join> {
    let words: Vec<&str> = printed.split_whitespace().collect();
    let after = |flag: &str| words.iter().skip_while(|word| **word != flag).nth(1).map(|value| (*value).to_owned());
    Some(Join { server: after("--server")?, token: after("--token")? })
}

/// Whether a server has joined before: then it needs no token.
pub fn has_joined(spec: &Spec, directory: &Path, number: u8) -> bool {
    spec.data(directory, number).join("kubeconfig.yaml").exists()
}

/// Configures the cluster's registry in a node's container runtime. Images have the same name everywhere:
/// `localhost:PORT/name`, where PORT is that of this host.
pub fn write_registry(spec: &Spec, directory: &Path, number: u8) -> anyhow::Result<()> {
    let Some(port) = spec.registry else { return Ok(()) };
    let host = spec.data(directory, number).join("containerd/registries").join(format!("localhost:{port}"));
    std::fs::create_dir_all(&host).with_context(|| format!("cannot create {}", host.display()))?;
    let address = format!("http://{}", spec.registry_address());
    let text = format!("server = \"{address}\"\n\n[host.\"{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
    std::fs::write(host.join("hosts.toml"), text).with_context(|| format!("cannot write below {}", host.display()))
}

/// Stops a node's process; its pods keep running. Returns whether it ran.
pub fn stop(spec: &Spec, directory: &Path, number: u8) -> anyhow::Result<bool> {
    let data = spec.data(directory, number);
    if !data.exists() {
        return Ok(false);
    }
    data_directory_lock::stop(&data, STOP_TIMEOUT)
}

/// Removes a node with its pods and its data.
pub fn remove(spec: &Spec, directory: &Path, number: u8, keep_data: bool) -> anyhow::Result<()> {
    let data = spec.data(directory, number);
    if !data.exists() {
        return Ok(());
    }
    let mut command = knarr(spec, directory, number)?;
    command.args(["uninstall", "--yes", "--cgroup-root", &spec.cgroup_root(number), "--data-dir"]).arg(data);
    if keep_data {
        command.arg("--keep-data");
    }
    output(&mut command).map(drop)
}

/// Imports an archive of images.
pub fn load(spec: &Spec, directory: &Path, number: u8, archive: &Path) -> anyhow::Result<String> {
    let mut command = knarr(spec, directory, number)?;
    command.args(["images", "import", "--data-dir"]).arg(spec.data(directory, number)).arg(archive);
    output(&mut command)
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_of_the_host_see_no_token() {
        let join = parse_join("knarr server --server https://10.190.7.11:6443 --token abcdef.secret.hash\n").unwrap();
        let spec: Spec = serde_json::from_value(serde_json::json!({
            "name": "dev", "nodes": 3, "servers": 2, "network": 7, "isOffline": false,
        }))
        .unwrap();
        for number in [2, 3] {
            let command = command(&spec, Path::new("/c/dev"), number, Some(&join)).unwrap();
            let arguments: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            assert!(!arguments.join(" ").contains("secret"), "{arguments:?}");
            assert_eq!(arguments[arguments.len() - 2..], ["--server", "https://10.190.7.11:6443"]);
            let token = command.get_envs().find(|(name, _)| *name == "KNARR_TOKEN").unwrap().1.unwrap();
            assert_eq!(token, "abcdef.secret.hash");
        }
        assert!(parse_join("knarr agent --server").is_none());
    }
}
