//! Threads that serve clients. Each has its own runtime, listeners and connections to pods, so that one thread serves a
//! request from its first to its last byte, without contended locks or wake-ups between threads.

use std::cell::Cell;

/// More threads than this bring nothing on one network interface.
pub const MAX_WORKERS: usize = 16;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The number of workers.
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS)
}

/// The index of the current worker.
pub fn current() -> usize {
    CURRENT.get()
}

/// Marks the current thread as a worker.
pub fn become_worker(number: usize) {
    CURRENT.set(number);
}
