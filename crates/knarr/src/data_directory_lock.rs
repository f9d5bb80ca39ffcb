//! The lock of a data directory. One process at a time uses it, and other commands can find that process to stop it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const POLL_INTERVAL: Duration = Duration::from_millis(10);
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// The lock held by this process; released when the process exits, however it exits.
pub struct DataDirectoryLock {
    _lock: Flock<File>,
}

impl DataDirectoryLock {
    /// Holds the lock until the process has exited.
    pub fn until_exit(self) {
        std::mem::forget(self);
    }
}

/// Locks a data directory for this process.
pub fn acquire(data: &Path) -> anyhow::Result<DataDirectoryLock> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot create {}: are you root?", data.display()))?;
    let path = lock_path(data);
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let started = Instant::now();
    let mut file = file;
    let mut lock = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            // A killed process holds the lock until its last thread has exited.
            Err((unlocked, Errno::EWOULDBLOCK)) if started.elapsed() < EXIT_GRACE => {
                file = unlocked;
                std::thread::sleep(POLL_INTERVAL);
            }
            Err((file, Errno::EWOULDBLOCK)) => bail!(
                "Knarr is already running on {} (process {}): stop it with `knarr stop`, or choose another --data-dir",
                data.display(),
                read_pid(file).map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            ),
            Err((_, error)) => return Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    };
    let sign = |lock: &mut File| {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())
    };
    sign(&mut lock).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(DataDirectoryLock { _lock: lock })
}

/// Whether a process has ever used a data directory.
pub fn was_here(data: &Path) -> bool {
    lock_path(data).exists()
}

/// The process that uses a data directory, if any.
pub fn find(data: &Path) -> anyhow::Result<Option<Pid>> {
    let path = lock_path(data);
    let file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("cannot open {}", path.display()))?,
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(None),
        Err((file, Errno::EWOULDBLOCK)) => match read_pid(file) {
            Some(pid) => Ok(Some(pid)),
            None => bail!("a process holds {} but has not written its id", path.display()),
        },
        Err((_, error)) => Err(error).with_context(|| format!("cannot check {}", path.display())),
    }
}

/// Stops the process that uses a data directory and waits for its exit. Returns whether there was one.
pub fn stop(data: &Path, timeout: Duration) -> anyhow::Result<bool> {
    let Some(pid) = find(data)? else { return Ok(false) };
    kill(pid, Signal::SIGTERM).with_context(|| format!("cannot stop process {pid}: are you root?"))?;
    let started = Instant::now();
    while find(data)?.is_some() {
        if started.elapsed() > timeout {
            bail!("process {pid} did not stop within {} s; see its log", timeout.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(true)
}

fn lock_path(data: &Path) -> PathBuf {
    data.join("knarr.lock")
}

fn read_pid(mut file: File) -> Option<Pid> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_locks_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(find(directory.path()).unwrap(), None);
        assert!(!was_here(directory.path()));
        let running = acquire(directory.path()).unwrap();
        assert_eq!(find(directory.path()).unwrap(), Some(Pid::this()));
        let refused = acquire(directory.path()).err().unwrap().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        drop(running);
        assert_eq!(find(directory.path()).unwrap(), None);
        assert!(acquire(directory.path()).is_ok());
        assert!(was_here(directory.path()));
    }
}
