//! Runs the Helm program of this host.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::process::Command;

use super::release::Release;

/// Helm ends by itself at its own timeout; this is for one that hangs.
const GRACE: Duration = Duration::from_secs(60);
/// The end of Helm's output that a message shows.
const MAX_MESSAGE: usize = 2000;

/// The Helm program, and where it keeps its files.
#[derive(Clone, Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    directory: PathBuf,
}

impl Helm {
    /// Finds Helm on the `PATH`.
    pub fn find(kubeconfig: &Path, directory: &Path) -> Option<Helm> {
        let path = std::env::var_os("PATH")?;
        let program = std::env::split_paths(&path).map(|below| below.join("helm")).find(|program| program.is_file())?;
        Some(Helm { program, kubeconfig: kubeconfig.to_owned(), directory: directory.to_owned() })
    }

    /// Installs or upgrades a release.
    pub async fn install(&self, release: &Release) -> anyhow::Result<()> {
        let state = self.state(release).await?;
        // Upgrading such a release would fail again, or find it locked by a process that has ended.
        if let Some("failed" | "pending-install" | "pending-upgrade" | "pending-rollback" | "uninstalling") =
            state.as_deref()
        {
            if !release.reinstalls {
                bail!("the release failed before, and its failure policy is to abort: remove it with `helm uninstall`");
            }
            self.remove(&release.name, &release.namespace).await?;
        }
        let work = tempfile::tempdir_in(&self.directory).context("cannot create a directory for the chart")?;
        for (name, content) in &release.files {
            std::fs::write(work.path().join(name), content).with_context(|| format!("cannot write {name}"))?;
        }
        self.run(&release.arguments, work.path(), release.timeout).await.map(drop)
    }

    /// Removes a release, if it exists.
    pub async fn remove(&self, name: &str, namespace: &str) -> anyhow::Result<()> {
        self.run(&Release::removal(name, namespace), &self.directory, Duration::from_secs(300)).await.map(drop)
    }

    /// The state of a release, if it exists.
    async fn state(&self, release: &Release) -> anyhow::Result<Option<String>> {
        // A dot in the name matches any character: the list may hold other releases.
        let filter = format!("--filter=^{}$", release.name);
        let namespace = format!("--namespace={}", release.namespace);
        let arguments = ["list", "--all", "--output=json", &filter, &namespace].map(str::to_owned);
        let text = self.run(&arguments, &self.directory, GRACE).await?;
        let list: Value = serde_json::from_str(&text).context("cannot parse Helm's list of releases")?;
        Ok(state_of(&list, &release.name))
    }

    /// Runs Helm to its end, within a time. It is killed when this future is dropped.
    async fn run(&self, arguments: &[String], work: &Path, timeout: Duration) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(work).stdin(Stdio::null()).kill_on_drop(true);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KUBECONFIG", &self.kubeconfig);
        for (variable, below) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data"), ("HOME", "")]
        {
            command.env(variable, self.directory.join(below));
        }
        let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];
        command.envs(proxies.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        let finished = tokio::time::timeout(timeout + GRACE, command.output()).await;
        let output = finished.with_context(|| format!("Helm did not end within {} s", (timeout + GRACE).as_secs()))?;
        let output = output.context("cannot run Helm")?;
        if !output.status.success() {
            bail!("{}", last_part(&String::from_utf8_lossy(&output.stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The state of one release in a list of them.
fn state_of(list: &Value, name: &str) -> Option<String> {
    let all = list.as_array()?;
    let own = all.iter().find(|release| release.get("name").and_then(Value::as_str) == Some(name))?;
    own.get("status")?.as_str().map(str::to_owned)
}

fn last_part(text: &str) -> String {
    let text = text.trim();
    let start = text.char_indices().rev().nth(MAX_MESSAGE - 1).map_or(0, |(index, _)| index);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_of_a_similar_name_is_another_one() {
        let list = serde_json::json!([{"name": "axb", "status": "failed"}, {"name": "a.b", "status": "deployed"}]);
        assert_eq!(state_of(&list, "a.b").as_deref(), Some("deployed"));
        assert_eq!(state_of(&list, "a"), None);
    }
}
