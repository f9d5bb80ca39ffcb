//! The kernel's word that a file or folder changed, as something to wait for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

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
    /// Of a folder, its files; of a file, its content.
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

    /// Tells of the next change, or at once of those since the last call.
    pub async fn changed(&self) -> io::Result<AddWatchFlags> {
        let mut ready = self.0.readable().await?;
        let mut what = AddWatchFlags::empty();
        while let Ok(events) = self.0.get_ref().0.read_events() {
            what.extend(events.into_iter().map(|event| event.mask));
        }
        ready.clear_ready();
        Ok(what)
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn a_new_file_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let watcher = super::Watcher::new(folder.path()).expect("a watch");
        std::fs::write(folder.path().join("a"), "x").expect("written");
        let told = tokio::time::timeout(std::time::Duration::from_secs(5), watcher.changed()).await;
        told.expect("in time").expect("told");
    }
}
