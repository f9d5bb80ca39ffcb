//! Disables fault-around for the program's pages.
//!
//! On a page fault in a file mapping, the kernel also maps the neighbouring pages: for a large program of which little is
//! used, many times what is needed. It does not do so for ranges whose writes are tracked (userfaultfd), which is enabled
//! here although nothing is ever written.

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
/// Only faults in user mode, which needs no privilege.
const USER_MODE_ONLY: libc::c_int = 1;
/// Asynchronous write protection, which works for any file, from Linux 6.7 on.
const FEATURE_WRITE_PROTECT_ASYNC: u64 = 1 << 15;
const MODE_WRITE_PROTECT: u64 = 1 << 1;

/// The number of a read-write ioctl, as `_IOWR` computes it.
const fn request<T>(number: libc::c_ulong) -> libc::c_ulong {
    3 << 30 | (size_of::<T>() as libc::c_ulong) << 16 | 0xaa << 8 | number
}

/// From now on, a fault in these ranges maps one page only, for as long as the result is kept.
pub fn disable(ranges: &[(usize, usize)]) -> io::Result<OwnedFd> {
    // SAFETY: the call takes only flags and returns a new descriptor or an error.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    let descriptor =
        i32::try_from(descriptor).ok().filter(|number| *number >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: it was just opened and has no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut api = Api { version: VERSION, features: FEATURE_WRITE_PROTECT_ASYNC, operations: 0 };
    ioctl(&descriptor, request::<Api>(0x3f), &mut api)?;
    for (start, length) in ranges {
        let mut range =
            Register { start: *start as u64, length: *length as u64, mode: MODE_WRITE_PROTECT, operations: 0 };
        ioctl(&descriptor, request::<Register>(0), &mut range)?;
    }
    Ok(descriptor)
}

fn ioctl<T>(descriptor: &OwnedFd, request: libc::c_ulong, value: &mut T) -> io::Result<()> {
    // SAFETY: the request's number contains the size of `value`, which outlives the call.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), request as _, std::ptr::from_mut(value)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
