//! Turns for starting sandboxes and containers. A start keeps the CPU busy for a good while, and many at once take longer
//! than the same many in turn. But nobody waits for starts that hang: who waits while none ends goes on without a turn.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// How long one waits while no start ends.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct StartQueue {
    turns: Semaphore,
    last_ended: Mutex<Option<Instant>>,
}

/// Ends when it is dropped.
pub struct Turn<'q> {
    queue: &'q StartQueue,
    _permit: SemaphorePermit<'q>,
}

impl StartQueue {
    pub fn new(cpus: u32) -> Self {
        let turns = Semaphore::new(usize::try_from(cpus).unwrap_or(1) * 2);
        Self { turns, last_ended: Mutex::new(None) }
    }

    /// A turn, or none when all that have one hang; the start goes on either way.
    pub async fn turn(&self) -> Option<Turn<'_>> {
        let asked = Instant::now();
        let mut acquired = std::pin::pin!(self.turns.acquire());
        loop {
            let since = (*self.last_ended.lock()).map_or(asked, |ended| ended.max(asked));
            tokio::select! {
                biased;
                permit = &mut acquired => return Some(Turn { queue: self, _permit: permit.ok()? }),
                () = tokio::time::sleep_until(since + PATIENCE) => {
                    if (*self.last_ended.lock()).is_none_or(|ended| ended <= since) {
                        return None;
                    }
                }
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.queue.last_ended.lock() = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn starts_wait_for_each_other_as_long_as_some_end() {
        let queue = StartQueue::new(1);
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let start = async |takes: Duration| {
            let turn = queue.turn().await;
            tokio::time::sleep(takes).await;
            turn.is_some()
        };
        let twenty = futures::future::join_all((0..20).map(|_| start(second))).await;
        assert_eq!((twenty, begun.elapsed()), (vec![true; 20], 10 * second), "two at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_starts_that_hang() {
        let queue = StartQueue::new(1);
        let hanging = [queue.turn().await, queue.turn().await];
        assert!(hanging.iter().all(Option::is_some));
        let begun = Instant::now();
        assert!(queue.turn().await.is_none());
        assert_eq!(begun.elapsed(), PATIENCE);
        drop(hanging);
        assert!(queue.turn().await.is_some());
    }
}
