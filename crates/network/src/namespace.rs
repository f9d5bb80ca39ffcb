//! Runs code in another network namespace, on a thread that enters it and exits there, so that the process itself never does.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, PROC_SUPER_MAGIC, statfs};

#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot open the network namespace {0}")]
    Open(String, #[source] std::io::Error),
    #[error("cannot enter the network namespace")]
    Enter(#[source] std::io::Error),
    #[error("the thread in the network namespace failed")]
    Thread,
}

pub fn open(path: &Path) -> Result<File, NamespaceError> {
    File::open(path).map_err(|error| NamespaceError::Open(path.display().to_string(), error))
}

/// Removes a namespace's mount and file.
pub fn remove(path: &Path) -> std::io::Result<()> {
    match nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH) {
        // Not mounted or missing is fine: the goal is that it is gone.
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a path is still a namespace. After unmounting, an ordinary file is left.
pub fn is_alive(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| [NSFS_MAGIC, PROC_SUPER_MAGIC].contains(&status.filesystem_type()))
}

/// Runs `work` on a new thread inside the namespace, within a tokio runtime.
pub fn run_inside<T, F, W>(namespace: &File, work: F) -> Result<T, NamespaceError>
where
    T: Send,
    W: Future<Output = T>,
    F: FnOnce() -> W + Send,
{
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|error| NamespaceError::Enter(error.into()))?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            Ok(runtime.map_err(NamespaceError::Enter)?.block_on(work()))
        });
        thread.join().map_err(|_| NamespaceError::Thread)?
    })
}
