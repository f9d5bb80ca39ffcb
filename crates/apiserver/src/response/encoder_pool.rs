//! Threads that encode large responses. There are as many as processors, and they have a lower priority than the threads
//! that handle requests: however many lists are encoded, other requests do not wait for them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// An idle thread ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The niceness of the threads.
const NICENESS: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    state: Mutex<State>,
    added: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Pool =
    Pool { state: Mutex::new(State { jobs: VecDeque::new(), threads: 0, idle: 0 }), added: Condvar::new() };

/// Runs a job after those that were added before. The result is missing if it panics.
pub fn run<R: Send + 'static>(job: impl FnOnce() -> R + Send + 'static) -> oneshot::Receiver<R> {
    let (sender, receiver) = oneshot::channel();
    POOL.add(Box::new(move || {
        // The receiver may be gone: the client has closed its connection.
        let _ = sender.send(job());
    }));
    receiver
}

impl Pool {
    fn add(&'static self, job: Job) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if state.idle > 0 {
            self.added.notify_one();
            return;
        }
        let limit = std::thread::available_parallelism().map_or(1, usize::from);
        if state.threads < limit {
            let spawned = std::thread::Builder::new().name("encoder".to_owned()).spawn(|| self.work());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::error!(%error, threads = state.threads, "cannot start an encoder thread");
                    if state.threads == 0 {
                        // Nobody would encode it: the response fails.
                        state.jobs.clear();
                    }
                }
            }
        }
    }

    fn work(&self) {
        lower_priority();
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("encoding a response panicked");
                }
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.added.wait_for(&mut state, IDLE_TIMEOUT).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

fn lower_priority() {
    // SAFETY: changes the niceness of the calling thread only, and touches no memory.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "encoder threads run at normal priority");
    }
}
