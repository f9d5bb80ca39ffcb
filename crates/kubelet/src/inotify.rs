//! Waits for changes of a file or directory with inotify.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// An inotify watch of one path.
pub struct Watcher(AsyncFd<Descriptor>);

struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Watcher {
    /// Watches a directory's entries, or a file's content.
    pub fn new(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_DELETE_SELF;
        inotify.add_watch(path, flags)?;
        // SAFETY: the descriptor is the same for as long as the watcher lives, and is closed with it.
        let descriptor = unsafe { AsyncFd::register(Descriptor(inotify)) };
        Ok(Self(descriptor?))
    }

    /// Waits for the next change; returns at once if there were changes since the last call.
    pub async fn changed(&self) -> io::Result<AddWatchFlags> {
        let mut ready = self.0.readable().await?;
        let mut changes = AddWatchFlags::empty();
        while let Ok(events) = self.0.get_ref().0.read_events() {
            changes.extend(events.into_iter().map(|event| event.mask));
        }
        ready.clear_ready();
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn a_new_file_is_reported() {
        let directory = tempfile::tempdir().expect("a directory");
        let watcher = super::Watcher::new(directory.path()).expect("a watch");
        std::fs::write(directory.path().join("a"), "x").expect("written");
        let changed = tokio::time::timeout(std::time::Duration::from_secs(5), watcher.changed()).await;
        changed.expect("in time").expect("a change");
    }
}
