//! The flags of commands that are clients of a cluster: which cluster, and as whom.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use knarr_client::kube::config::{KubeConfigOptions, Kubeconfig};
use knarr_client::kube::{Client, Config};

use super::common;

/// Selects the cluster of a command, as kubectl does.
#[derive(Args, Clone, Debug)]
pub struct ClientArguments {
    /// Kubeconfig file; by default that of the server on this host, or kubectl's where there is none.
    #[arg(long, global = true, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default the current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Data directory of the server on this host.
    #[arg(long, global = true, default_value = common::DATA)]
    pub data_dir: PathBuf,
}

impl ClientArguments {
    /// How to reach the cluster.
    pub async fn config(&self) -> anyhow::Result<Config> {
        let paths = match &self.kubeconfig {
            Some(given) => split(given.as_os_str()),
            None => vec![default_path(&self.data_dir, std::env::var_os("HOME").as_deref())],
        };
        let file = read(&paths)?;
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let config = Config::from_custom_kubeconfig(file, &options).await;
        config.with_context(|| format!("cannot use {}", list(&paths)))
    }

    /// The flags that select the same cluster in another command.
    pub fn flags(&self) -> Vec<String> {
        let kubeconfig = self.kubeconfig.iter().map(|path| format!("--kubeconfig={}", path.display()));
        kubeconfig.chain(self.context.iter().map(|context| format!("--context={context}"))).collect()
    }

    /// A client of the cluster.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(knarr_client::connect_with(self.config().await?, "knarr")?)
    }
}

/// The kubeconfig of the server with this data directory. On a host without a server, that of kubectl, to which `knarr
/// cluster` adds its contexts.
fn default_path(data: &Path, home: Option<&OsStr>) -> PathBuf {
    let own = common::kubeconfig(data);
    if own.exists() || data != Path::new(common::DATA) {
        return own;
    }
    home.map(|home| Path::new(home).join(".kube/config")).filter(|path| path.exists()).unwrap_or(own)
}

/// `KUBECONFIG` is a list of files.
fn split(given: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(given).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Merges files: what an earlier one says counts. Of several files, those that do not exist are ignored.
fn read(paths: &[PathBuf]) -> anyhow::Result<Kubeconfig> {
    let is_only = paths.len() == 1;
    let present = paths.iter().filter(|path| is_only || path.exists());
    let mut merged: Option<Kubeconfig> = None;
    for path in present {
        let next = read_one(path)?;
        merged = Some(match merged {
            Some(first) => first.merge(next).with_context(|| format!("cannot merge {}", path.display()))?,
            None => next,
        });
    }
    merged.with_context(|| format!("none of {} exists", list(paths)))
}

fn read_one(path: &Path) -> anyhow::Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| {
        format!(
            "cannot read {}: run this as root on the server, or select a file with --kubeconfig or KUBECONFIG",
            path.display()
        )
    })
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: &Path, name: &str) -> PathBuf {
        let text = format!(
            "{{clusters: [{{name: {name}, cluster: {{server: 'https://{name}:6443'}}}}], \
             users: [{{name: {name}, user: {{token: t}}}}], \
             contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}], current-context: {name}}}"
        );
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn without_a_server_the_file_of_kubectl_is_used() {
        let home = tempfile::tempdir().unwrap();
        let given = || Some(home.path().as_os_str());
        let (data, other) = (Path::new(common::DATA), home.path().join("data"));
        let own = common::kubeconfig(data);
        assert_eq!(default_path(data, None), own);
        assert_eq!(default_path(data, given()), own, "neither exists");
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        file(&home.path().join(".kube"), "config");
        let expected = if own.exists() { own } else { home.path().join(".kube/config") };
        assert_eq!(default_path(data, given()), expected);
        assert_eq!(default_path(&other, given()), common::kubeconfig(&other), "a server was named");
    }

    #[tokio::test]
    async fn files_are_merged_and_a_context_is_chosen_as_by_kubectl() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent");
        let paths = [file(directory.path(), "one"), absent.clone(), file(directory.path(), "two")];
        let joined = std::env::join_paths(&paths).unwrap();
        for (kubeconfig, context, host) in [
            (joined.clone(), None, Some("one")),
            (joined.clone(), Some("two"), Some("two")),
            (joined, Some("three"), None),
            (absent.into_os_string(), None, None),
        ] {
            let arguments = ClientArguments {
                kubeconfig: Some(kubeconfig.clone().into()),
                context: context.map(str::to_owned),
                data_dir: directory.path().to_owned(),
            };
            let found = arguments.config().await.ok().and_then(|config| config.cluster_url.host().map(str::to_owned));
            assert_eq!(found.as_deref(), host, "{kubeconfig:?} {context:?}");
        }
    }
}
