//! Runs the Helm program of this host.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::process::Command;

use super::access::{REGISTRIES_FILE, REPOSITORIES_FILE, REPOSITORY};
use super::release::{FailurePolicy, Release};

/// How much longer than its own timeout Helm may run before it is killed.
const GRACE: Duration = Duration::from_secs(60);
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(300);
/// How much of the end of Helm's output a message contains.
const MAX_MESSAGE: usize = 2000;
/// Where a chart's own list of repositories is cached, below the directory of its files.
const REPOSITORY_CACHE: &str = "repositories";

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
        let work = tempfile::tempdir_in(&self.directory).context("cannot create a directory for the chart")?;
        for file in &release.files {
            std::fs::write(work.path().join(&file.name), &file.content)
                .with_context(|| format!("cannot write {}", file.name))?;
        }
        let call = Call { work: work.path(), driver: &release.driver, timeout: release.timeout };
        if release.has_file(REPOSITORIES_FILE) {
            self.update_repository(&call).await?;
        }
        match next_step(self.state(release).await?.as_deref(), release.failure_policy) {
            Step::Upgrade => {}
            Step::Reinstall => self.remove(&release.name, &release.namespace, &release.driver).await?,
            Step::Rollback => self.run(&release.rollback(), &call).await.map(drop)?,
            Step::Refuse => {
                bail!("the release failed before, and its failure policy is to abort: remove it with `helm uninstall`")
            }
        }
        self.run(&release.arguments, &call).await.map(drop)
    }

    /// Removes a release, if it exists.
    pub async fn remove(&self, name: &str, namespace: &str, driver: &str) -> anyhow::Result<()> {
        let call = Call { work: &self.directory, driver, timeout: REMOVAL_TIMEOUT };
        self.run(&Release::removal(name, namespace), &call).await.map(drop)
    }

    /// The state of a release, if it exists.
    async fn state(&self, release: &Release) -> anyhow::Result<Option<String>> {
        let call = Call { work: &self.directory, driver: &release.driver, timeout: GRACE };
        let text = self.run(&release.listing(), &call).await?;
        let list: Value = serde_json::from_str(&text).context("cannot parse Helm's list of releases")?;
        Ok(state_of(&list, &release.name))
    }

    /// Gets the index of the repository whose credentials are in Helm's list.
    async fn update_repository(&self, call: &Call<'_>) -> anyhow::Result<()> {
        let output = self.run(&["repo".to_owned(), "update".to_owned()], call).await?;
        // Helm 3 exits with success even if this failed, and prints the reason.
        if !call.work.join(REPOSITORY_CACHE).join(format!("{REPOSITORY}-index.yaml")).exists() {
            bail!("{}", last_part(&output));
        }
        Ok(())
    }

    /// Runs Helm with a timeout. It is killed when this future is dropped.
    async fn run(&self, arguments: &[String], call: &Call<'_>) -> anyhow::Result<String> {
        let mut command = self.command(call);
        command.args(arguments);
        let timeout = call.timeout + GRACE;
        let finished = tokio::time::timeout(timeout, command.output()).await;
        let output = finished.with_context(|| format!("Helm did not end within {} s", timeout.as_secs()))?;
        let output = output.context("cannot run Helm")?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            // Where it failed to get something, Helm prints why beside its progress.
            let reason = if printed.contains("Unable to get an update") { printed.trim() } else { "" };
            bail!("{}", last_part(&format!("{reason}\n{}", String::from_utf8_lossy(&output.stderr))));
        }
        Ok(printed)
    }

    /// The command of Helm, with directories of its own and only the proxy settings of this process's environment.
    fn command(&self, call: &Call<'_>) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(call.work).stdin(Stdio::null()).kill_on_drop(true);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KUBECONFIG", &self.kubeconfig);
        for (variable, below) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data"), ("HOME", "")]
        {
            command.env(variable, self.directory.join(below));
        }
        if !call.driver.is_empty() {
            command.env("HELM_DRIVER", call.driver);
        }
        if call.work.join(REGISTRIES_FILE).exists() {
            command.env("HELM_REGISTRY_CONFIG", call.work.join(REGISTRIES_FILE));
        }
        if call.work.join(REPOSITORIES_FILE).exists() {
            command.env("HELM_REPOSITORY_CONFIG", call.work.join(REPOSITORIES_FILE));
            command.env("HELM_REPOSITORY_CACHE", call.work.join(REPOSITORY_CACHE));
        }
        let proxies = ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
        let proxies = proxies.into_iter().flat_map(|name| [name.to_owned(), name.to_ascii_lowercase()]);
        command.envs(proxies.filter_map(|name| std::env::var_os(&name).map(|value| (name, value))));
        command
    }
}

/// The settings of a run of Helm.
struct Call<'a> {
    /// The directory with the chart's files.
    work: &'a Path,
    driver: &'a str,
    timeout: Duration,
}

/// The step before the upgrade of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Upgrade,
    /// Rolls back to the previous revision. A process that was killed during an upgrade leaves the release locked.
    Rollback,
    Reinstall,
    Refuse,
}

fn next_step(state: Option<&str>, policy: FailurePolicy) -> Step {
    match (state, policy) {
        (None | Some("deployed" | "uninstalled"), _) => Step::Upgrade,
        (Some("pending-upgrade" | "pending-rollback"), _) => Step::Rollback,
        (Some(_), FailurePolicy::Abort) => Step::Refuse,
        (Some("failed"), FailurePolicy::Retry) => Step::Upgrade,
        (Some(_), _) => Step::Reinstall,
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

    #[test]
    fn a_failed_release_is_treated_by_its_policy() {
        use FailurePolicy::{Abort, Reinstall, Retry};
        for (state, policy, step) in [
            (None, Abort, Step::Upgrade),
            (Some("deployed"), Reinstall, Step::Upgrade),
            (Some("failed"), Reinstall, Step::Reinstall),
            (Some("failed"), Abort, Step::Refuse),
            (Some("failed"), Retry, Step::Upgrade),
            (Some("pending-install"), Retry, Step::Reinstall),
            (Some("pending-upgrade"), Abort, Step::Rollback),
            (Some("pending-upgrade"), Reinstall, Step::Rollback),
        ] {
            assert_eq!(next_step(state, policy), step, "{state:?} {policy:?}");
        }
    }
}
