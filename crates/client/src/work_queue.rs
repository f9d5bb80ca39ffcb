//! The queue of keys a controller works through.
//!
//! A key waiting is held once however often it is added; a key being worked on is not handed out again until it is done,
//! and if it was added meanwhile it comes back then. Failed keys come back after a time that doubles with each failure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt::{Debug, Display};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(1000);

/// What a key must be.
pub trait Key: Clone + Eq + Hash + Ord + Debug + Send + 'static {}
impl<T: Clone + Eq + Hash + Ord + Debug + Send + 'static> Key for T {}

pub struct WorkQueue<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    first_retry: Duration,
    longest_retry: Duration,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Waiting in `ready`, or added while in `working`.
    dirty: HashSet<T>,
    working: HashSet<T>,
    delayed: BinaryHeap<Reverse<(Instant, T)>>,
    /// The earliest moment each delayed key is due; entries of `delayed` that disagree are stale.
    due: HashMap<T, Instant>,
    failures: HashMap<T, u32>,
    stopped: bool,
}

impl<T: Key> Default for WorkQueue<T> {
    fn default() -> Self {
        Self::with_back_off(FIRST_RETRY, LONGEST_RETRY)
    }
}

impl<T: Key> WorkQueue<T> {
    fn with_back_off(first_retry: Duration, longest_retry: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            working: HashSet::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            stopped: false,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), first_retry, longest_retry }
    }

    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// One whose keys wait that long after the first failure, and no longer than the other after many.
    pub fn backing_off(first_retry: Duration, longest_retry: Duration) -> Arc<Self> {
        Arc::new(Self::with_back_off(first_retry, longest_retry))
    }

    pub fn add(&self, key: T) {
        if self.state.lock().add(key) {
            self.wake.notify_one();
        }
    }

    /// Adds the key once the time has passed; of several such requests the earliest counts.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay;
        let mut state = self.state.lock();
        if state.stopped || state.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        state.due.insert(key.clone(), at);
        state.delayed.push(Reverse((at, key)));
        drop(state);
        self.wake.notify_one();
    }

    /// Adds the key after its back-off: 5 ms at first unless the queue has its own, twice as long with each failure, up to
    /// 1000 s.
    pub fn add_rate_limited(&self, key: T) {
        let failures = {
            let mut state = self.state.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures = failures.saturating_add(1);
            *failures
        };
        let delay =
            self.first_retry.saturating_mul(1u32.checked_shl(failures - 1).unwrap_or(u32::MAX)).min(self.longest_retry);
        self.add_after(key, delay);
    }

    /// Ends the key's back-off: it succeeded or is given up.
    pub fn forget(&self, key: &T) {
        self.state.lock().failures.remove(key);
    }

    /// How often in a row the key was added rate-limited.
    pub fn failures(&self, key: &T) -> u32 {
        self.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Keys ready to be taken now.
    pub fn len(&self) -> usize {
        self.state.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key, waiting for one; `None` once the queue is shut down and empty. Pair with [`WorkQueue::done`].
    pub async fn take(&self) -> Option<T> {
        loop {
            // Registered before looking, so that a key added in between wakes this call.
            let woken = self.wake.notified();
            let next_due = {
                let mut state = self.state.lock();
                state.admit_due(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.working.insert(key.clone());
                    // Another worker must watch over what is left, delayed keys included.
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

    pub fn done(&self, key: &T) {
        let mut state = self.state.lock();
        state.working.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.wake.notify_one();
        }
    }

    /// No key is accepted from now on; those ready are still handed out.
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

impl<T: Key> State<T> {
    /// Whether a key became ready.
    fn add(&mut self, key: T) -> bool {
        if self.stopped || !self.dirty.insert(key.clone()) || self.working.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    fn admit_due(&mut self, now: Instant) {
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

/// Works the queue off with `count` workers until it is shut down. A key whose work fails comes back after its back-off.
///
/// Dropping the returned future ends all workers at once.
pub async fn run_workers<T, F, W, E>(queue: Arc<WorkQueue<T>>, count: usize, work: F)
where
    T: Key + Sync,
    F: Fn(T) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send,
{
    let mut workers = JoinSet::new();
    for _ in 0..count {
        let (queue, work) = (queue.clone(), work.clone());
        workers.spawn(async move {
            while let Some(key) = queue.take().await {
                // A panic in one key's work must not leave the key locked for ever.
                let outcome = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(work(key.clone()))).await;
                match outcome {
                    Ok(Ok(())) => queue.forget(&key),
                    Ok(Err(error)) => {
                        tracing::debug!(?key, %error, "will be tried again");
                        queue.add_rate_limited(key.clone());
                    }
                    Err(_) => {
                        tracing::error!(?key, "the work on a key panicked; it will be tried again");
                        queue.add_rate_limited(key.clone());
                    }
                }
                queue.done(&key);
            }
        });
    }
    while workers.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn holds_a_key_once() {
        let queue = WorkQueue::new();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.take().await, Some("a"));
        queue.add("a");
        assert_eq!(queue.take().await, Some("b"), "a is being worked on");
        assert!(queue.is_empty());
        queue.done(&"a");
        assert_eq!(queue.take().await, Some("a"), "it was added while worked on");
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_keys_come_at_their_earliest_time() {
        let queue = WorkQueue::new();
        let start = Instant::now();
        queue.add_after("late", Duration::from_secs(60));
        queue.add_after("late", Duration::from_secs(30));
        queue.add_after("late", Duration::from_secs(90));
        queue.add_after("early", Duration::from_secs(10));
        assert_eq!(queue.take().await, Some("early"));
        assert_eq!(start.elapsed().as_secs(), 10);
        assert_eq!(queue.take().await, Some("late"));
        assert_eq!(start.elapsed().as_secs(), 30);
        queue.done(&"late");
        let more = tokio::time::timeout(Duration::from_secs(200), queue.take()).await;
        assert!(more.is_err(), "later requests were merged into the earliest");
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_doubles_up_to_its_limit_and_is_forgotten() {
        let queue = WorkQueue::new();
        let mut waits = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            queue.add_rate_limited("a");
            queue.take().await;
            queue.done(&"a");
            waits.push(start.elapsed());
        }
        assert_eq!(waits[..3], [5, 10, 20].map(Duration::from_millis));
        assert_eq!(waits[19], LONGEST_RETRY);
        queue.forget(&"a");
        assert_eq!(queue.failures(&"a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_retry_and_never_share_a_key() {
        let queue = WorkQueue::new();
        let (tries, busy) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        queue.add("a");
        let workers = {
            let (queue, tries, busy) = (queue.clone(), tries.clone(), busy.clone());
            run_workers(queue.clone(), 4, move |key| {
                let (queue, tries, busy) = (queue.clone(), tries.clone(), busy.clone());
                async move {
                    assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0);
                    queue.add(key);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    busy.fetch_sub(1, Ordering::SeqCst);
                    match tries.fetch_add(1, Ordering::SeqCst) {
                        5.. => {
                            queue.shutdown();
                            Ok(())
                        }
                        _ => Err("not yet"),
                    }
                }
            })
        };
        workers.await;
        assert!(tries.load(Ordering::SeqCst) >= 6);
    }
}
