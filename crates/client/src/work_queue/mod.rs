//! A controller's queue of object keys, with deduplication, delays and exponential backoff.
//!
//! A waiting key is queued once however often it is added. A key being processed is not handed out again until it is done;
//! if it was added in the meantime, it is queued again then. Failed keys are retried after a backoff that doubles with each
//! failure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt::{Debug, Display};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::work_queue_metrics::{Holding, Observed, QueueMetrics};

const INITIAL_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_secs(1000);
/// Retries of a key are logged as warnings when its failures span this time. What passes by itself, such as a conflict or a
/// cache that is behind, passes sooner.
const REPORTED_AFTER: Duration = Duration::from_secs(5);

/// The bounds of a key.
pub trait Key: Clone + Eq + Hash + Ord + Debug + Send + 'static {}
impl<T: Clone + Eq + Hash + Ord + Debug + Send + 'static> Key for T {}

/// A queue of keys for concurrent workers.
pub struct WorkQueue<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    initial_backoff: Duration,
    max_backoff: Duration,
    metrics: Arc<QueueMetrics>,
}

struct State<T> {
    ready: VecDeque<T>,
    /// When each key in `ready` was added.
    added: HashMap<T, Instant>,
    /// Waiting in `ready`, or added while in `processing`.
    dirty: HashSet<T>,
    /// Since when each key is processed.
    processing: HashMap<T, Instant>,
    delayed: BinaryHeap<Reverse<(Instant, T)>>,
    /// When each delayed key is due; entries of `delayed` with another time are stale.
    due: HashMap<T, Instant>,
    failures: HashMap<T, Failures>,
    stopped: bool,
}

/// The failures of a key in a row.
struct Failures {
    count: u32,
    first: Instant,
    last: Instant,
}

impl Failures {
    fn persist(&self) -> bool {
        self.last - self.first >= REPORTED_AFTER
    }
}

impl<T: Key> Default for WorkQueue<T> {
    fn default() -> Self {
        Self::with_durations(INITIAL_BACKOFF, MAX_BACKOFF)
    }
}

