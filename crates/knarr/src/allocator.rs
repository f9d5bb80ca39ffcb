//! Giving memory back that was freed.
//!
//! What a thread freed it keeps for its next allocations, and it looks for whole pages to give back only as it allocates: a
//! thread that falls idle after much work would keep them for good. So it looks once more when it has nothing to do.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A busy thread has nothing to do many times a second.
const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

unsafe extern "C" {
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
