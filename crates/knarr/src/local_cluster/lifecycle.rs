//! Creating, starting, stopping and deleting clusters.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::directory::{check_own, create_private};
use super::kubeconfig::{self, context_of};
use super::network_choice::NetworkChoice;
use super::nodes::Nodes;
use super::ports::{self, Listeners};
use super::rootless::{self, Purpose, Task};
use super::spec::{self, Spec};
use super::{Progress, network, node};
use crate::data_directory_lock;

const FILE: &str = "cluster.json";

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
        let is_rootless = !geteuid().is_root();
        if is_rootless {
            let has_way_out = rootless::check(spec.is_offline, &[&self.directory], progress)?;
            spec.is_offline = !has_way_out;
        } else {
            raise_watch_limits(progress);
        }
        {
            let _choice = if is_rootless { None } else { Some(NetworkChoice::lock().await?) };
            let _turn = self.lock()?;
            ensure!(
                !self.directory_of(&spec.name).join(FILE).exists(),
                "cluster {:?} exists: start it with `knarr cluster start {}`, or delete it",
                spec.name,
                spec.name
            );
            spec.id = spec::new_id();
            self.choose_addresses(&mut spec, is_rootless)?;
            Listeners::bind(&spec)?;
            let directory = self.directory_of(&spec.name);
            create_private(&directory)?;
            std::fs::write(node::settings_path(&directory, true), &settings.server)?;
            std::fs::write(node::settings_path(&directory, false), &settings.agent)?;
            std::fs::write(directory.join(FILE), serde_json::to_vec_pretty(&spec)?)?;
            if !is_rootless {
                network::create_bridge(&spec)?;
            }
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

    /// Chooses a network that nobody uses, or, in a network namespace where all are unused, the port that leads there.
    fn choose_addresses(&self, spec: &mut Spec, is_rootless: bool) -> anyhow::Result<()> {
        let others = self.list()?;
        if is_rootless {
            let own = spec.ports.iter().map(|mapping| mapping.host).chain(spec.registry);
            let used: Vec<u16> = others.iter().filter_map(|other| other.spec.api_port).chain(own).collect();
            spec.network = spec::free_network(&[], &[])?;
            spec.api_port = Some(spec::free_api_port(&used, ports::is_free)?);
            return Ok(());
        }
        let used: Vec<u8> = others.iter().map(|other| other.spec.network).collect();
        spec.network = spec::free_network(&used, &network::routes()?)?;
        Ok(())
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
        let (spec, directory) = (self.read(name)?, self.directory_of(name));
        if spec.is_rootless() {
            progress("creating the namespaces");
            let process = rootless::start(&directory, &spec, Purpose::Run)?;
            rootless::run_inside(process, name, Task::Start, progress)?;
        } else {
            Nodes { spec: &spec, directory: &directory }.start(progress).await?;
        }
        self.publish(&spec)
    }

    /// The kubeconfig of a cluster, as text.
    pub fn kubeconfig(&self, spec: &Spec) -> anyhow::Result<String> {
        Ok(serde_yaml_ng::to_string(&self.kubeconfig_value(spec)?)?)
    }

    fn kubeconfig_value(&self, spec: &Spec) -> anyhow::Result<serde_yaml_ng::Value> {
        kubeconfig::read(spec, &self.directory_of(&spec.name), &spec.api())
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
        self.remove_nodes(&spec, true, progress)
    }

    /// Deletes a cluster with everything in it.
    pub fn delete(&self, name: &str, progress: Progress<'_>) -> anyhow::Result<()> {
        let spec = self.read(name)?;
        self.remove_nodes(&spec, false, progress)?;
        let context = context_of(name);
        let _turn = self.lock()?;
        if self.kubeconfig.exists() {
            kubeconfig::change(&self.kubeconfig, |existing| kubeconfig::remove(existing, &context))?;
        }
        let directory = self.directory_of(name);
        std::fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))
    }

    /// Stops the processes of a cluster and removes its network.
    fn remove_nodes(&self, spec: &Spec, keep_data: bool, progress: Progress<'_>) -> anyhow::Result<()> {
        let directory = self.directory_of(&spec.name);
        if spec.is_rootless() {
            return remove_namespaces(spec, &directory, keep_data, progress);
        }
        Nodes { spec, directory: &directory }.remove(keep_data, progress)?;
        progress("removing the network");
        network::delete(spec)
    }

    /// Imports an archive of images into all nodes.
    pub fn load(&self, name: &str, archive: &Path, progress: Progress<'_>) -> anyhow::Result<()> {
        let (spec, directory) = (self.read(name)?, self.directory_of(name));
        let archive = std::path::absolute(archive)?;
        if spec.is_rootless() {
            rootless::check_visible(&archive)?;
            let process = rootless::find(&directory)?.with_context(|| format!("cluster {name:?} is not running"))?;
            return rootless::run_inside(process, name, Task::Load(&archive), progress);
        }
        Nodes { spec: &spec, directory: &directory }.load(&archive, progress)
    }

    /// Does something within the namespaces of a cluster of an ordinary user.
    pub async fn inside(&self, name: &str, task: Task<'_>, progress: Progress<'_>) -> anyhow::Result<()> {
        let (spec, directory) = (self.read(name)?, self.directory_of(name));
        let nodes = Nodes { spec: &spec, directory: &directory };
        match task {
            Task::Start => nodes.start(progress).await,
            Task::Stop => nodes.remove(true, progress),
            Task::Delete => nodes.delete_data(),
            Task::Load(archive) => nodes.load(archive, progress),
        }
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

/// Ends everything in the namespaces of a cluster. What is deleted belongs in part to other ids of the user, and is deleted in
/// namespaces where nothing else runs.
fn remove_namespaces(spec: &Spec, directory: &Path, keep_data: bool, progress: Progress<'_>) -> anyhow::Result<()> {
    if let Some(process) = rootless::find(directory)?.filter(|_| keep_data) {
        // Whatever happens there, everything has ended afterwards.
        let stopped = rootless::run_inside(process, &spec.name, Task::Stop, progress);
        progress("removing the namespaces");
        rootless::stop(directory)?;
        return stopped;
    }
    progress("removing the namespaces");
    rootless::stop(directory)?;
    if keep_data || !(1..=spec.nodes).any(|number| spec.data(directory, number).exists()) {
        return Ok(());
    }
    progress("deleting the data of the nodes");
    let process = rootless::start(directory, spec, Purpose::Delete)?;
    let deleted = rootless::run_inside(process, &spec.name, Task::Delete, progress);
    rootless::stop(directory)?;
    deleted
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
