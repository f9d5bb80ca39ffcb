//! Waits for changes of a file or directory with inotify.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
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
        Ok(self.events().await?.into_iter().map(|event| event.mask).collect())
    }

    /// Waits as `changed`. Returns the entries of the directory that were removed, also if they are there again.
    pub async fn removed(&self) -> io::Result<HashSet<OsString>> {
        let gone = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        let events = self.events().await?.into_iter();
        Ok(events.filter(|event| event.mask.intersects(gone)).filter_map(|event| event.name).collect())
    }

    async fn events(&self) -> io::Result<Vec<InotifyEvent>> {
        let mut ready = self.0.readable().await?;
        let mut all = Vec::new();
        while let Ok(events) = self.0.get_ref().0.read_events() {
            all.extend(events);
        }
        ready.clear_ready();
        Ok(all)
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

    #[tokio::test]
    async fn an_entry_that_is_back_was_removed_nonetheless() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a");
        std::fs::write(&path, "x").expect("written");
        std::fs::write(directory.path().join(".b"), "y").expect("written");
        let watcher = super::Watcher::new(directory.path()).expect("a watch");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "x").expect("written");
        let removed = watcher.removed().await.expect("changes");
        assert_eq!(removed, ["a".into()].into());
        std::fs::rename(directory.path().join(".b"), &path).expect("renamed");
        assert!(!watcher.removed().await.expect("changes").contains(std::ffi::OsStr::new("a")), "it was replaced");
    }
}
