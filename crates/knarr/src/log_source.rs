//! Where the log of Knarr on this host is: systemd's journal, or a file.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

use crate::{data_directory_lock, service};

/// Where a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The units of systemd's journal.
    Journal(Vec<String>),
    File(PathBuf),
}

/// Finds the log of the Knarr that uses a data directory.
pub fn find(data: &Path) -> anyhow::Result<Source> {
    let units = service::names(data);
    if !units.is_empty() {
        return Ok(Source::Journal(units));
    }
    // Local clusters have a file beside the data directory of each node, also while it is stopped.
    let beside = data.with_extension("log");
    if beside.is_file() {
        return Ok(Source::File(beside));
    }
    let Some(process) = data_directory_lock::find(data)? else {
        bail!("Knarr is not running on {}, and there is no service of it", data.display());
    };
    let target = std::fs::read_link(format!("/proc/{process}/fd/2"));
    let target = target.with_context(|| format!("cannot find the log of process {process}: are you root?"))?;
    if !target.is_file() {
        bail!(
            "Knarr (process {process}) writes its log to {}, where only its terminal or the program that started it reads it; \
             `knarr install server` makes it a service with a journal",
            target.display()
        );
    }
    Ok(Source::File(target))
}

/// The log of a node's container runtime.
pub fn containerd_log(data: &Path) -> PathBuf {
    data.join("containerd/containerd.log")
}

impl Source {
    /// Starts a program that prints the last lines.
    pub fn open(&self, tail: usize, follow: bool) -> anyhow::Result<Child> {
        let tail = tail.to_string();
        let mut command = match self {
            Source::Journal(units) => {
                let mut command = Command::new("journalctl");
                command.args(["--no-pager", "--quiet", "--output", "short-iso", "--lines", &tail]);
                command.args(units.iter().flat_map(|unit| ["--unit", unit]));
                command
            }
            Source::File(path) => {
                std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                let mut command = Command::new("tail");
                command.args(["-n", &tail]);
                command
            }
        };
        if follow {
            command.arg(if matches!(self, Source::File(_)) { "-F" } else { "--follow" });
        }
        if let Source::File(path) = self {
            command.arg("--").arg(path);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().with_context(|| format!("cannot run {}", command.get_program().display()))
    }
}
