//! Runs this program inside the namespaces of a cluster, where it is root.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use nix::unistd::Pid;

use super::INSIDE;
use crate::local_cluster::Progress;

/// A task inside the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'a> {
    /// Creates the network, starts the nodes and waits until they are ready.
    Start,
    /// Stops the nodes and removes their pods.
    Stop,
    /// Deletes the data of nodes. Some of it belongs to subordinate ids of the user, who cannot delete it outside.
    Delete,
    /// Imports an archive of images into all nodes.
    Load(&'a Path),
}

/// The `PATH` inside, with the directories of administrators' programs, which users often lack.
pub fn search_path() -> OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&own).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    // This fails only for directories with a colon in their name, which no `PATH` can contain.
    std::env::join_paths(all).unwrap_or(own)
}

/// This program with a hidden command for a cluster.
pub fn knarr(program: &Path, action: &str, cluster: &Path) -> anyhow::Result<Command> {
    let (Some(clusters), Some(name)) = (cluster.parent(), cluster.file_name()) else { bail!("no cluster") };
    let mut command = Command::new(program);
    command.args(["cluster", action]).arg(name).arg("--directory").arg(clusters).env("PATH", search_path());
    Ok(command)
}

/// The command that runs a task inside.
fn command(program: &Path, process: Pid, has_cgroup: bool, name: &str, task: Task<'_>) -> Command {
    let mut command = Command::new("nsenter");
    command.env("PATH", search_path()).arg(format!("--target={process}"));
    command.args(["--user", "--mount", "--net", "--ipc", "--pid"]).args(has_cgroup.then_some("--cgroup")).arg("--");
    command.arg(program).args(["cluster", "inside", name, "--directory", INSIDE]);
    match task {
        Task::Start => command.arg("--start"),
        Task::Stop => command.arg("--stop"),
        Task::Delete => command.arg("--delete"),
        Task::Load(archive) => command.arg("--load").arg(archive),
    };
    command
}

/// Whether a process has a cgroup namespace of its own: only then can it be entered.
fn has_own_cgroups(process: Pid) -> anyhow::Result<bool> {
    let link = |process: &str| {
        std::fs::read_link(format!("/proc/{process}/ns/cgroup"))
            .with_context(|| format!("cannot enter process {process}"))
    };
    Ok(link(&process.to_string())? != link("self")?)
}

/// Runs a task inside and reports its progress. The error is what the task printed.
pub fn run(process: Pid, name: &str, task: Task<'_>, progress: Progress<'_>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = command(&program, process, has_own_cgroups(process)?, name, task);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot run nsenter")?;
    let (Some(output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else { bail!("no pipes") };
    let printed = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut printed = Vec::new();
            errors.read_to_end(&mut printed).map(|_| printed)
        });
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            progress(&line);
        }
        reading.join()
    });
    if child.wait()?.success() {
        return Ok(());
    }
    let Ok(Ok(printed)) = printed else { bail!("cannot read the errors of a task in the namespaces of the cluster") };
    let printed = String::from_utf8_lossy(&printed);
    bail!("{}", printed.trim().trim_start_matches("knarr: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_all_namespaces_of_the_cluster() {
        let words = |task| {
            let command = command(Path::new("/bin/knarr"), Pid::from_raw(7), false, "dev", task);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let common = "--target=7 --user --mount --net --ipc --pid -- /bin/knarr cluster inside dev --directory \
                      /run/knarr-clusters";
        for (task, expected) in [
            (Task::Start, "--start"),
            (Task::Stop, "--stop"),
            (Task::Delete, "--delete"),
            (Task::Load(Path::new("/a b.tar")), "--load /a b.tar"),
        ] {
            assert_eq!(words(task), format!("{common} {expected}"));
        }
        let with = command(Path::new("/bin/knarr"), Pid::from_raw(7), true, "dev", Task::Start);
        assert!(with.get_args().any(|word| word == "--cgroup"));
    }
}
