//! How much can be promised to new volumes.
//!
//! Images are sparse: the space they may still take is promised to them, and is not free for others.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::error::Error;

/// The disk below the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub total: u64,
    pub free: u64,
}

impl Disk {
    pub fn of(directory: &Path) -> Result<Self, Error> {
        let found = statvfs(directory).map_err(Error::system("read the size of", directory))?;
        let block = found.fragment_size();
        Ok(Self { total: found.blocks() * block, free: found.blocks_available() * block })
    }
}

/// The bytes for new volumes: what is free, without what is promised, and without the part that stays with the node so that
/// full volumes do not put it under disk pressure.
pub fn available(disk: Disk, promised: u64, reserved_percent: u8) -> u64 {
    let reserved = disk.total / 100 * u64::from(reserved_percent);
    disk.free.saturating_sub(promised).saturating_sub(reserved)
}

/// What an image may still take.
pub fn promised(size: u64, allocated: u64) -> u64 {
    size.saturating_sub(allocated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_and_the_reserve_are_not_available() {
        let disk = Disk { total: 1000, free: 600 };
        for (promised, reserved, expected) in [(0, 0, 600), (0, 10, 500), (200, 10, 300), (500, 10, 0), (700, 10, 0)] {
            assert_eq!(available(disk, promised, reserved), expected);
        }
        assert_eq!(promised(100, 30), 70);
        // Metadata of the host's filesystem counts as allocated.
        assert_eq!(promised(100, 104), 0);
    }
}
