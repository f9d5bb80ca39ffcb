//! Creates and ends the namespaces of a cluster, from outside.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getegid, geteuid};

use super::super::Spec;
use super::super::ports::Listeners;
use super::init::READY;
use super::namespace::{UNMAPPED, list, lock_directory};
use super::outgoing::{self, Lifetime};
use super::requirements::Ids;
use super::{cgroup, descriptors, enter, subordinate};
use crate::data_directory_lock;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// What namespaces are created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Run,
    /// Neither ports nor a way out are needed: another program may use the ports meanwhile.
    Delete,
}

/// The first process in the namespaces of a cluster, if it runs.
pub fn find(directory: &Path) -> anyhow::Result<Option<Pid>> {
    data_directory_lock::find(&lock_directory(directory))
}

/// Creates the namespaces of a cluster, unless they exist. Returns their first process.
pub fn start(directory: &Path, spec: &Spec, purpose: Purpose) -> anyhow::Result<Pid> {
    if let Some(process) = find(directory)? {
        return Ok(process);
    }
    let listeners = match purpose {
        Purpose::Run => Some(Listeners::bind(spec)?),
        Purpose::Delete => None,
    };
    let lifetime = Lifetime::new()?;
    let has_cgroup = purpose == Purpose::Run && cgroup::enter(directory, spec)?;
    let log = directory.join("namespace.log");
    let errors = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let started = create(directory, errors, &lifetime, listeners.as_ref(), has_cgroup);
    let process = started.with_context(|| {
        let logged = std::fs::read_to_string(&log).unwrap_or_default();
        format!("cannot create the namespaces of the cluster: {}", logged.trim())
    })?;
    drop(lifetime.held);
    cgroup::leave(directory)?;
    if purpose == Purpose::Run
        && !spec.is_offline
        && let Err(error) = outgoing::start(directory, process, &lifetime.watched)
    {
        stop(directory)?;
        return Err(error);
    }
    Ok(process)
}

fn create(
    directory: &Path,
    errors: File,
    lifetime: &Lifetime,
    listeners: Option<&Listeners>,
    has_cgroup: bool,
) -> anyhow::Result<Pid> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let listening: Vec<_> =
        listeners.into_iter().flat_map(Listeners::sockets).map(|socket| socket.as_raw_fd()).collect();
    let held = vec![lifetime.held.as_raw_fd()];
    let mut command = enter::knarr(&program, "namespace", directory)?;
    command.args(list("--held", &held)).args(list("--listening", &listening)).args(has_cgroup.then_some("--cgroup"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).process_group(0).current_dir("/");
    descriptors::inherit(&mut command, held.into_iter().chain(listening).collect());
    // SAFETY: unshare is a system call that touches only the child.
    unsafe {
        command.pre_exec(|| unshare(CloneFlags::CLONE_NEWUSER).map_err(Into::into));
    }
    let mut child = command.spawn().context("cannot create a user namespace")?;
    let guided = guide(&mut child);
    if guided.is_err() {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait()?;
    guided?;
    ensure!(status.success(), "the process failed ({status})");
    find(directory)?.context("the first process of the cluster ended")
}

/// Maps the ids of the process, and waits until the first process of its namespaces is ready.
fn guide(child: &mut Child) -> anyhow::Result<()> {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { bail!("no pipes") };
    let mut lines = BufReader::new(output).lines();
    let mut expect = |expected: &str| -> anyhow::Result<()> {
        let line = lines.next().transpose()?.unwrap_or_default();
        ensure!(line == expected, "the process ended before it was {expected}");
        Ok(())
    };
    expect(UNMAPPED)?;
    let (ids, _) = Ids::read()?;
    let process = child.id().to_string();
    map("newuidmap", &process, &subordinate::map(geteuid().as_raw(), &ids.users))?;
    map("newgidmap", &process, &subordinate::map(getegid().as_raw(), &ids.groups))?;
    input.write_all(b"\n")?;
    drop(input);
    expect(READY)
}

fn map(program: &str, process: &str, lines: &[String]) -> anyhow::Result<()> {
    let output = Command::new(program).arg(process).args(lines).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Ends everything in the namespaces of a cluster, and waits until it has ended.
pub fn stop(directory: &Path) -> anyhow::Result<()> {
    if let Some(process) = find(directory)? {
        end(process)?;
    }
    outgoing::wait(directory)?;
    cgroup::remove(directory)
}

fn end(process: Pid) -> anyhow::Result<()> {
    kill(process, Signal::SIGTERM).with_context(|| format!("cannot stop process {process}"))?;
    let started = Instant::now();
    // The kernel ends all others before it reports the end of the first one; the lock is released earlier.
    while is_running(process) {
        if started.elapsed() > STOP_TIMEOUT {
            bail!("process {process} did not stop within {} s", STOP_TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn is_running(process: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !is_zombie(&stat))
}

/// Whether a process has ended, by its line in `/proc`: the state follows the name, which is in parentheses.
fn is_zombie(stat: &str) -> bool {
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_waited_for_has_ended() {
        assert!(is_zombie("7 (knarr) Z 1 7 7"));
        assert!(is_zombie("7 (a) b) X 1 7 7"));
        assert!(!is_zombie("7 (Z) S 1 7 7"));
        assert!(is_running(Pid::this()) && !is_running(Pid::from_raw(i32::MAX)));
    }
}
