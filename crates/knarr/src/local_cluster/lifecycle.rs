//! Creating, starting, stopping and deleting clusters.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use knarr_client::k8s_openapi::api::core::v1::Node;
use knarr_client::kube::{Api, api::ListParams};
use nix::fcntl::{Flock, FlockArg};

use super::directory::{check_own, create_private};
use super::kubeconfig::{self, context_of};
use super::node::Join;
use super::spec::{self, Spec};
use super::{network, node, ports};
use crate::data_directory_lock;

const FILE: &str = "cluster.json";
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reports what a long command does.
pub type Progress<'a> = &'a dyn Fn(&str);

/// The clusters below a directory.
pub struct Clusters {
    directory: PathBuf,
    /// The user's file, to which contexts are added.
    kubeconfig: PathBuf,
}

/// The configuration files of a cluster's nodes.
pub struct Settings {
    pub server: String,
    pub agent: String,
}

/// A cluster as `list` shows it.
pub struct Listed {
    pub spec: Spec,
    pub running: usize,
}

impl Clusters {
    pub fn new(directory: PathBuf, kubeconfig: PathBuf) -> Clusters {
        Clusters { directory, kubeconfig }
    }

    pub fn directory_of(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The specification of an existing cluster.
    pub fn read(&self, name: &str) -> anyhow::Result<Spec> {
        spec::validate_name(name)?;
        let path = self.directory_of(name).join(FILE);
        for directory in [self.directory.clone(), self.directory_of(name)] {
            if directory.exists() {
                check_own(&directory)?;
            }
        }
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!("there is no cluster {name:?}"),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))
    }

    /// All clusters by name.
    pub fn list(&self) -> anyhow::Result<Vec<Listed>> {
        let entries = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot read {}", self.directory.display()))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.path().join(FILE).exists() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        let listed = names.iter().map(|name| {
            let spec = self.read(name)?;
            let directory = self.directory_of(name);
            let runs = |number: &u8| matches!(data_directory_lock::find(&spec.data(&directory, *number)), Ok(Some(_)));
            let running = (1..=spec.nodes).filter(runs).count();
            Ok(Listed { spec, running })
        });
        listed.collect()
    }

    /// Creates and starts a cluster; `network` of the given specification is chosen here. What a failed creation left is
    /// removed, except the logs.
    pub async fn create(&self, mut spec: Spec, settings: &Settings, progress: Progress<'_>) -> anyhow::Result<Spec> {
        spec.validate()?;
        ports::check_free(&spec)?;
        raise_watch_limits(progress);
        {
            let _choice = network::NetworkChoice::lock().await?;
            let _turn = self.lock()?;
            ensure!(
                !self.directory_of(&spec.name).join(FILE).exists(),
                "cluster {:?} exists: start it with `knarr cluster start {}`, or delete it",
                spec.name,
                spec.name
            );
            let used: Vec<u8> = self.list()?.iter().map(|listed| listed.spec.network).collect();
            spec.id = spec::new_id();
            spec.network = spec::free_network(&used, &network::routes()?)?;
            let directory = self.directory_of(&spec.name);
            create_private(&directory)?;
            std::fs::write(node::settings_path(&directory, true), &settings.server)?;
            std::fs::write(node::settings_path(&directory, false), &settings.agent)?;
            std::fs::write(directory.join(FILE), serde_json::to_vec_pretty(&spec)?)?;
            network::create_bridge(&spec)?;
        }
        if let Err(error) = self.start(&spec.name, progress).await {
            progress("failed; removing what was created");
            let logs = self.keep_logs(&spec);
            if let Err(error) = self.delete(&spec.name, &|_| {}) {
                progress(&format!("cannot remove everything: {error:#}"));
            }
            return Err(error.context(format!("the logs of its nodes are in {}", logs.display())));
        }
        Ok(spec)
    }

    /// Copies the logs of nodes to where deleting the cluster leaves them.
    fn keep_logs(&self, spec: &Spec) -> PathBuf {
        let target = self.directory.join("failed").join(&spec.name);
        let directory = self.directory_of(&spec.name);
        let copied = std::fs::create_dir_all(&target).and_then(|()| {
            for number in 1..=spec.nodes {
                let log = node::log_path(spec, &directory, number);
                if let (true, Some(name)) = (log.exists(), log.file_name()) {
                    std::fs::copy(&log, target.join(name))?;
                }
            }
            Ok(())
        });
        if let Err(error) = copied {
            tracing::warn!(%error, "cannot keep the logs of the nodes");
        }
        target
    }

    /// Starts a cluster that is not running, and waits until its nodes are ready.
    pub async fn start(&self, name: &str, progress: Progress<'_>) -> anyhow::Result<()> {
        let (spec, started) = (self.read(name)?, Timestamp::now());
        let directory = self.directory_of(name);
        progress("creating the network");
        network::create(&spec)?;
        for number in 1..=spec.nodes {
            node::write_registry(&spec, &directory, number)?;
        }
        ports::start(&directory, &spec).await?;
        progress(if spec.servers > 1 { "starting the first server" } else { "starting the server" });
        // Servers that were there before are started together: a single one finds no majority of etcd's members.
        let (joined, new): (Vec<u8>, Vec<u8>) =
            (2..=spec.servers).partition(|number| node::has_joined(&spec, &directory, *number));
        let mut children = vec![self.start_node(&spec, 1, None)?];
        for number in joined {
            children.push(self.start_node(&spec, number, None)?);
        }
        self.wait("the API server", &spec, &mut children, async || {
            Ok(kubeconfig_path(&spec, &directory).exists() && self.is_ready(&spec).await)
        })
        .await?;
        self.publish(&spec)?;
        self.start_servers(&spec, &new, &mut children, progress).await?;
        if spec.nodes > spec.servers {
            let count = spec.nodes - spec.servers;
            progress(&format!("starting {count} agent{}", if count == 1 { "" } else { "s" }));
            let join = node::join(&spec, &directory, "agent")?;
            for number in spec.servers + 1..=spec.nodes {
                children.push(self.start_node(&spec, number, Some(&join))?);
            }
        }
        progress("waiting for the nodes");
        // Nodes that were stopped are ready by their last report from before.
        let new = children.iter().filter(|(_, child)| child.is_some()).map(|(number, _)| spec.node_name(*number));
        let new: Vec<String> = new.collect();
        let since = |name: &str| new.iter().any(|new| new == name).then_some(started);
        self.wait("the nodes to be ready", &spec, &mut children, async || {
            Ok(self.ready_nodes(&spec, since).await? >= spec.nodes)
        })
        .await
    }

    /// Starts servers that have not joined yet, one after the other: each changes the members of etcd.
    async fn start_servers(
        &self,
        spec: &Spec,
        new: &[u8],
        children: &mut Vec<(u8, Option<Child>)>,
        progress: Progress<'_>,
    ) -> anyhow::Result<()> {
        let directory = self.directory_of(&spec.name);
        for number in new.iter().copied() {
            progress(&format!("starting server {number}"));
            let join = node::join(spec, &directory, "server")?;
            children.push(self.start_node(spec, number, Some(&join))?);
            self.wait("the server to join", spec, children, async || {
                Ok(node::has_joined(spec, &directory, number) && self.ready_nodes(spec, |_| None).await? >= number)
            })
            .await?;
        }
        Ok(())
    }

    fn start_node(&self, spec: &Spec, number: u8, join: Option<&Join>) -> anyhow::Result<(u8, Option<Child>)> {
        let directory = self.directory_of(&spec.name);
        if data_directory_lock::find(&spec.data(&directory, number))?.is_some() {
            return Ok((number, None));
        }
        Ok((number, Some(node::start(spec, &directory, number, join)?)))
    }

    /// Waits for a condition; fails when a node's process ends.
    async fn wait(
        &self,
        what: &str,
        spec: &Spec,
        children: &mut [(u8, Option<Child>)],
        mut condition: impl AsyncFnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(300);
        let started = Instant::now();
        while !condition().await? {
            for (number, child) in children.iter_mut() {
                if let Some(status) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                    let log = node::log_path(spec, &self.directory_of(&spec.name), *number);
                    bail!("{} ended ({status}):\n{}", spec.node_name(*number), last_lines(&log));
                }
            }
            ensure!(started.elapsed() < TIMEOUT, "timed out waiting for {what}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn is_ready(&self, spec: &Spec) -> bool {
        let Ok(client) = self.client(spec).await else { return false };
        let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
        client.request_text(request).await.is_ok()
    }

    /// How many nodes are ready; of those for which `since` gives a moment, the ones that reported it after that.
    async fn ready_nodes(&self, spec: &Spec, since: impl Fn(&str) -> Option<Timestamp>) -> anyhow::Result<u8> {
        let nodes: Api<Node> = Api::all(self.client(spec).await?);
        let listed = nodes.list(&ListParams::default()).await?;
        let is_ready = |node: &&Node| node::is_ready(node, since(node.metadata.name.as_deref().unwrap_or_default()));
        Ok(u8::try_from(listed.items.iter().filter(is_ready).count()).unwrap_or(u8::MAX))
    }

    async fn client(&self, spec: &Spec) -> anyhow::Result<knarr_client::kube::Client> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), self.kubeconfig(spec)?)?;
        Ok(knarr_client::connect(Some(file.path()), "knarr").await?)
    }

    /// The kubeconfig of a cluster, as text.
    pub fn kubeconfig(&self, spec: &Spec) -> anyhow::Result<String> {
        Ok(serde_yaml_ng::to_string(&self.kubeconfig_value(spec)?)?)
    }

    fn kubeconfig_value(&self, spec: &Spec) -> anyhow::Result<serde_yaml_ng::Value> {
        let path = kubeconfig_path(spec, &self.directory_of(&spec.name));
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        kubeconfig::rename(&text, &context_of(&spec.name), &format!("https://{}:6443", spec.address(1)))
    }

    fn publish(&self, spec: &Spec) -> anyhow::Result<()> {
        let own = self.kubeconfig_value(spec)?;
        let context = context_of(&spec.name);
        let _turn = self.lock()?;
        kubeconfig::change(&self.kubeconfig, |existing| kubeconfig::merge(existing, &own, &context))
    }

    /// Stops the pods and processes of a cluster; its data stay.
    pub fn stop(&self, name: &str, progress: Progress<'_>) -> anyhow::Result<()> {
        let spec = self.read(name)?;
        self.remove_nodes(&spec, true, progress)?;
        network::delete(&spec)
    }

    /// Deletes a cluster with everything in it.
    pub fn delete(&self, name: &str, progress: Progress<'_>) -> anyhow::Result<()> {
        let spec = self.read(name)?;
        self.remove_nodes(&spec, false, progress)?;
        progress("removing the network");
        network::delete(&spec)?;
        let context = context_of(name);
        let _turn = self.lock()?;
        if self.kubeconfig.exists() {
            kubeconfig::change(&self.kubeconfig, |existing| kubeconfig::remove(existing, &context))?;
        }
        let directory = self.directory_of(name);
        std::fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))
    }

    fn remove_nodes(&self, spec: &Spec, keep_data: bool, progress: Progress<'_>) -> anyhow::Result<()> {
        let directory = self.directory_of(&spec.name);
        ports::stop(&directory)?;
        // The namespaces may be gone after a restart of the host; pods are removed within them.
        network::create(spec)?;
        // Agents first: the servers then see no node vanish. Servers together: the last ones would wait for a majority.
        for number in (spec.servers + 1..=spec.nodes).rev() {
            progress(&format!("stopping {}", spec.node_name(number)));
            node::stop(spec, &directory, number)?;
        }
        progress(if spec.servers > 1 { "stopping the servers" } else { "stopping the server" });
        std::thread::scope(|scope| {
            let stop = |number| scope.spawn(move || node::stop(spec, &self.directory_of(&spec.name), number));
            let stopping: Vec<_> = (1..=spec.servers).map(stop).collect();
            stopping.into_iter().try_for_each(|one| match one.join() {
                Ok(stopped) => stopped.map(drop),
                Err(_) => bail!("a server could not be stopped"),
            })
        })?;
        for number in (1..=spec.nodes).rev() {
            progress(&format!("removing the pods of {}", spec.node_name(number)));
            node::remove(spec, &directory, number, keep_data)
                .with_context(|| format!("cannot remove {}", spec.node_name(number)))?;
        }
        Ok(())
    }

    /// Imports an archive of images into all nodes.
    pub fn load(&self, name: &str, archive: &Path, progress: Progress<'_>) -> anyhow::Result<()> {
        let spec = self.read(name)?;
        let archive = std::path::absolute(archive)?;
        for number in 1..=spec.nodes {
            let loaded = node::load(&spec, &self.directory_of(name), number, &archive)
                .with_context(|| format!("cannot load {} into {}", archive.display(), spec.node_name(number)))?;
            progress(&format!("{}: {}", spec.node_name(number), loaded.lines().collect::<Vec<_>>().join(" ")));
        }
        Ok(())
    }

    /// Excludes other commands that choose names and networks or change the kubeconfig.
    fn lock(&self) -> anyhow::Result<Flock<std::fs::File>> {
        create_private(&self.directory)?;
        let path = self.directory.join("lock");
        let file = std::fs::File::options().create(true).append(true).open(&path)?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| anyhow::Error::new(error).context("cannot lock"))
    }
}

/// Every node watches files. The kernel's default limits suffice for a few nodes of one user.
fn raise_watch_limits(progress: Progress<'_>) {
    for (name, enough) in [("max_user_instances", 8192_u64), ("max_user_watches", 524_288)] {
        let path = Path::new("/proc/sys/fs/inotify").join(name);
        let current = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        if current.is_some_and(|current| current >= enough) {
            continue;
        }
        if let Err(error) = std::fs::write(&path, enough.to_string()) {
            progress(&format!("cannot raise fs.inotify.{name}, many clusters may need it: {error}"));
        }
    }
}

fn kubeconfig_path(spec: &Spec, directory: &Path) -> PathBuf {
    spec.data(directory, 1).join("kubeconfig.yaml")
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
