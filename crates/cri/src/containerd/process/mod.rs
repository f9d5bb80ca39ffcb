//! Starts and adopts the node's containerd process; `health` watches it.
//!
//! It runs in its own session, so that neither a signal to Knarr's process group nor Knarr's exit reaches it, and its
//! containers survive both. A restarted Knarr adopts the containerd that responds on the socket; if the configuration has
//! changed, it restarts that containerd while the containers keep running.

mod health;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{
    ContainerdConfig, Format, OLDEST_RELEASE, PAUSE_IMAGE, Snippet, import, orphans, pause_archive, release, render,
};
use crate::client::Runtime;
use crate::error::CallError;
use crate::privileges::Privileges;

pub use health::HealthChecks;

/// Why containerd could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file or directory could not be written.
    #[error("{path} could not be written")]
    Write { path: PathBuf, source: io::Error },
    /// The process could not be spawned.
    #[error("containerd could not be started")]
    Spawn(#[source] io::Error),
    /// It does not serve version 1 of CRI.
    #[error("the containerd of this host is too old: it is {printed:?}, and 1.6 or later is needed")]
    TooOld { printed: String },
    /// It exited by itself.
    #[error("containerd exited right after its start, see {log}")]
    Exited { log: PathBuf },
    /// It was killed by a signal.
    #[error("containerd was killed as it started: {status}")]
    Killed { status: ExitStatus },
    /// It did not serve CRI in time.
    #[error("containerd did not respond within {seconds} s, see {log}")]
    Timeout { seconds: u64, log: PathBuf },
    /// A containerd with an outdated configuration does not stop.
    #[error("containerd (process {process}) has an outdated configuration and does not stop")]
    DoesNotStop { process: i32 },
    /// A CRI call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The pause image could not be imported.
    #[error("the pause image could not be imported")]
    Pause(#[from] super::ImportError),
}

impl StartError {
    /// Whether a retry may succeed: containerd was running and then was lost.
    fn is_transient(&self) -> bool {
        matches!(self, StartError::Killed { .. } | StartError::Call(_) | StartError::Pause(_))
    }
}

const PROGRAM: &str = "containerd";
/// How long a hung containerd has to terminate before it is killed.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Long enough for a slow host on which all services start at once.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A containerd whose files all live under one directory.
#[derive(Clone, Debug)]
pub struct Containerd {
    directory: PathBuf,
    config: ContainerdConfig,
}

impl Containerd {
    /// `directory` holds all files of this containerd; `cni_binaries` and `cni_configuration` are shared with the pod
    /// network.
    pub fn new(directory: &Path, cni_binaries: &Path, cni_configuration: &Path) -> Self {
        let config = ContainerdConfig {
            root: directory.join("root"),
            state: directory.join("state"),
            socket: directory.join("containerd.sock"),
            sandbox_image: PAUSE_IMAGE.to_string(),
            cni_binaries: cni_binaries.to_path_buf(),
            cni_configuration: cni_configuration.to_path_buf(),
            registry_configuration: directory.join("registries"),
            privileges: Privileges::read(),
            systemd_cgroup: false,
            snippets: Vec::new(),
        };
        Self { directory: directory.to_path_buf(), config }
    }

    /// Adds snippets of configuration.
    #[must_use]
    pub fn with_snippets(mut self, snippets: Vec<Snippet>) -> Self {
        self.config.snippets = snippets;
        self
    }

    /// The directory of `hosts.toml` files.
    pub fn registry_configuration(&self) -> &Path {
        &self.config.registry_configuration
    }

    /// The unix socket it serves on.
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// Adopts the containerd that responds on the socket, or starts one; returns when it serves CRI and has its pause
    /// image. Retries when containerd is lost in between.
    pub async fn ensure(&self) -> Result<Runtime, StartError> {
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        loop {
            match self.adopt_or_start().await {
                Err(error) if error.is_transient() && tokio::time::Instant::now() < deadline => {
                    tracing::warn!(%error, "containerd was lost during its start; retrying");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn adopt_or_start(&self) -> Result<Runtime, StartError> {
        let runtime = Runtime::connect(&self.config.socket.to_string_lossy())?;
        if !self.responds(&runtime).await {
            self.start(&runtime).await?;
        } else if self.is_configured().await {
            tracing::info!(socket = %self.config.socket.display(), "containerd is already running");
        } else {
            tracing::info!("the configuration of containerd has changed: restarting it");
            self.stop().await?;
            self.start(&runtime).await?;
        }
        if runtime.image_status(PAUSE_IMAGE).await?.is_none() {
            self.import_pause(&runtime).await?;
        }
        Ok(runtime)
    }

    /// Whether our containerd responds. Waits for one that runs: it may just have been started, or the host is busy, and
    /// a second one on the same files would do harm.
    async fn responds(&self, runtime: &Runtime) -> bool {
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        loop {
            if runtime.version().await.is_ok() {
                return true;
            }
            let runs = running(Path::new("/proc"), &self.file()).is_some();
            if !runs || tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("config.toml")
    }

    async fn is_configured(&self) -> bool {
        let desired = self.rendered(&printed_version().await);
        std::fs::read_to_string(self.file()).is_ok_and(|text| text == desired)
    }

    /// The configuration file for the containerd of this host.
    fn rendered(&self, printed_version: &str) -> String {
        render(&self.config, Format::for_release(printed_version))
    }

    /// Stops the running containerd, and waits until it has exited.
    async fn stop(&self) -> Result<(), StartError> {
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        let mut signalled = None;
        while let Some(process) = running(Path::new("/proc"), &self.file()) {
            if tokio::time::Instant::now() >= deadline {
                return Err(StartError::DoesNotStop { process });
            }
            if signalled != Some(process) {
                // Fails only when it has just exited by itself.
                let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
                signalled = Some(process);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Ends a containerd that may be hung. Its containers keep running.
    async fn kill(&self) {
        let deadline = tokio::time::Instant::now() + TERMINATION_TIMEOUT;
        let mut signal = Signal::SIGTERM;
        while let Some(process) = running(Path::new("/proc"), &self.file()) {
            if tokio::time::Instant::now() >= deadline {
                signal = Signal::SIGKILL;
            }
            // Fails only when it has just exited by itself.
            let _ = kill(Pid::from_raw(process), signal);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn start(&self, runtime: &Runtime) -> Result<(), StartError> {
        if !self.config.privileges.lower_oom_scores {
            tracing::warn!("CAP_SYS_RESOURCE is missing: the out-of-memory scores of containers can't be lowered");
        }
        for (directory, mode) in directories(&self.directory, &self.config) {
            restrict(&directory, mode).map_err(|source| StartError::Write { path: directory.clone(), source })?;
        }
        let printed = printed_version().await;
        if release(&printed).is_some_and(|release| release < OLDEST_RELEASE) {
            return Err(StartError::TooOld { printed });
        }
        let file = self.file();
        std::fs::write(&file, self.rendered(&printed))
            .map_err(|source| StartError::Write { path: file.clone(), source })?;
        let log_path = self.directory.join("containerd.log");
        let started = SystemTime::now();
        let mut child = spawn(&file, &log_path)?;
        wait_until_ready(&mut child, runtime, log_path).await?;
        tracing::info!(pid = child.id(), socket = %self.config.socket.display(), "containerd started");
        orphans::clear(&self.config, runtime, started).await;
        // If containerd exits while we run, it must be reaped or it would stay as a zombie.
        std::thread::Builder::new()
            .name("containerd-wait".into())
            .stack_size(64 << 10)
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    tracing::warn!(%status, "containerd exited");
                }
            })
            .map_err(StartError::Spawn)?;
        Ok(())
    }

    async fn import_pause(&self, runtime: &Runtime) -> Result<(), StartError> {
        let path = self.directory.join("pause.tar");
        std::fs::write(&path, pause_archive()).map_err(|source| StartError::Write { path: path.clone(), source })?;
        import(&self.config.socket, &path).await?;
        // The CRI plugin learns of an import through an event, a moment later.
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        while runtime.image_status(PAUSE_IMAGE).await?.is_none() {
            if tokio::time::Instant::now() >= deadline {
                let log = self.directory.join("containerd.log");
                return Err(StartError::Timeout { seconds: START_TIMEOUT.as_secs(), log });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// What the containerd of this host says about itself. If it cannot be run, its start fails and says so.
async fn printed_version() -> String {
    let output = tokio::process::Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().await;
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// The process ID of the running containerd with this configuration, whoever started it. One that sees another file under this
/// path belongs to another node.
fn running(processes: &Path, configuration: &Path) -> Option<i32> {
    let mut entries = std::fs::read_dir(processes).into_iter().flatten().flatten();
    entries.find_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let arguments: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let named = arguments.first().is_some_and(|program| program.ends_with(b"containerd"));
        let is_configured = named && arguments.contains(&configuration.as_os_str().as_bytes());
        (is_configured && orphans::sees(processes, process, configuration)).then_some(process)
    })
}

/// Starts containerd with a configuration file, in a session of its own.
fn spawn(file: &Path, log_path: &Path) -> Result<Child, StartError> {
    let log = open_log(log_path)?;
    let errors = log.try_clone().map_err(|source| StartError::Write { path: log_path.to_owned(), source })?;
    let mut command = Command::new(PROGRAM);
    command.arg("--config").arg(file).arg("--log-level").arg("warn");
    command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/");
    // Otherwise it would notify systemd of its own readiness as ours.
    command.env_remove("NOTIFY_SOCKET");
    // SAFETY: setsid and prctl are async-signal-safe and touch only the child.
    unsafe {
        command.pre_exec(|| {
            // Knarr's huge page setting is inherited, but containers must have their own.
            let _ = nix::sys::prctl::set_thp_disable(false);
            nix::unistd::setsid().map(drop).map_err(io::Error::from)
        });
    }
    command.spawn().map_err(StartError::Spawn)
}

/// Waits until containerd responds, for as long as its process runs.
async fn wait_until_ready(child: &mut Child, runtime: &Runtime, log: PathBuf) -> Result<(), StartError> {
    let deadline = tokio::time::Instant::now() + START_TIMEOUT;
    let mut backoff = Duration::from_millis(10);
    loop {
        if runtime.version().await.is_ok() {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(match status.signal() {
                Some(_) => StartError::Killed { status },
                None => StartError::Exited { log },
            });
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(StartError::Timeout { seconds: START_TIMEOUT.as_secs(), log });
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(Duration::from_millis(200));
    }
}

fn open_log(path: &Path) -> Result<File, StartError> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| StartError::Write { path: path.to_path_buf(), source })
}

/// Each directory with the maximum of its mode. Containers in user namespaces traverse the state directory; images, layers
/// and the runtime's data about pods are private.
fn directories(own: &Path, config: &ContainerdConfig) -> [(PathBuf, u32); 6] {
    [
        (own.to_path_buf(), 0o711),
        (config.cni_configuration.clone(), 0o711),
        (config.registry_configuration.clone(), 0o711),
        (config.state.clone(), 0o711),
        (config.state.join("io.containerd.grpc.v1.cri"), 0o700),
        (config.root.clone(), 0o700),
    ]
}

/// Creates a directory, or removes excess permissions from an existing one.
fn restrict(directory: &Path, max_mode: u32) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(max_mode).create(directory)?;
    let mode = std::fs::metadata(directory)?.permissions().mode() & 0o7777;
    match mode & max_mode == mode {
        true => Ok(()),
        false => std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode & max_mode)),
    }
}

#[cfg(test)]
mod tests;
