//! The bytes of an image that it shares with its copies.
//!
//! Where the filesystem shares blocks, a copy takes no space until either side is written to. From then on it does, in the
//! middle of a write that cannot be refused any more: the space must be promised before.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::Error;

const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_SHARED: u32 = 0x2000;
/// Extents that are asked for at a time.
const BATCH: usize = 256;

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_long: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// The kernel's `struct fiemap`, with room for the reply.
#[repr(C)]
struct Query {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

/// Bytes that other files have as well; none where the filesystem does not share or say so, or where the image is lost.
pub fn bytes(image: &Path) -> Result<u64, Error> {
    let file = match File::open(image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(Error::file("open", image))?,
    };
    let (mut sum, mut start) = (0, 0);
    loop {
        let mut query = Box::new(Query {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [Extent::default(); BATCH],
        });
        // SAFETY: the descriptor is open, and the kernel writes at most `count` extents into the structure, which has that many.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut *query) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => Ok(0),
                _ => Err(Error::file("read the extents of", image)(error)),
            };
        }
        let found = &query.extents[..usize::try_from(query.mapped).unwrap_or(BATCH).min(BATCH)];
        sum += found.iter().filter(|extent| extent.flags & EXTENT_SHARED != 0).map(|extent| extent.length).sum::<u64>();
        match found.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(sum),
        }
    }
}
