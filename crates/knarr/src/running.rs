//! Who runs on a data directory. One process at a time does, and others can find it to stop it.

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

const LOOK: Duration = Duration::from_millis(10);
const PARTING: Duration = Duration::from_millis(500);

/// The sign that this process runs on a data directory; gone with it, however it ends.
pub struct Running {
    _lock: Flock<File>,
}

impl Running {
    /// Holds on until the process has really ended, which is after everything it does.
    pub fn until_exit(self) {
        std::mem::forget(self);
    }
}

/// Takes a data directory for this process.
pub fn take(data: &Path) -> anyhow::Result<Running> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot make {}", data.display()))?;
    let path = lock_path(data);
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let begun = Instant::now();
    let mut file = file;
    let mut lock = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            // One that was killed holds on until the last of its threads has ended.
            Err((taken, Errno::EWOULDBLOCK)) if begun.elapsed() < PARTING => {
                file = taken;
                std::thread::sleep(LOOK);
            }
            Err((file, Errno::EWOULDBLOCK)) => bail!(
                "Knarr runs on {} already (process {}): `knarr stop` ends it, --data-dir names another directory",
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
    Ok(Running { _lock: lock })
}

/// Whether a process has ever run on a data directory.
pub fn was_here(data: &Path) -> bool {
    lock_path(data).exists()
}

/// The process that runs on a data directory, if one does.
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
            None => bail!("a process holds {} but has not said which it is", path.display()),
        },
        Err((_, error)) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
    }
}

/// Asks the process on a data directory to stop and waits until it has. Tells whether there was one.
pub fn stop(data: &Path, patience: Duration) -> anyhow::Result<bool> {
    let Some(pid) = find(data)? else { return Ok(false) };
    kill(pid, Signal::SIGTERM).with_context(|| format!("process {pid} cannot be stopped: are you root?"))?;
    let begun = Instant::now();
    while find(data)?.is_some() {
        if begun.elapsed() > patience {
            bail!("process {pid} has not stopped within {} s; its log says why", patience.as_secs());
        }
        std::thread::sleep(LOOK);
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
    fn one_process_at_a_time_has_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find(folder.path()).unwrap(), None);
        assert!(!was_here(folder.path()));
        let running = take(folder.path()).unwrap();
        assert_eq!(find(folder.path()).unwrap(), Some(Pid::this()));
        let refused = take(folder.path()).err().unwrap().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        drop(running);
        assert_eq!(find(folder.path()).unwrap(), None);
        assert!(take(folder.path()).is_ok());
        assert!(was_here(folder.path()));
    }
}
