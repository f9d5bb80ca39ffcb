//! The global allocator (mimalloc), and returning freed memory to the system.
//!
//! mimalloc has a fast path for allocations without special alignment, which its wrapper crate does not use: with an
//! explicit alignment, even the default one, it searches and rounds most sizes up. A thread keeps freed memory for its next
//! allocations, and returns whole pages only while it allocates: a thread that becomes idle after much work would keep them
//! forever. So idle threads collect explicitly.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;

/// A busy thread becomes idle many times a second.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How long freed pages stay mapped, in milliseconds. With mimalloc's second, threads that are active now and then keep several
/// megabytes; without a delay, creates and lists get slower.
const PURGE_DELAY: c_long = 100;
/// The number of `mi_option_purge_delay`.
const PURGE_DELAY_OPTION: c_int = 15;

/// The alignment that mimalloc guarantees for every allocation of at least this size.
const DEFAULT_ALIGNMENT: usize = 16;

unsafe extern "C" {
    fn mi_malloc(size: usize) -> *mut c_void;
    fn mi_zalloc(size: usize) -> *mut c_void;
    fn mi_realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    /// mimalloc: returns memory that the calling thread does not use, and pages that were freed long enough ago.
    fn mi_collect(force: bool);
    fn mi_option_set(option: c_int, value: c_long);
    #[cfg(test)]
    fn mi_option_get(option: c_int) -> c_long;
}

/// Called by a runtime thread that becomes idle.
pub fn collect_idle() {
    let now = Instant::now();
    if LAST.get().is_some_and(|last| now.duration_since(last) < COLLECT_INTERVAL) {
        return;
    }
    LAST.set(Some(now));
    // SAFETY: it takes a plain value and touches nothing but the allocator's own state, as every allocation does.
    unsafe { mi_collect(false) }
}

/// Settings of the process. Huge pages would keep freed memory: a third of the total with 10,000 pods. The runtime allocates
/// before `main`, and its first 4 MB would be huge pages: so this is done when the program is loaded. An error is ignored:
/// kernels without this setting work as well.
#[used]
// SAFETY: the loader calls the entries of this section once, before anything else runs; a plain system call does not need
// the standard library to be initialized.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = configure;

extern "C" fn configure() {
    let _ = nix::sys::prctl::set_thp_disable(true);
    // SAFETY: it takes plain values.
    unsafe { mi_option_set(PURGE_DELAY_OPTION, PURGE_DELAY) }
}

pub struct Allocator;

fn is_default_aligned(size: usize, align: usize) -> bool {
    align <= DEFAULT_ALIGNMENT && align <= size
}

// SAFETY: all memory comes from mimalloc and returns to it, whichever of its functions allocated it. Those without an
// alignment align to 16 for 16 bytes or more, and to 8 for 8 bytes, so never less than requested here.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_default_aligned(layout.size(), layout.align()) {
            // SAFETY: any size is valid.
            true => unsafe { mi_malloc(layout.size()).cast() },
            // SAFETY: the caller upholds the same contract.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_default_aligned(layout.size(), layout.align()) {
            // SAFETY: any size is valid.
            true => unsafe { mi_zalloc(layout.size()).cast() },
            // SAFETY: the caller upholds the same contract.
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: it was allocated by mimalloc.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match is_default_aligned(size, layout.align()) {
            // SAFETY: it was allocated by mimalloc, which moves it to an address with the default alignment.
            true => unsafe { mi_realloc(pointer.cast(), size).cast() },
            // SAFETY: the caller upholds the same contract.
            false => unsafe { MiMalloc.realloc(pointer, layout, size) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its number is mimalloc's, which could change with a release.
    #[test]
    fn freed_memory_is_returned_soon() {
        // SAFETY: it takes and returns plain values.
        let [delay, next] = [PURGE_DELAY_OPTION, PURGE_DELAY_OPTION + 1].map(|option| unsafe { mi_option_get(option) });
        assert_eq!((delay, next), (PURGE_DELAY, 0), "the delay, and the number of NUMA nodes, which follows it");
    }

    #[test]
    fn memory_is_aligned_and_preserved_for_any_layout() {
        for size in (1..200).chain([255, 1000, 1 << 13, (1 << 17) + 3, 1 << 21]) {
            for align in [1, 2, 4, 8, 16, 32, 128, 4096] {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                let larger = Layout::from_size_align(size * 3 + 1, align).expect("a layout");
                // SAFETY: each allocation is used within its size and freed with its last layout.
                unsafe {
                    let zeros = Allocator.alloc_zeroed(layout);
                    assert!((0..size).all(|at| *zeros.add(at) == 0), "{layout:?}");
                    let piece = Allocator.alloc(layout);
                    piece.write_bytes(7, size);
                    let grown = Allocator.realloc(piece, layout, larger.size());
                    assert!((0..size).all(|at| *grown.add(at) == 7), "{layout:?}");
                    let kept = Allocator.realloc(grown, larger, size);
                    assert!((0..size).all(|at| *kept.add(at) == 7), "{layout:?}");
                    assert!([zeros, kept].iter().all(|piece| piece.addr() % align == 0), "{layout:?}");
                    Allocator.dealloc(zeros, layout);
                    Allocator.dealloc(kept, layout);
                }
            }
        }
    }
}
