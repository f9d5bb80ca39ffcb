//! Limits how many sandboxes and containers start at once. A start is CPU-bound, and many at once take longer than the
//! same number in turn. A start that hangs must not block others: if no start finishes within [`TIMEOUT`], waiters
//! proceed anyway.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// How long to wait while no start finishes.
const TIMEOUT: Duration = Duration::from_secs(5);

pub struct StartQueue {
    turns: Semaphore,
    last_finished: Mutex<Option<Instant>>,
}

/// Released on drop.
pub struct Turn<'q> {
    queue: &'q StartQueue,
    _permit: SemaphorePermit<'q>,
}

impl StartQueue {
    pub fn new(cpus: u32) -> Self {
        let turns = Semaphore::new(usize::try_from(cpus).unwrap_or(1) * 2);
        Self { turns, last_finished: Mutex::new(None) }
    }

    /// Waits for a turn. None when all current starts hang; the caller starts in either case.
    pub async fn turn(&self) -> Option<Turn<'_>> {
        let queued_at = Instant::now();
        let mut acquired = std::pin::pin!(self.turns.acquire());
        loop {
            let since = (*self.last_finished.lock()).map_or(queued_at, |finished| finished.max(queued_at));
            tokio::select! {
                biased;
                permit = &mut acquired => return Some(Turn { queue: self, _permit: permit.ok()? }),
                () = tokio::time::sleep_until(since + TIMEOUT) => {
                    if (*self.last_finished.lock()).is_none_or(|finished| finished <= since) {
                        return None;
                    }
                }
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.queue.last_finished.lock() = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn starts_wait_for_each_other_as_long_as_some_end() {
        let queue = StartQueue::new(1);
        let (started, second) = (Instant::now(), Duration::from_secs(1));
        let start = async |duration: Duration| {
            let turn = queue.turn().await;
            tokio::time::sleep(duration).await;
            turn.is_some()
        };
        let twenty = futures::future::join_all((0..20).map(|_| start(second))).await;
        assert_eq!((twenty, started.elapsed()), (vec![true; 20], 10 * second), "two at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_proceed_if_all_starts_hang() {
        let queue = StartQueue::new(1);
        let hanging = [queue.turn().await, queue.turn().await];
        assert!(hanging.iter().all(Option::is_some));
        let started = Instant::now();
        assert!(queue.turn().await.is_none());
        assert_eq!(started.elapsed(), TIMEOUT);
        drop(hanging);
        assert!(queue.turn().await.is_some());
    }
}
