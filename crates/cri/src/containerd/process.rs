//! Starting containerd apart from us and finding it again.
//!
//! It runs in a session of its own, so that neither a signal to Knarr's group nor Knarr's end reaches it, and its
//! containers outlive both. A restarted Knarr adopts whatever answers on the socket; where its settings are no longer
//! those that Knarr would give it, it is started anew, and the containers go on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{ContainerdConfig, PAUSE_IMAGE, import, orphans, pause_archive, render};
use crate::client::{CallError, Runtime};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{path} could not be written")]
    Write { path: PathBuf, source: io::Error },
    #[error("containerd could not be started")]
    Spawn(#[source] io::Error),
    #[error("containerd ended right after its start, see {log}")]
    Ended { log: PathBuf },
    #[error("containerd was killed as it started: {status}")]
    Killed { status: ExitStatus },
    #[error("containerd did not answer within {seconds} s, see {log}")]
    Silent { seconds: u64, log: PathBuf },
    #[error("containerd (process {process}) has other settings than it should and does not end")]
    Stays { process: i32 },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the pause image could not be imported")]
    Pause(#[from] super::ImportError),
}

impl StartError {
    /// Whether another try may go better: containerd itself was there, and then it was not.
    fn may_pass(&self) -> bool {
        matches!(self, StartError::Killed { .. } | StartError::Call(_) | StartError::Pause(_))
    }
}

/// How many looks at containerd come on one for shims it has lost.
const ROUNDS_PER_LOOK: u32 = 2;
/// A machine that is slow, or busy as all its services start, takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// A containerd whose files all live under one directory.
#[derive(Clone, Debug)]
pub struct Containerd {
    directory: PathBuf,
    config: ContainerdConfig,
}

impl Containerd {
    /// `directory` is where everything of this containerd lives; `cni_binaries` and `cni_configuration` are shared with
    /// whoever writes the pod network's configuration.
    pub fn new(directory: &Path, cni_binaries: &Path, cni_configuration: &Path) -> Self {
        let config = ContainerdConfig {
            root: directory.join("root"),
            state: directory.join("state"),
            socket: directory.join("containerd.sock"),
            sandbox_image: PAUSE_IMAGE.to_string(),
            cni_binaries: cni_binaries.to_path_buf(),
            cni_configuration: cni_configuration.to_path_buf(),
            registry_configuration: directory.join("registries"),
            restrict_oom_score: !may_lower_oom_scores(),
            systemd_cgroup: false,
            runtime_handlers: Vec::new(),
        };
        Self { directory: directory.to_path_buf(), config }
    }

    #[must_use]
    pub fn with_runtime_handler(mut self, name: &str, binary: &Path) -> Self {
        self.config.runtime_handlers.push((name.to_string(), binary.to_path_buf()));
        self
    }

    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// Adopts the containerd that answers on the socket, or starts one; returns when it serves CRI and has its pause
    /// image. One that is lost on the way is tried again.
    pub async fn ensure(&self) -> Result<Runtime, StartError> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.adopt_or_start().await {
                Err(error) if error.may_pass() && tokio::time::Instant::now() < deadline => {
                    tracing::warn!(%error, "containerd was lost as it was being started");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn adopt_or_start(&self) -> Result<Runtime, StartError> {
        let runtime = Runtime::connect(&self.config.socket.to_string_lossy())?;
        if !self.answers(&runtime).await {
            self.start(&runtime).await?;
        } else if self.is_configured() {
            tracing::info!(socket = %self.config.socket.display(), "containerd runs already");
        } else {
            tracing::info!("containerd has other settings than it should: it is started anew");
            self.end().await?;
            self.start(&runtime).await?;
        }
        if runtime.image_status(PAUSE_IMAGE).await?.is_none() {
            self.import_pause(&runtime).await?;
        }
        Ok(runtime)
    }

    /// Whether a containerd of ours answers. One that runs is given time: it may have been started a moment ago, or the
    /// machine is busy, and a second one on the same files would help nobody.
    async fn answers(&self, runtime: &Runtime) -> bool {
        let deadline = tokio::time::Instant::now() + PATIENCE;
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

    fn is_configured(&self) -> bool {
        std::fs::read_to_string(self.file()).is_ok_and(|text| text == render(&self.config))
    }

    /// Ends the containerd that runs, and waits until it has ended.
    async fn end(&self) -> Result<(), StartError> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut asked = None;
        while let Some(process) = running(Path::new("/proc"), &self.file()) {
            if tokio::time::Instant::now() >= deadline {
                return Err(StartError::Stays { process });
            }
            if asked != Some(process) {
                // It may just have ended by itself.
                let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
                asked = Some(process);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn start(&self, runtime: &Runtime) -> Result<(), StartError> {
        if self.config.restrict_oom_score {
            tracing::warn!("CAP_SYS_RESOURCE is missing: the out-of-memory scores of containers can't be lowered");
        }
        for (directory, mode) in directories(&self.directory, &self.config) {
            limit(&directory, mode).map_err(|source| StartError::Write { path: directory.clone(), source })?;
        }
        let file = self.file();
        std::fs::write(&file, render(&self.config))
            .map_err(|source| StartError::Write { path: file.clone(), source })?;
        let log_path = self.directory.join("containerd.log");
        let log = open_log(&log_path)?;
        let errors = log.try_clone().map_err(|source| StartError::Write { path: log_path.clone(), source })?;
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&file).arg("--log-level").arg("warn");
        command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/");
        // It would tell systemd that we are ready when it is.
        command.env_remove("NOTIFY_SOCKET");
        // SAFETY: setsid and prctl are async-signal-safe and touch only the child.
        unsafe {
            command.pre_exec(|| {
                // Whether we do without huge pages is inherited, and containers are to decide for themselves.
                let _ = nix::sys::prctl::set_thp_disable(false);
                nix::unistd::setsid().map(drop).map_err(io::Error::from)
            });
        }
        let started = SystemTime::now();
        let mut child = command.spawn().map_err(StartError::Spawn)?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(10);
        loop {
            if runtime.version().await.is_ok() {
                break;
            }
            if let Ok(Some(status)) = child.try_wait() {
                return Err(match status.signal() {
                    Some(_) => StartError::Killed { status },
                    None => StartError::Ended { log: log_path },
                });
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(StartError::Silent { seconds: PATIENCE.as_secs(), log: log_path });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
        tracing::info!(pid = child.id(), socket = %self.config.socket.display(), "containerd started");
        orphans::clear(&self.config, runtime, started).await;
        // Should containerd end while we live, it must be collected or it would stay as a zombie.
        std::thread::Builder::new()
            .name("containerd-wait".into())
            .stack_size(64 << 10)
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    tracing::warn!(%status, "containerd ended");
                }
            })
            .map_err(StartError::Spawn)?;
        Ok(())
    }

    async fn import_pause(&self, runtime: &Runtime) -> Result<(), StartError> {
        let path = self.directory.join("pause.tar");
        std::fs::write(&path, pause_archive()).map_err(|source| StartError::Write { path: path.clone(), source })?;
        import(&self.config.socket, &path).await?;
        // The CRI part learns of an import by an event, a moment after it.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while runtime.image_status(PAUSE_IMAGE).await?.is_none() {
            if tokio::time::Instant::now() >= deadline {
                let log = self.directory.join("containerd.log");
                return Err(StartError::Silent { seconds: PATIENCE.as_secs(), log });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Watches over the runtime for as long as we live: starts it again whenever it does not answer.
    pub async fn supervise(self, runtime: Runtime) {
        let mut failures = 0;
        let mut inherited = orphans::Inherited::find(&self.config);
        let mut rounds = 0;
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            rounds += 1;
            match runtime.version().await {
                Ok(_) => {
                    failures = 0;
                    if rounds % ROUNDS_PER_LOOK == 0 {
                        inherited.look(&runtime).await;
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "containerd does not answer");
                    // A busy machine makes it slow. A second one on the same files would help nobody.
                    if running(Path::new("/proc"), &self.file()).is_some() {
                        continue;
                    }
                    if let Err(error) = self.start(&runtime).await {
                        tracing::error!(%error, "containerd could not be started again");
                    }
                    inherited = orphans::Inherited::find(&self.config);
                }
            }
        }
    }
}

/// The containerd with this configuration that lives, whoever started it.
fn running(processes: &Path, configuration: &Path) -> Option<i32> {
    let mut entries = std::fs::read_dir(processes).into_iter().flatten().flatten();
    entries.find_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let named = words.first().is_some_and(|program| program.ends_with(b"containerd"));
        (named && words.contains(&configuration.as_os_str().as_bytes())).then_some(process)
    })
}

fn open_log(path: &Path) -> Result<File, StartError> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| StartError::Write { path: path.to_path_buf(), source })
}

/// CAP_SYS_RESOURCE is bit 24 of the effective set.
fn may_lower_oom_scores() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & (1 << 24) != 0)
}

