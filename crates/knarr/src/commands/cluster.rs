//! `knarr cluster`: clusters of several nodes on this host.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use crate::local_cluster::{
    Clusters, Listed, PortMapping, Progress, Settings, Spec, Task, context_of, relay, run_init, run_namespace,
};
use crate::output::table;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where clusters are kept; by default /var/lib/knarr-clusters for root, and knarr/clusters in the user's data directory for others.
    #[arg(long, global = true, env = "KNARR_CLUSTERS", value_parser = crate::paths::absolute())]
    directory: Option<PathBuf>,
    /// The kubeconfig file to which contexts are added; by default that of kubectl.
    #[arg(long, global = true, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(subcommand)]
    command: Cluster,
}

#[derive(Subcommand, Clone, Debug)]
enum Cluster {
    /// Create a cluster and make it the current context of kubectl.
    Create {
        name: String,
        /// Number of nodes; the first one runs the control plane, too.
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        /// How many of the nodes run the control plane; more than one need etcd.
        #[arg(long, default_value_t = 1)]
        servers: u8,
        /// Map a port of this host (127.0.0.1) to a port of the first node, such as 8080:80. May be repeated.
        #[arg(long, value_name = "HOST:NODE")]
        port: Vec<PortMapping>,
        /// Create a registry that all nodes pull from: push to localhost:PORT on this host, and use the same names in pods.
        #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "5001")]
        registry: Option<u16>,
        /// Configuration file of the servers: any flag of `knarr server` by its name.
        #[arg(long, value_name = "FILE")]
        server_config: Option<PathBuf>,
        /// Configuration file of the agents: any flag of `knarr agent` by its name.
        #[arg(long, value_name = "FILE")]
        agent_config: Option<PathBuf>,
        /// Additional flag of every agent, such as --agent-flag=--node-label=disk=ssd. May be repeated.
        #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
        agent_flag: Vec<String>,
        /// Image archives to load into all nodes. May be repeated.
        #[arg(long, value_name = "FILE")]
        image: Vec<PathBuf>,
        /// Cut the nodes off from all other networks.
        #[arg(long)]
        offline: bool,
    },
    /// List the clusters.
    List,
    /// Start a stopped cluster, also after a restart of this host.
    Start { name: String },
    /// Stop a cluster; its objects, images and volumes are kept.
    Stop { name: String },
    /// Delete clusters with everything in them.
    Delete {
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Load image archives (docker save or OCI) into all nodes.
    Load {
        name: String,
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Print the kubeconfig of a cluster.
    Kubeconfig { name: String },
    /// Relay the mapped ports of a cluster.
    #[command(hide = true)]
    Relay { name: String },
    /// Become root of the namespaces of a cluster.
    #[command(hide = true)]
    Namespace {
        name: String,
        #[command(flatten)]
        inherited: Inherited,
    },
    /// Be the first process in the namespaces of a cluster.
    #[command(hide = true)]
    Init {
        name: String,
        #[command(flatten)]
        inherited: Inherited,
    },
    /// Do something in the namespaces of a cluster.
    #[command(hide = true)]
    Inside {
        name: String,
        #[command(flatten)]
        task: InsideTask,
    },
}

/// Descriptors that a process has inherited.
#[derive(Args, Clone, Debug)]
struct Inherited {
    /// Those that are closed when it ends.
    #[arg(long)]
    held: Vec<RawFd>,
    /// Sockets on which it accepts connections.
    #[arg(long)]
    listening: Vec<RawFd>,
    /// Whether it is in the cgroup of the cluster.
    #[arg(long)]
    cgroup: bool,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct InsideTask {
    /// Create the network and start the nodes.
    #[arg(long)]
    start: bool,
    /// Stop the nodes.
    #[arg(long)]
    stop: bool,
    /// Delete the data of the nodes.
    #[arg(long)]
    delete: bool,
    /// Import an image archive into all nodes.
    #[arg(long)]
    load: Option<PathBuf>,
}

impl InsideTask {
    fn task(&self) -> Task<'_> {
        match &self.load {
            Some(archive) => Task::Load(archive),
            None if self.start => Task::Start,
            None if self.stop => Task::Stop,
            None => Task::Delete,
        }
    }
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let directory = arguments.directory.map_or_else(default_directory, Ok)?;
    let clusters = Clusters::new(directory, user_kubeconfig(arguments.kubeconfig)?);
    let started = Instant::now();
    let progress = |what: &str| eprintln!("{:6.1}s  {what}", started.elapsed().as_secs_f32());
    match arguments.command {
        Cluster::Create {
            name,
            nodes,
            servers,
            port,
            registry,
            server_config,
            agent_config,
            agent_flag,
            image,
            offline,
        } => {
            let settings = Settings { server: read(server_config.as_deref())?, agent: read(agent_config.as_deref())? };
            let spec = Spec {
                name,
                id: String::new(),
                nodes: nodes.max(servers),
                servers,
                network: 0,
                is_offline: offline,
                ports: port,
                registry,
                api_port: None,
                server_flags: Vec::new(),
                agent_flags: agent_flag,
            };
            create(&clusters, spec, &settings, &image, &progress).await
        }
        Cluster::List => list(&clusters),
        Cluster::Start { name } => {
            clusters.start(&name, &progress).await?;
            progress("ready");
            Ok(())
        }
        Cluster::Stop { name } => clusters.stop(&name, &progress),
        Cluster::Delete { names } => {
            // One that cannot be deleted keeps no other.
            let failures: Vec<String> = names
                .iter()
                .filter_map(|name| clusters.delete(name, &progress).err().map(|error| format!("{name}: {error:#}")))
                .collect();
            anyhow::ensure!(failures.is_empty(), "cannot delete {}", failures.join("; "));
            Ok(())
        }
        Cluster::Load { name, archives } => {
            archives.iter().try_for_each(|archive| clusters.load(&name, archive, &progress))
        }
        Cluster::Kubeconfig { name } => {
            print!("{}", clusters.kubeconfig(&clusters.read(&name)?)?);
            Ok(())
        }
        Cluster::Relay { name } => relay(&clusters.directory_of(&name), &clusters.read(&name)?).await,
        Cluster::Namespace { name, inherited } => {
            run_namespace(&clusters.directory_of(&name), &inherited.held, &inherited.listening, inherited.cgroup)
        }
        Cluster::Init { name, inherited } => {
            let spec = clusters.read(&name)?;
            let Inherited { held, listening, cgroup } = &inherited;
            run_init(&clusters.directory_of(&name), &spec, held, listening, *cgroup).await
        }
        Cluster::Inside { name, task } => {
            // Whoever entered the namespaces prints it with the time.
            clusters.inside(&name, task.task(), &|what: &str| println!("{what}")).await
        }
    }
}

async fn create(
    clusters: &Clusters,
    spec: Spec,
    settings: &Settings,
    images: &[PathBuf],
    progress: Progress<'_>,
) -> anyhow::Result<()> {
    let spec = clusters.create(spec, settings, progress).await?;
    for archive in images {
        clusters.load(&spec.name, archive, progress)?;
    }
    progress("ready");
    println!("kubectl now uses the context {}", context_of(&spec.name));
    if let Some(port) = spec.registry {
        println!("push images to localhost:{port}/NAME, and use that name in pods");
    }
    Ok(())
}

fn list(clusters: &Clusters) -> anyhow::Result<()> {
    let row = |listed: Listed| {
        let nodes = format!("{}/{}", listed.running, listed.spec.nodes);
        [listed.spec.name.clone(), nodes, listed.spec.api(), context_of(&listed.spec.name)]
    };
    let rows: Vec<[String; 4]> = clusters.list()?.into_iter().map(row).collect();
    print!("{}", table(["NAME", "RUNNING", "API", "CONTEXT"], &rows));
    Ok(())
}

/// Where local clusters are kept by default.
pub fn default_directory() -> anyhow::Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    directory_of(nix::unistd::geteuid().is_root(), absolute("XDG_DATA_HOME"), absolute("HOME"))
}

fn directory_of(is_root: bool, data: Option<PathBuf>, home: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if is_root {
        return Ok(PathBuf::from("/var/lib/knarr-clusters"));
    }
    let data = data.or_else(|| home.map(|home| home.join(".local/share")));
    Ok(data.context("HOME is not set: use --directory")?.join("knarr/clusters"))
}

/// The text of a configuration file; that of an empty one if none was given.
fn read(path: Option<&Path>) -> anyhow::Result<String> {
    match path {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())),
        None => Ok("{}\n".to_owned()),
    }
}

/// The file of kubectl: the first of `KUBECONFIG`, else the one in the home directory.
fn user_kubeconfig(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(first) = given.as_deref().and_then(|paths| std::env::split_paths(paths).find(|path| path != "")) {
        return Ok(first);
    }
    let home = std::env::var_os("HOME").context("HOME is not set: use --kubeconfig")?;
    Ok(PathBuf::from(home).join(".kube/config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_keep_clusters_in_directories_of_their_own() {
        let path = |text: &str| Some(PathBuf::from(text));
        for (is_root, data, home, expected) in [
            (true, path("/data"), path("/root"), path("/var/lib/knarr-clusters")),
            (false, path("/data"), path("/home/ann"), path("/data/knarr/clusters")),
            (false, None, path("/home/ann"), path("/home/ann/.local/share/knarr/clusters")),
            (false, None, None, None),
        ] {
            assert_eq!(directory_of(is_root, data, home).ok(), expected);
        }
    }
}
