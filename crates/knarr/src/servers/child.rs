//! The etcd process of this server: started, restarted with a growing delay when it exits, and stopped with the server.
//!
//! One thread owns the process: the kernel kills a child whose parent thread ends (`set_pdeathsig`), so a server that was
//! killed leaves no etcd behind that would hold its ports and files.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::sync::watch;

const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A process that ran this long is restarted with the initial backoff.
const STABLE: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// What etcd writes before it exits because the other members removed it.
const REMOVED: [&str; 2] = ["permanently removed from the cluster", "has been removed from the cluster"];

/// The state of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    /// It exited for this reason and will be restarted.
    Restarting(String),
    /// The other members have removed this one.
    Removed,
    Stopped,
}

/// A supervised etcd.
pub struct EtcdProcess {
    pid: Arc<Mutex<Option<Pid>>>,
    stop: Sender<()>,
    pub state: watch::Receiver<State>,
    thread: Option<JoinHandle<()>>,
}

impl EtcdProcess {
    /// Starts the process, and restarts it when it exits. `command` is called for each start.
    pub fn start(command: impl Fn() -> Command + Send + 'static) -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (states, state) = watch::channel(State::Running);
        let pid = Arc::new(Mutex::new(None));
        let supervisor = Supervisor { pid: Arc::clone(&pid), stopped, states };
        let thread = std::thread::Builder::new()
            .name("etcd".to_owned())
            .spawn(move || supervisor.run(command))
            .context("cannot start a thread for etcd")?;
        Ok(Self { pid, stop, state, thread: Some(thread) })
    }

    /// The id of the current process, if it runs.
    pub fn pid(&self) -> Option<Pid> {
        *self.pid.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Kills the process, which is then restarted.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Stops the process and waits for its exit. A leader hands over its leadership first.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The receiver is gone if the supervisor has ended by itself.
        let _ = self.stop.send(());
        self.signal(Signal::SIGTERM);
        let started = Instant::now();
        while !thread.is_finished() && started.elapsed() < STOP_TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.signal(Signal::SIGKILL);
        if thread.join().is_err() {
            tracing::error!("the supervisor of etcd panicked");
        }
    }

    fn signal(&self, signal: Signal) {
        // The process is reaped only under this lock: its id belongs to no other process.
        let pid = self.pid.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(pid) = *pid
            && let Err(error) = kill(pid, signal)
        {
            tracing::warn!(%error, %signal, "cannot signal etcd");
        }
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Supervisor {
    pid: Arc<Mutex<Option<Pid>>>,
    stopped: Receiver<()>,
    states: watch::Sender<State>,
}

impl Supervisor {
    fn run(self, command: impl Fn() -> Command) {
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let started = Instant::now();
            let end = self.run_once(command());
            if let Err(mpsc::TryRecvError::Disconnected) | Ok(()) = self.stopped.try_recv() {
                self.states.send_replace(State::Stopped);
                return;
            }
            let reason = match end {
                Ok(end) if end.is_removed => {
                    self.states.send_replace(State::Removed);
                    return;
                }
                Ok(end) => describe(&end),
                Err(error) => format!("cannot run etcd: {error}"),
            };
            tracing::error!(reason, "etcd exited; starting it again");
            self.states.send_replace(State::Restarting(reason));
            backoff = next_backoff(backoff, started.elapsed());
            match self.stopped.recv_timeout(backoff) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => {
                    self.states.send_replace(State::Stopped);
                    return;
                }
            }
        }
    }

    fn run_once(&self, mut command: Command) -> std::io::Result<End> {
        die_with_this_thread(&mut command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        *self.pid.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Pid::from_raw(child.id() as i32));
        self.states.send_replace(State::Running);
        let log = child.stderr.take().map(|errors| std::thread::spawn(move || forward_log(BufReader::new(errors))));
        let status = self.wait(&mut child)?;
        let (last_line, is_removed) = log.and_then(|log| log.join().ok()).unwrap_or_default();
        Ok(End { status, last_line, is_removed })
    }

