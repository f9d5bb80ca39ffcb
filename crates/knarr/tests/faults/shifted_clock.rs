//! A library that shifts the wall clock of the process into which it is preloaded, for tests of wrong clocks. The shift, in
//! seconds, is the first eight bytes of the file that `KNARR_TEST_CLOCK` names, which the test changes at any time.
//!
//! The kernel gives processes their own monotonic clock (time namespaces), but only one wall clock.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn mmap(address: *mut c_void, length: usize, access: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
}

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: c_long = 113;
const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;
const PROT_READ: c_int = 1;
const MAP_SHARED: c_int = 1;
const MAP_FAILED: usize = usize::MAX;

static NONE: AtomicI64 = AtomicI64::new(0);
static SHIFT: AtomicPtr<AtomicI64> = AtomicPtr::new(std::ptr::null_mut());

/// The shift: the mapped file, or zero without one.
fn shift() -> i64 {
    let mut shift = SHIFT.load(Ordering::Acquire);
    if shift.is_null() {
        shift = map().unwrap_or((&raw const NONE).cast_mut());
        SHIFT.store(shift, Ordering::Release);
    }
    // SAFETY: it is the static or a mapping that is never removed.
    unsafe { (*shift).load(Ordering::Relaxed) }
}

fn map() -> Option<*mut AtomicI64> {
    // SAFETY: the name ends with a zero byte; results are checked before they are used.
    unsafe {
        let path = getenv(c"KNARR_TEST_CLOCK".as_ptr());
        if path.is_null() {
            return None;
        }
        let file = open(path, 0);
        let mapped = if file < 0 { return None } else { mmap(std::ptr::null_mut(), 8, PROT_READ, MAP_SHARED, file, 0) };
        (mapped as usize != MAP_FAILED).then_some(mapped.cast())
    }
}

/// Replaces the function of the C library.
///
/// # Safety
/// `time` points to a `timespec`, as for the function that this one replaces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let result = syscall(CLOCK_GETTIME, c_long::from(clock), time) as c_int;
        if result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
            (*time).seconds += shift();
        }
        result
    }
}