/// Each directory, and the most that its mode allows. Containers with users of their own pass through the directory of
/// states; images, layers and what the runtime keeps of pods are nobody else's.
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

/// Creates a directory, or takes from the mode of an existing one what goes beyond.
fn limit(directory: &Path, most: u32) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(most).create(directory)?;
    let mode = std::fs::metadata(directory)?.permissions().mode() & 0o7777;
    match mode & most == mode {
        true => Ok(()),
        false => std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode & most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containerd_is_known_by_its_configuration() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = folder.path().join("7");
        std::fs::create_dir(&process).expect("a folder");
        std::fs::write(process.join("cmdline"), "containerd\0--config\0/a/config.toml\0").expect("a file");
        assert_eq!(running(folder.path(), Path::new("/a/config.toml")), Some(7));
        assert_eq!(running(folder.path(), Path::new("/b/config.toml")), None);
    }

    #[test]
    fn other_users_do_not_reach_what_the_runtime_keeps() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let config = ContainerdConfig {
            root: path("c/root"),
            state: path("run"),
            socket: path("run/c.sock"),
            sandbox_image: String::new(),
            cni_binaries: path("cni"),
            cni_configuration: path("net"),
            registry_configuration: path("registries"),
            restrict_oom_score: true,
            systemd_cgroup: false,
            runtime_handlers: Vec::new(),
        };
        let kept = path("run/io.containerd.grpc.v1.cri");
        for open in [&config.root, &kept] {
            std::fs::create_dir_all(open).expect("made");
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o755)).expect("set");
        }
        for (directory, most) in directories(&path("c"), &config) {
            limit(&directory, most).expect("limited");
        }
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&config.root), mode(&kept)), (0o700, 0o700));
        assert_eq!(mode(&config.state) & !0o711, 0);
    }
}
