//! Pages that come alone.
//!
//! Where one page of a file is asked for, the kernel maps its neighbours along with it: of a large program that runs here
//! and there, many times what it uses. It does not where it keeps track of writes for somebody (userfaultfd), which is
//! asked for here though nothing is ever written.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct uffdio_api` and `struct uffdio_register` of the kernel.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    operations: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    operations: u64,
}

const VERSION: u64 = 0xaa;
/// Of programs alone, not of the kernel on their behalf: that needs no privilege.
const USER_MODE_ONLY: libc::c_int = 1;
/// Writes are noted, nobody is asked about them: any file can be tracked so, from Linux 6.7 on.
const FEATURE_WRITES_UNASKED: u64 = 1 << 15;
const MODE_WRITES: u64 = 1 << 1;

/// The number of a request that is read and written, as `_IOWR` makes it.
const fn request<T>(number: libc::c_ulong) -> libc::c_ulong {
    3 << 30 | (size_of::<T>() as libc::c_ulong) << 16 | 0xaa << 8 | number
}

/// From now on only those pages of the ranges are mapped that are asked for, as long as the result is kept.
pub fn map_alone(ranges: &[(usize, usize)]) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags alone and returns a new descriptor or an error.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    let descriptor =
        i32::try_from(descriptor).ok().filter(|number| *number >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: it was just opened and nobody else has it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut api = Api { version: VERSION, features: FEATURE_WRITES_UNASKED, operations: 0 };
    ask(&descriptor, request::<Api>(0x3f), &mut api)?;
    for (start, length) in ranges {
        let mut range = Register { start: *start as u64, length: *length as u64, mode: MODE_WRITES, operations: 0 };
        ask(&descriptor, request::<Register>(0), &mut range)?;
    }
    Ok(descriptor)
}

fn ask<T>(descriptor: &OwnedFd, request: libc::c_ulong, value: &mut T) -> io::Result<()> {
    // SAFETY: the request's number holds the size of `value`, which lives through the call.
    let answer = unsafe { libc::ioctl(descriptor.as_raw_fd(), request as _, std::ptr::from_mut(value)) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
