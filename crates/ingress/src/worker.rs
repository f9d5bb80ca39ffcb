//! The threads that serve clients. Each has a runtime, listeners and connections to pods of its own, so that a request is
//! served from its first to its last byte by one thread, without locks that others hold or wake-ups between threads.

use std::cell::Cell;

/// More than this many bring nothing on one network interface.
pub const MOST: usize = 16;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// How many there are.
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

/// The number of the one that this thread is.
pub fn current() -> usize {
    CURRENT.get()
}

/// Makes this thread a worker.
pub fn become_worker(number: usize) {
    CURRENT.set(number);
}
