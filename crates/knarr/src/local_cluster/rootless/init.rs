//! The first process in a cluster's namespaces. It relays the cluster's ports and serves its registry, and reaps what its
//! parent left. When it ends, the kernel ends everything else there, and mounts and networks vanish.

use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;

use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use tokio::signal::unix::{SignalKind, signal};

use super::super::ports::{self, Listeners};
use super::super::{Spec, network};
use super::{INSIDE, descriptors, outgoing};
use crate::signals;

/// Runs until it is told to stop. `held` are descriptors that are closed when the cluster ends, `listening` the sockets of the
/// host's network.
pub async fn run(
    directory: &Path,
    spec: &Spec,
    held: &[RawFd],
    listening: &[RawFd],
    has_cgroup: bool,
) -> anyhow::Result<()> {
    let _held: Vec<OwnedFd> = adopt(held)?;
    let sockets: Vec<TcpListener> = adopt(listening)?.into_iter().map(TcpListener::from).collect();
    mount_all(directory.parent().context("a cluster has a directory")?, spec)?;
    if has_cgroup {
        attach(
            Some(Path::new("cgroup2")),
            Path::new("/sys/fs/cgroup"),
            Some("cgroup2"),
            SAFE | MsFlags::MS_NOEXEC,
            None,
        )?;
    }
    network::create_first(spec)?;
    // A cluster that is removed has none.
    let mut serving = match sockets.is_empty() {
        true => None,
        false => {
            let listeners = Listeners::adopt(spec, sockets)?;
            let serving = ports::serve(&Path::new(INSIDE).join(&spec.name), spec, listeners).await?;
            Some(Box::pin(serving))
        }
    };
    // From here on nothing is started here: whatever ends is an orphan.
    let mut ended = signal(SignalKind::child())?;
    println!("{READY}");
    loop {
        reap();
        tokio::select! {
            () = ports(&mut serving) => return Ok(()),
            _ = ended.recv() => {}
            stopped = signals::stopped() => return stopped,
        }
    }
}

/// Serves the ports of the host, if there are any.
async fn ports(serving: &mut Option<Pin<Box<impl Future<Output = ()>>>>) {
    match serving {
        Some(serving) => serving.await,
        None => std::future::pending().await,
    }
}

const SAFE: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// What this process prints when the cluster can be entered.
pub const READY: &str = "ready";

fn adopt(numbers: &[RawFd]) -> anyhow::Result<Vec<OwnedFd>> {
    numbers.iter().map(|number| descriptors::adopt(*number)).collect()
}

fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

/// Gives the namespace directories of its own where the user cannot write: `/run`, for the sockets of runtimes and the names of
/// network namespaces, `/var/lib`, and `/proc`, for the namespace's own processes. Clusters are at a short path: those of sockets are limited.
fn mount_all(clusters: &Path, spec: &Spec) -> anyhow::Result<()> {
    let resolver = std::fs::canonicalize("/etc/resolv.conf").ok();
    attach(Some(Path::new("proc")), Path::new("/proc"), Some("proc"), SAFE | MsFlags::MS_NOEXEC, None)?;
    attach(Some(Path::new("tmpfs")), Path::new("/run"), Some("tmpfs"), SAFE, Some("mode=755"))?;
    std::fs::create_dir(INSIDE).with_context(|| format!("cannot create {INSIDE}"))?;
    attach(Some(clusters), Path::new(INSIDE), None, MsFlags::MS_BIND | MsFlags::MS_REC, None)?;
    shadow(Path::new("/var/lib"), "cni")?;
    if let Some(resolver) = resolver.filter(|_| !spec.is_offline) {
        replace_resolver(&resolver)?;
    }
    // Mounts of the host arrive here; those of pods reach the other processes here, and not the host. Done last: what is mounted
    // over a directory would reach the other places where it is visible.
    attach(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_SHARED, None)
}

/// Makes room for a directory that programs create below another one, where the user cannot write: the other entries are links
/// to where they are visible. The network plugins of containerd have no setting for theirs.
fn shadow(parent: &Path, own: &str) -> anyhow::Result<()> {
    let seen = Path::new("/run/host").join(parent.strip_prefix("/").unwrap_or(parent));
    std::fs::create_dir_all(&seen).with_context(|| format!("cannot create {}", seen.display()))?;
    attach(Some(parent), &seen, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)?;
    attach(Some(Path::new("tmpfs")), parent, Some("tmpfs"), SAFE, Some("mode=755"))?;
    for entry in std::fs::read_dir(&seen).with_context(|| format!("cannot read {}", parent.display()))? {
        let name = entry?.file_name();
        if name != own {
            std::os::unix::fs::symlink(seen.join(&name), parent.join(&name))?;
        }
    }
    std::fs::create_dir(parent.join(own)).with_context(|| format!("cannot create {own} in {}", parent.display()))
}

/// The resolvers of the host are often reached at its loopback address, which is another one here.
fn replace_resolver(path: &Path) -> anyhow::Result<()> {
    let own = if path.starts_with("/run") { path.to_path_buf() } else { PathBuf::from("/run/resolv.conf") };
    if let Some(parent) = own.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(&own, outgoing::RESOLVER).with_context(|| format!("cannot write {}", own.display()))?;
    if own != path {
        attach(Some(&own), path, None, MsFlags::MS_BIND, None)?;
    }
    Ok(())
}

fn attach(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    data: Option<&str>,
) -> anyhow::Result<()> {
    mount(source, target, kind, flags, data).with_context(|| format!("cannot mount {}", target.display()))
}
