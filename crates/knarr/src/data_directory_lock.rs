//! The lock of a data directory. One process at a time uses it, and other commands can find that process to stop it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
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
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);

/// The lock held by this process; released when the process exits, however it exits.
pub struct DataDirectoryLock {
    lock: Flock<File>,
}

impl DataDirectoryLock {
    /// Holds the lock until the process has exited.
    pub fn until_exit(self) {
        std::mem::forget(self);
    }

    /// Leaves the lock to a process that has inherited its descriptor. It is released when that process exits.
    pub fn hand_over(mut self, process: u32) -> std::io::Result<()> {
        sign(&mut self.lock, process)?;
        // Dropping it would unlock it for both; closing it does not.
        let descriptor = self.lock.as_raw_fd();
        self.until_exit();
        nix::unistd::close(descriptor).map_err(Into::into)
    }
}

impl AsRawFd for DataDirectoryLock {
    fn as_raw_fd(&self) -> RawFd {
        self.lock.as_raw_fd()
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
    sign(&mut lock, std::process::id()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(DataDirectoryLock { lock })
}

fn sign(lock: &mut File, process: u32) -> std::io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{process}")
}

/// Whether a process has ever used a data directory.
pub fn was_here(data: &Path) -> bool {
    lock_path(data).exists()
}

/// The process that uses a data directory, if any.
pub fn find(data: &Path) -> anyhow::Result<Option<Pid>> {
    let path = lock_path(data);
    let started = Instant::now();
    loop {
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("cannot open {}", path.display()))?,
        };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => return Ok(None),
            Err((file, Errno::EWOULDBLOCK)) => match read_pid(file) {
                Some(pid) => return Ok(Some(pid)),
                // It writes its id right after it has locked the file.
                None if started.elapsed() < SIGN_TIMEOUT => std::thread::sleep(POLL_INTERVAL),
                None => bail!("a process holds {} but has not written its id", path.display()),
            },
            Err((_, error)) => return Err(error).with_context(|| format!("cannot check {}", path.display())),
        }
    }
}

/// Stops the process that uses a data directory and waits for its exit. Returns whether there was one.
pub fn stop(data: &Path, timeout: Duration) -> anyhow::Result<bool> {
    let Some(pid) = find(data)? else { return Ok(false) };
    kill(pid, Signal::SIGTERM).with_context(|| format!("cannot stop process {pid}: are you root?"))?;
    wait_for_exit(data, timeout)?;
    Ok(true)
}

/// Waits for the exit of the process that uses a data directory.
pub fn wait_for_exit(data: &Path, timeout: Duration) -> anyhow::Result<()> {
    let started = Instant::now();
    while let Some(pid) = find(data)? {
        if started.elapsed() > timeout {
            bail!("process {pid} did not stop within {} s; see its log", timeout.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
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

    #[test]
    fn a_lock_is_left_to_a_process_that_inherited_it() {
        let directory = tempfile::tempdir().unwrap();
        let lock = acquire(directory.path()).unwrap();
        let mut command = std::process::Command::new("cat");
        command.stdin(std::process::Stdio::piped()).stdout(lock.lock.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        drop(command);
        lock.hand_over(child.id()).unwrap();
        let holder = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert_eq!(find(directory.path()).unwrap(), Some(holder));
        assert!(wait_for_exit(directory.path(), Duration::ZERO).is_err());
        drop(child.stdin.take());
        child.wait().unwrap();
        wait_for_exit(directory.path(), Duration::ZERO).unwrap();
    }
}
