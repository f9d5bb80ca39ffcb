//! Decides which writes there is space for.
//!
//! Two things limit the store: its quota, because all data is in memory, and the disk. On a full disk a reserve that was
//! allocated at the start is released, so that deletions can still be written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::disk::Disk;

/// Updates may exceed the quota by this share of it: an object is deleted by updates that mark it as deleted and remove its
/// finalizers.
const UPDATE_HEADROOM: u64 = 16;

/// The change of the store's size by a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Create { bytes: usize },
    Update { old: usize, new: usize },
    Delete,
}

/// The space that is left.
#[derive(Debug)]
pub(super) struct Space {
    pub quota: u64,
    /// The size of the newest version of everything, durable or not.
    pub used: u64,
    /// The growth that was refused last.
    pub refused: u64,
    /// Set while the disk is full.
    pub full_disk: Option<FullDisk>,
}

/// A disk that is full, and the reserve that was released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FullDisk {
    pub message: String,
    pub reserve: u64,
    pub written: u64,
}

impl Space {
    pub(super) fn allows(&self, write: Write) -> bool {
        match (write, &self.full_disk) {
            (Write::Delete, _) => true,
            (Write::Create { .. }, Some(_)) => false,
            // The other half of the reserve is for deletions.
            (Write::Update { new, .. }, Some(full)) if full.written + new as u64 > full.reserve / 2 => false,
            (Write::Create { bytes }, None) => self.used.saturating_add(bytes as u64) <= self.quota,
            (Write::Update { old, new }, _) => {
                let limit = self.quota.saturating_add(self.quota / UPDATE_HEADROOM);
                new <= old || self.used.saturating_add((new - old) as u64) <= limit
            }
        }
    }

    /// Records a write that was refused, for the alarm.
    pub(super) fn refuse(&mut self, write: Write) {
        self.refused = match write {
            Write::Create { bytes } => bytes as u64,
            Write::Update { old, new } => new.saturating_sub(old) as u64,
            Write::Delete => 0,
        };
    }

    pub(super) fn add(&mut self, old: usize, new: usize) {
        self.used = self.used.saturating_add(new as u64).saturating_sub(old as u64);
        if let Some(full) = &mut self.full_disk {
            full.written += new as u64;
        }
    }

    /// Why creations are refused.
    pub(super) fn alarm(&self) -> Option<String> {
        if let Some(full) = &self.full_disk {
            return Some(format!("the disk is full, only deletions are accepted: {}", full.message));
        }
        let exceeded = self.used >= self.quota || (self.refused > 0 && self.used + self.refused > self.quota);
        exceeded.then(|| {
            let (used, quota) = (self.used, self.quota);
            format!("database space exceeded, only deletions are accepted: {used} bytes of {quota} are used")
        })
    }
}

/// The file that keeps space on the disk.
pub(super) struct Reserve {
    pub disk: Arc<dyn Disk>,
    pub directory: PathBuf,
    pub bytes: u64,
}

const RESERVE_NAME: &str = "reserve";

impl Reserve {
    fn path(&self) -> PathBuf {
        self.directory.join(RESERVE_NAME)
    }

    /// Allocates the reserve, unless it exists.
    pub(super) fn allocate(&self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let allocated = self.disk.allocate(&self.path(), self.bytes);
        if allocated.is_err() {
            // What was allocated is better used for the log.
            drop(self.disk.remove(&self.path()));
        }
        allocated
    }

    /// Gives the space back to the disk. Returns whether there was any.
    pub(super) fn release(&self) -> bool {
        self.bytes > 0
            && self.disk.remove(&self.path()).and_then(|()| self.disk.sync_directory(&self.directory)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_refuses_growth_and_lets_deletions_pass() {
        let create = |bytes| Write::Create { bytes };
        let update = |old, new| Write::Update { old, new };
        for (used, write, allowed) in [
            (0, create(1600), true),
            (0, create(1601), false),
            (1600, create(1), false),
            (1600, Write::Delete, true),
            (9999, Write::Delete, true),
            (1600, update(10, 110), true),
            (1600, update(10, 111), false),
            (9999, update(10, 10), true),
            (9999, update(10, 11), false),
        ] {
            let space = Space { quota: 1600, used, refused: 0, full_disk: None };
            assert_eq!(space.allows(write), allowed, "{write:?} with {used} bytes");
        }
    }

    #[test]
    fn a_full_disk_keeps_half_of_the_reserve_for_deletions() {
        let full_disk = Some(FullDisk { message: "full".to_owned(), reserve: 1000, written: 0 });
        let mut space = Space { quota: u64::MAX, used: 5, refused: 0, full_disk };
        assert!(!space.allows(Write::Create { bytes: 1 }));
        assert!(space.allows(Write::Update { old: 300, new: 300 }));
        space.add(300, 300);
        assert!(!space.allows(Write::Update { old: 300, new: 300 }));
        assert!(space.allows(Write::Update { old: 200, new: 200 }));
        assert!(space.allows(Write::Delete));
        assert!(space.alarm().is_some());
    }
}
