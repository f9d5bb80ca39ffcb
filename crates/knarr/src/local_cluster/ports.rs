//! Ports of this host's loopback address that lead to a cluster, and its registry, served by a process of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use knarr_registry::{Access, Store, serve as serve_registry};
use tokio::net::{TcpListener, TcpStream};

use super::spec::{PortMapping, Spec};
use crate::data_directory_lock;
use crate::signals;

/// How many connections a port relays at a time.
const MAX_CONNECTIONS: usize = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

fn directory_of(directory: &Path) -> PathBuf {
    directory.join("ports")
}

/// Sockets of this host's loopback address that accept connections for a cluster.
pub struct Listeners {
    mapped: Vec<(std::net::TcpListener, PortMapping)>,
    registry: Option<std::net::TcpListener>,
}

impl Listeners {
    /// Fails for ports that another program uses.
    pub fn bind(spec: &Spec) -> anyhow::Result<Listeners> {
        let bind = |port: u16| {
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("cannot use port {port}"))
        };
        let mapped = spec.mappings().into_iter().map(|mapping| Ok((bind(mapping.host)?, mapping)));
        Ok(Listeners { mapped: mapped.collect::<anyhow::Result<_>>()?, registry: spec.registry.map(bind).transpose()? })
    }

    /// The sockets in the order in which `adopt` expects them.
    pub fn sockets(&self) -> impl Iterator<Item = &std::net::TcpListener> {
        self.mapped.iter().map(|(socket, _)| socket).chain(&self.registry)
    }

    /// Those that another process has bound for the same cluster.
    pub fn adopt(spec: &Spec, sockets: Vec<std::net::TcpListener>) -> anyhow::Result<Listeners> {
        let mappings = spec.mappings();
        let expected = mappings.len() + usize::from(spec.registry.is_some());
        ensure!(sockets.len() == expected, "{} sockets for {expected} ports", sockets.len());
        let mut sockets = sockets.into_iter();
        let mapped = mappings.into_iter().zip(sockets.by_ref()).map(|(mapping, socket)| (socket, mapping)).collect();
        Ok(Listeners { mapped, registry: sockets.next() })
    }
}

/// Whether no other program uses a port of the loopback address.
pub fn is_free(port: u16) -> bool {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Whether a cluster has any port to relay or a registry.
fn is_needed(spec: &Spec) -> bool {
    !spec.mappings().is_empty() || spec.registry.is_some()
}

/// Starts the process that relays the cluster's ports and serves its registry, if it has any, and waits until it listens.
pub async fn start(directory: &Path, spec: &Spec) -> anyhow::Result<()> {
    if !is_needed(spec) {
        return Ok(());
    }
    let own = directory_of(directory);
    std::fs::create_dir_all(&own)?;
    if data_directory_lock::find(&own)?.is_some() {
        return Ok(());
    }
    let path = directory.join("ports.log");
    let log = std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["cluster", "relay", &spec.name, "--directory"]).arg(directory.parent().unwrap_or(directory));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    let mut child = command.spawn().context("cannot start the relay of ports")?;
    while data_directory_lock::find(&own)?.is_none() {
        if let Some(status) = child.try_wait()? {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            bail!("the relay of ports ended ({status}): {}", log.trim());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Stops the process that relays.
pub fn stop(directory: &Path) -> anyhow::Result<()> {
    let own = directory_of(directory);
    if own.exists() {
        data_directory_lock::stop(&own, Duration::from_secs(10))?;
    }
    Ok(())
}

/// Relays until the process is stopped.
pub async fn relay(directory: &Path, spec: &Spec) -> anyhow::Result<()> {
    let serving = serve(directory, spec, Listeners::bind(spec)?).await?;
    // Whoever started this process waits for the lock.
    let _lock = data_directory_lock::acquire(&directory_of(directory))?;
    tokio::select! {
        () = serving => Ok(()),
        stopped = signals::stopped() => stopped,
    }
}

/// Relays the ports and serves the registry; never ends while it has any.
pub async fn serve(
    directory: &Path,
    spec: &Spec,
    listeners: Listeners,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let target = spec.address(1);
    let mut relays = Vec::new();
    for (listener, mapping) in listeners.mapped {
        relays.push(accept(listening(listener)?, target, mapping));
    }
    let registry = match listeners.registry {
        Some(listener) => registry(directory, spec, listening(listener)?).await?,
        None => Vec::new(),
    };
    Ok(async move {
        tokio::join!(futures::future::join_all(relays), futures::future::join_all(registry));
    })
}

fn listening(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The cluster's registry. This host pushes to it; the nodes, and with them every pod, only pull.
async fn registry(
    directory: &Path,
    spec: &Spec,
    of_host: TcpListener,
) -> anyhow::Result<Vec<impl Future<Output = ()> + use<>>> {
    let path = directory.join("registry");
    let store = Store::open(&path).with_context(|| format!("cannot use {}", path.display()))?;
    let address = spec.registry_address();
    let of_nodes = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    Ok(vec![serve_registry(of_host, store.clone(), Access::PullAndPush), serve_registry(of_nodes, store, Access::Pull)])
}

async fn accept(listener: TcpListener, target: Ipv4Addr, mapping: PortMapping) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((client, _)) => {
                    connections.spawn(join(client, SocketAddr::from((target, mapping.node))));
                }
                Err(error) => {
                    // Out of descriptors, for example: those in use come back.
                    tracing::warn!(%error, port = mapping.host, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn join(mut client: TcpStream, target: SocketAddr) {
    match TcpStream::connect(target).await {
        Ok(mut server) => {
            // Either side may close at any time; both are closed then.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        }
        Err(error) => tracing::debug!(%error, %target, "cannot reach the node"),
    }
}
