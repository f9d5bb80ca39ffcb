//! Ports of this host's loopback address that lead to a cluster, and its registry, served by a process of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::future::try_join_all;
use knarr_registry::{Access, Store, serve};
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

/// Refuses ports that another program uses.
pub fn check_free(spec: &Spec) -> anyhow::Result<()> {
    for port in spec.ports.iter().map(|mapping| mapping.host).chain(spec.registry) {
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("cannot use port {port}"))?;
    }
    Ok(())
}

/// Starts the process that relays the cluster's ports and serves its registry, if it has any, and waits until it listens.
pub async fn start(directory: &Path, spec: &Spec) -> anyhow::Result<()> {
    if spec.ports.is_empty() && spec.registry.is_none() {
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
    let target = spec.address(1);
    let listeners = spec.ports.iter().map(|mapping| async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, mapping.host)).await;
        Ok::<_, anyhow::Error>((listener.with_context(|| format!("cannot listen on port {}", mapping.host))?, *mapping))
    });
    let listeners = try_join_all(listeners).await?;
    let registry = registry(directory, spec).await?;
    // Whoever started this process waits for the lock.
    let _lock = data_directory_lock::acquire(&directory_of(directory))?;
    let relays = listeners.into_iter().map(|(listener, mapping)| accept(listener, target, mapping));
    tokio::select! {
        _ = futures::future::join_all(relays), if !spec.ports.is_empty() => Ok(()),
        () = registry, if spec.registry.is_some() => Ok(()),
        stopped = signals::stopped() => stopped,
    }
}

/// The cluster's registry. This host pushes to it; the nodes, and with them every pod, only pull.
async fn registry(directory: &Path, spec: &Spec) -> anyhow::Result<impl Future<Output = ()>> {
    let mut serving = Vec::new();
    if let Some(port) = spec.registry {
        let path = directory.join("registry");
        let store = Store::open(&path).with_context(|| format!("cannot use {}", path.display()))?;
        for (address, access) in [
            (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Access::PullAndPush),
            (SocketAddr::from(spec.registry_address()), Access::Pull),
        ] {
            let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
            serving.push(serve(listener, store.clone(), access));
        }
    }
    Ok(async move {
        futures::future::join_all(serving).await;
    })
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
