//! The process that becomes root of a new user namespace, and starts the first process of the cluster's other namespaces.
//!
//! It was started in a user namespace without ids. Once they are mapped, it executes itself again: only then the kernel gives it
//! the capabilities of root there. It ends when the first process runs.

use std::io::Read as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::setgroups;

use super::descriptors;
use crate::data_directory_lock;

/// What this process prints when its ids can be mapped.
pub const UNMAPPED: &str = "unmapped";

/// Where the lock is that the first process of the namespaces holds.
pub fn lock_directory(cluster: &Path) -> PathBuf {
    cluster.join("namespace")
}

/// `held` and `listening` are descriptors that the first process gets.
pub fn run(cluster: &Path, held: &[RawFd], listening: &[RawFd], has_cgroup: bool) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    if std::fs::read_to_string("/proc/self/uid_map")?.trim().is_empty() {
        wait_for_ids()?;
        let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
        return Err(error).context("cannot start this program again");
    }
    // The groups of the user have no names here, and containers must not have them.
    setgroups(&[]).context("cannot drop the user's groups")?;
    let lock = data_directory_lock::acquire(&lock_directory(cluster))?;
    let held: Vec<RawFd> = held.iter().copied().chain([lock.as_raw_fd()]).collect();
    let mut command = super::enter::knarr(&program, "init", cluster)?;
    command.args(list("--held", &held)).args(list("--listening", listening)).args(has_cgroup.then_some("--cgroup"));
    command.stdin(Stdio::null());
    descriptors::inherit(&mut command, vec![lock.as_raw_fd()]);
    let mut own = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC;
    own.set(CloneFlags::CLONE_NEWCGROUP, has_cgroup);
    // SAFETY: unshare is a system call that touches only the child.
    unsafe {
        command.pre_exec(move || unshare(own).map_err(Into::into));
    }
    unshare(CloneFlags::CLONE_NEWPID).context("cannot create a namespace of processes")?;
    let mut child = command.spawn().context("cannot start the first process of the cluster")?;
    let recorded = lock.hand_over(child.id());
    if recorded.is_err() {
        // Nobody would find it.
        let _ = child.kill();
    }
    recorded.context("cannot record the first process of the cluster")
}

/// Waits until whoever started this process has mapped its ids. Only a process that can be debugged has files in `/proc` that
/// belong to the user; this one has no secrets yet.
fn wait_for_ids() -> anyhow::Result<()> {
    nix::sys::prctl::set_dumpable(true)?;
    println!("{UNMAPPED}");
    let mut byte = [0];
    std::io::stdin().read_exact(&mut byte).context("the ids of the user namespace were not mapped")
}

/// A flag for each number.
pub fn list(flag: &str, numbers: &[RawFd]) -> Vec<String> {
    numbers.iter().map(|number| format!("{flag}={number}")).collect()
}
