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

/// The part of the disk that stays with the node, so that full volumes do not put it under disk pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    Bytes(u64),
    /// A share of the disk's size.
    Thousandths(u64),
}

impl Reserve {
    fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Thousandths(share) => total / 1000 * share,
        }
    }
}

/// The bytes for new volumes: what is free, without what is promised, and without the node's reserve.
pub fn available(disk: Disk, promised: u64, reserve: Reserve) -> u64 {
    disk.free.saturating_sub(promised).saturating_sub(reserve.of(disk.total))
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
        let tenth = Reserve::Thousandths(100);
        for (promised, reserve, expected) in [
            (0, Reserve::Bytes(0), 600),
            (0, Reserve::Bytes(50), 550),
            (0, tenth, 500),
            (200, tenth, 300),
            (500, tenth, 0),
            (700, tenth, 0),
        ] {
            assert_eq!(available(disk, promised, reserve), expected, "{promised} {reserve:?}");
        }
        assert_eq!(promised(100, 30), 70);
        // Metadata of the host's filesystem counts as allocated.
        assert_eq!(promised(100, 104), 0);
    }
}