impl<T: Key> WorkQueue<T> {
    fn with_durations(initial_backoff: Duration, max_backoff: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            added: HashMap::new(),
            dirty: HashSet::new(),
            processing: HashMap::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            stopped: false,
        };
        let metrics = QueueMetrics::of_current_component();
        Self { state: Mutex::new(state), wake: Notify::new(), initial_backoff, max_backoff, metrics }
    }

    /// A queue with the default backoff: from 5 ms to 1000 s.
    pub fn new() -> Arc<Self> {
        Self::with_backoff(INITIAL_BACKOFF, MAX_BACKOFF)
    }

    /// A queue with its own initial and maximum backoff.
    pub fn with_backoff(initial_backoff: Duration, max_backoff: Duration) -> Arc<Self> {
        let queue = Arc::new(Self::with_durations(initial_backoff, max_backoff));
        let observed: Arc<dyn Observed> = queue.clone();
        queue.metrics.observe(Arc::downgrade(&observed));
        queue
    }

    /// Adds a key, unless it is already queued.
    pub fn add(&self, key: T) {
        self.metrics.adds.fetch_add(1, Ordering::Relaxed);
        if self.state.lock().add(key) {
            self.wake.notify_one();
        }
    }

    /// Adds the key after a delay; of several delays for one key the earliest counts.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        // Delays come from users as well; one beyond what the clock counts never ends.
        let Some(at) = Instant::now().checked_add(delay) else { return };
        let mut state = self.state.lock();
        if state.stopped || state.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        state.due.insert(key.clone(), at);
        state.delayed.push(Reverse((at, key)));
        drop(state);
        self.wake.notify_one();
    }

    /// Adds the key after its backoff, which doubles with each failure.
    pub fn add_rate_limited(&self, key: T) {
        self.metrics.retries.fetch_add(1, Ordering::Relaxed);
        let failures = {
            let now = Instant::now();
            let mut state = self.state.lock();
            let fresh = Failures { count: 0, first: now, last: now };
            let failures = state.failures.entry(key.clone()).or_insert(fresh);
            failures.count = failures.count.saturating_add(1);
            failures.last = now;
            failures.count
        };
        let delay = self
            .initial_backoff
            .saturating_mul(1u32.checked_shl(failures - 1).unwrap_or(u32::MAX))
            .min(self.max_backoff);
        self.add_after(key, delay);
    }

    /// Retries a key whose processing failed. An error that persists is logged as a warning.
    fn retry(&self, key: &T, error: &dyn Display) {
        self.add_rate_limited(key.clone());
        let (failures, persist) = {
            let state = self.state.lock();
            state.failures.get(key).map_or((0, false), |failures| (failures.count, failures.persist()))
        };
        if persist {
            let component = knarr_supervisor::current_run();
            let component = component.as_ref().map_or("", |run| run.name());
            tracing::warn!(component, ?key, failures, %error, "processing a key keeps failing; retrying");
        } else {
            tracing::debug!(?key, %error, "processing a key failed; retrying");
        }
    }

    /// Resets the key's backoff: it succeeded or is given up.
    pub fn forget(&self, key: &T) {
        self.state.lock().failures.remove(key);
    }

    /// How often in a row the key was added with a backoff.
    pub fn failures(&self, key: &T) -> u32 {
        self.state.lock().failures.get(key).map_or(0, |failures| failures.count)
    }

    /// The number of keys that are ready now.
    pub fn len(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Whether no key is ready now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the next key; `None` once the queue is shut down and empty. Call [`WorkQueue::done`] after processing it.
    pub async fn take(&self) -> Option<T> {
        loop {
            // Subscribed before the queue is read, so that a key added in between wakes this call.
            let woken = self.wake.notified();
            let next_due = {
                let mut state = self.state.lock();
                state.enqueue_due(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    let now = Instant::now();
                    state.processing.insert(key.clone(), now);
                    if let Some(added) = state.added.remove(&key) {
                        self.metrics.started(now - added);
                    }
                    // Another worker must wait for the remaining keys, including delayed ones.
                    let more = !state.ready.is_empty() || !state.delayed.is_empty();
                    drop(state);
                    if more {
                        self.wake.notify_one();
                    }
                    return Some(key);
                }
                if state.stopped {
                    drop(state);
                    self.wake.notify_waiters();
                    return None;
                }
                state.delayed.peek().map(|Reverse((at, _))| *at)
            };
            match next_due {
                Some(at) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    /// Ends the processing of a key; it is queued again if it was added in the meantime.
    pub fn done(&self, key: &T) {
        let mut state = self.state.lock();
        if let Some(started) = state.processing.remove(key) {
            self.metrics.done(started.elapsed());
        }
        if state.dirty.contains(key) {
            state.added.insert(key.clone(), Instant::now());
            state.ready.push_back(key.clone());
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Accepts no more keys; ready ones are still handed out.
    pub fn shutdown(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.delayed.clear();
        state.due.clear();
        drop(state);
        self.wake.notify_waiters();
        self.wake.notify_one();
    }
}

impl<T: Key> Observed for WorkQueue<T> {
    fn holding(&self) -> Holding {
        let state = self.state.lock();
        let unfinished = state.processing.values().map(Instant::elapsed);
        Holding {
            depth: state.ready.len(),
            unfinished: unfinished.clone().sum(),
            longest: unfinished.max().unwrap_or_default(),
            failing: state.failures.values().filter(|failures| failures.persist()).count(),
        }
    }
}

impl<T: Key> State<T> {
    /// Returns whether the key became ready.
    fn add(&mut self, key: T) -> bool {
        if self.stopped || !self.dirty.insert(key.clone()) || self.processing.contains_key(&key) {
            return false;
        }
        self.added.insert(key.clone(), Instant::now());
        self.ready.push_back(key);
        true
    }

    fn enqueue_due(&mut self, now: Instant) {
        while let Some(Reverse((at, _))) = self.delayed.peek() {
            if *at > now {
                break;
            }
            let Some(Reverse((at, key))) = self.delayed.pop() else { break };
            if self.due.get(&key) == Some(&at) {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }
}

/// Processes the queue with `count` workers until it is shut down. A key whose work fails is retried after its backoff.
///
/// Dropping the returned future stops all workers immediately.
pub async fn run_workers<T, F, W, E>(queue: Arc<WorkQueue<T>>, count: usize, work: F)
where
    T: Key + Sync,
    F: Fn(T) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send,
{
    // Boxed here, so that the workers are compiled once per type of key and not once per controller.
    let work: Work<T> = Arc::new(move |key| {
        let working = work(key);
        Box::pin(async move { working.await.map_err(|error| error.to_string()) })
    });
    run_boxed(queue, count, work).await;
}

/// The work on a key; the error is the reason for a retry.
type Work<T> = Arc<dyn Fn(T) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

async fn run_boxed<T: Key + Sync>(queue: Arc<WorkQueue<T>>, count: usize, work: Work<T>) {
    let mut workers = JoinSet::new();
    for _ in 0..count {
        let (queue, work) = (queue.clone(), work.clone());
        workers.spawn(knarr_supervisor::inherit(async move {
            while let Some(key) = queue.take().await {
                // A panic must not leave the key locked for ever.
                let working = std::panic::AssertUnwindSafe(async {
                    knarr_supervisor::fault::point("work");
                    work(key.clone()).await
                });
                match futures::FutureExt::catch_unwind(working).await {
                    Ok(Ok(())) => queue.forget(&key),
                    Ok(Err(error)) => queue.retry(&key, &error),
                    Err(panic) => {
                        queue.retry(&key, &format!("a panic: {}", knarr_supervisor::panic_message(&*panic)));
                    }
                }
                queue.done(&key);
            }
        }));
    }
    knarr_supervisor::join_all(workers).await;
}

#[cfg(test)]
mod tests;
