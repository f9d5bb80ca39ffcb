//! The way out of a cluster's namespaces: slirp4netns, a program of the user that opens the connections of the cluster as its own.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::fcntl::OFlag;
use nix::unistd::{Pid, pipe2};

use super::descriptors;
use super::requirements::OUTGOING;
use crate::data_directory_lock;

/// What resolves names there: slirp4netns passes questions to the resolvers of the host.
pub const RESOLVER: &str = "nameserver 10.0.2.3\n";
const INTERFACE: &str = "tap0";
/// Larger packets cost less; the other side of the interface is a process.
const MTU: &str = "65520";
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Two ends of a pipe: the program ends when the other end is closed.
pub struct Lifetime {
    pub watched: OwnedFd,
    pub held: OwnedFd,
}

impl Lifetime {
    pub fn new() -> anyhow::Result<Lifetime> {
        let (watched, held) = pipe2(OFlag::O_CLOEXEC)?;
        Ok(Lifetime { watched, held })
    }
}

fn directory_of(directory: &Path) -> PathBuf {
    directory.join("outgoing")
}

/// Connects the network namespace of a process, and waits until that is done.
pub fn start(directory: &Path, process: Pid, watched: &OwnedFd) -> anyhow::Result<()> {
    let lock = data_directory_lock::acquire(&directory_of(directory))?;
    let (ready, report) = pipe2(OFlag::O_CLOEXEC)?;
    let log = directory.join("outgoing.log");
    let errors = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(OUTGOING);
    command.args(["--configure", "--disable-host-loopback", "--mtu", MTU]);
    command.arg(format!("--ready-fd={}", report.as_raw_fd())).arg(format!("--exit-fd={}", watched.as_raw_fd()));
    command.arg(process.to_string()).arg(INTERFACE);
    command.stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors).process_group(0).current_dir("/");
    descriptors::inherit(&mut command, vec![report.as_raw_fd(), watched.as_raw_fd(), lock.as_raw_fd()]);
    let child = command.spawn().with_context(|| format!("cannot run {OUTGOING}"))?;
    drop(report);
    lock.hand_over(child.id())?;
    let mut byte = [0];
    match File::from(ready).read(&mut byte) {
        Ok(1) => Ok(()),
        _ => bail!("{OUTGOING} ended: {}", std::fs::read_to_string(&log).unwrap_or_default().trim()),
    }
}

/// Waits until the program has ended, which it does with the cluster's namespaces.
pub fn wait(directory: &Path) -> anyhow::Result<()> {
    data_directory_lock::wait_for_exit(&directory_of(directory), STOP_TIMEOUT)
}
