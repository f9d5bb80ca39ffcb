//! Where memory comes from, and giving back what was freed.
//!
//! mimalloc has a quick way for what needs no alignment beyond the usual, which the crate around it does not take: asked
//! for an alignment, even the usual one, the allocator looks for one and rounds most sizes up. What a thread freed it
//! keeps for its next allocations, and it looks for whole pages to give back only as it allocates: a thread that falls
//! idle after much work would keep them for good. So it looks once more when it has nothing to do.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;

/// A busy thread has nothing to do many times a second.
const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The alignment that mimalloc gives to everything that is at least as large.
const USUAL: usize = 16;

unsafe extern "C" {
    fn mi_malloc(size: usize) -> *mut c_void;
    fn mi_zalloc(size: usize) -> *mut c_void;
    fn mi_realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    /// The allocator's own: gives back what the calling thread does not use, and what others gave back long enough ago.
    fn mi_collect(force: bool);
}

/// To be called by a thread that has nothing to do.
pub fn give_back() {
    let now = Instant::now();
    if LAST.get().is_some_and(|last| now.duration_since(last) < PAUSE) {
        return;
    }
    LAST.set(Some(now));
    // SAFETY: it takes a plain value and touches nothing but the allocator's own state, as every allocation does.
    unsafe { mi_collect(false) }
}

/// Huge pages would keep memory that was given back: a third of the whole with 10,000 pods. The runtime allocates before
/// `main`, and those first pages, 4 MB of them, would be huge: so it is asked for when the program is loaded. Nothing
/// depends on it: a kernel that does not know the setting is no reason to stop.
#[used]
// SAFETY: the loader calls what is listed here once, before anything else runs; a plain system call needs nothing of the
// standard library to be there.
#[unsafe(link_section = ".init_array")]
static BEFORE_ALL: extern "C" fn() = without_huge_pages;

extern "C" fn without_huge_pages() {
    let _ = nix::sys::prctl::set_thp_disable(true);
}

pub struct Allocator;

fn is_usual(size: usize, align: usize) -> bool {
    align <= USUAL && align <= size
}

// SAFETY: all memory comes from mimalloc and goes back to it, whichever of its functions gave it. Those without an
// alignment give one of 16 to what has 16 bytes or more, and one of 8 to what has 8, so never less than was asked for here.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_usual(layout.size(), layout.align()) {
            // SAFETY: any size may be asked for.
            true => unsafe { mi_malloc(layout.size()).cast() },
            // SAFETY: the same promise that was made to us.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_usual(layout.size(), layout.align()) {
            // SAFETY: any size may be asked for.
            true => unsafe { mi_zalloc(layout.size()).cast() },
            // SAFETY: the same promise that was made to us.
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: it came from mimalloc.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match is_usual(size, layout.align()) {
            // SAFETY: it came from mimalloc, which moves it to where the usual alignment is given.
            true => unsafe { mi_realloc(pointer.cast(), size).cast() },
            // SAFETY: the same promise that was made to us.
            false => unsafe { MiMalloc.realloc(pointer, layout, size) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_kept_whatever_is_asked_for() {
        for size in (1..200).chain([255, 1000, 1 << 13, (1 << 17) + 3, 1 << 21]) {
            for align in [1, 2, 4, 8, 16, 32, 128, 4096] {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                let larger = Layout::from_size_align(size * 3 + 1, align).expect("a layout");
                // SAFETY: each piece is used within its size and given back as it was last asked for.
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