    /// Waits for the exit without reaping the process, then reaps it under the lock.
    fn wait(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let pid = Pid::from_raw(child.id() as i32);
        loop {
            match waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(_) => break,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut pid = self.pid.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *pid = None;
        child.wait()
    }
}

/// How the process ended.
struct End {
    status: ExitStatus,
    last_line: String,
    is_removed: bool,
}

fn describe(end: &End) -> String {
    let how = match (end.status.code(), end.status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => end.status.to_string(),
    };
    if end.last_line.is_empty() { how } else { format!("{how}: {}", end.last_line) }
}

fn next_backoff(last: Duration, ran: Duration) -> Duration {
    if ran >= STABLE { INITIAL_BACKOFF } else { (last * 2).min(MAX_BACKOFF) }
}

fn die_with_this_thread(command: &mut Command) {
    let parent = nix::unistd::getpid();
    // SAFETY: prctl and getppid are async-signal-safe and touch only the child.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            let _ = nix::sys::prctl::set_thp_disable(false);
            // The server may have died before the first call.
            if nix::unistd::getppid() == parent { Ok(()) } else { Err(std::io::ErrorKind::Interrupted.into()) }
        });
    }
}

/// Logs what etcd writes; returns its last message, and whether it said that it was removed.
fn forward_log(lines: impl BufRead) -> (String, bool) {
    let (mut last, mut is_removed) = (String::new(), false);
    // Read to the end whatever comes: etcd would wait for room in a pipe that nobody reads.
    for line in lines.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let (level, message) = parse_line(&line);
        is_removed |= REMOVED.iter().any(|text| line.contains(text));
        match level.as_str() {
            "fatal" | "panic" | "error" => tracing::warn!(target: "knarr::etcd", "{message}"),
            "warn" => tracing::info!(target: "knarr::etcd", "{message}"),
            _ => tracing::debug!(target: "knarr::etcd", "{message}"),
        }
        last = message;
    }
    (last, is_removed)
}

/// The level and the message of a line of etcd's log, which is JSON unless etcd fails early.
fn parse_line(line: &str) -> (String, String) {
    let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(line) else {
        return ("error".to_owned(), line.to_owned());
    };
    let text = |key: &str| fields.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let error = fields.get("error").map(|error| error.as_str().map_or_else(|| error.to_string(), str::to_owned));
    let message = match error {
        Some(error) => format!("{}: {error}", text("msg")),
        None => text("msg").to_owned(),
    };
    (text("level").to_owned(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> impl Fn() -> Command + Send + 'static {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        }
    }

    #[tokio::test]
    async fn a_process_that_exits_is_started_again_and_stopped_with_its_owner() {
        let mut process = EtcdProcess::start(shell("echo '{\"level\":\"fatal\",\"msg\":\"no\"}' >&2; exit 3")).unwrap();
        let reason = "exit code 3: no".to_owned();
        process.state.wait_for(|state| *state == State::Restarting(reason.clone())).await.unwrap();
        process.state.wait_for(|state| *state == State::Running).await.unwrap();
        process.stop();
        assert_eq!(*process.state.borrow(), State::Stopped);
    }

    #[tokio::test]
    async fn a_killed_process_is_started_again() {
        let mut process = EtcdProcess::start(shell("exec sleep 600")).unwrap();
        let first = || *process.pid.lock().unwrap();
        while first().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        process.kill();
        process.state.wait_for(|state| matches!(state, State::Restarting(_))).await.unwrap();
        process.state.wait_for(|state| *state == State::Running).await.unwrap();
        process.stop();
    }

    #[tokio::test]
    async fn a_removed_member_is_not_started_again() {
        let script =
            "echo '{\"level\":\"warn\",\"msg\":\"the member has been permanently removed from the cluster\"}' >&2";
        let mut process = EtcdProcess::start(shell(script)).unwrap();
        process.state.wait_for(|state| *state == State::Removed).await.unwrap();
    }

    #[test]
    fn the_log_is_read_to_its_end() {
        let log: &[u8] = b"\xff\xfe\n{\"level\":\"error\",\"msg\":\"last\"}\n";
        assert_eq!(forward_log(log), ("last".to_owned(), false));
    }

    #[test]
    fn the_delay_grows_and_is_reset_by_a_long_run() {
        assert_eq!(next_backoff(INITIAL_BACKOFF, Duration::ZERO), INITIAL_BACKOFF * 2);
        assert_eq!(next_backoff(MAX_BACKOFF, Duration::ZERO), MAX_BACKOFF);
        assert_eq!(next_backoff(MAX_BACKOFF, STABLE), INITIAL_BACKOFF);
    }
}
