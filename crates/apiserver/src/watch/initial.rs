//! The objects that a watch sends before changes, encoded while they are sent.

use std::sync::Arc;
use std::time::Duration;

use knarr_store::Entry;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::fairness::Permit;

/// A client that takes nothing for this long loses the watch. It is also the longest time for which a watch occupies seats.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Fewer objects are sent at once: there is nothing to wait for.
const FEW: usize = 64;

/// What is left to be sent.
pub struct Remaining {
    pub entries: std::vec::IntoIter<Arc<Entry>>,
    /// The revision of the bookmark after the last object, if the client asked for it.
    pub bookmark: Option<u64>,
}

/// The objects of a watch, and the seats it occupies until they are sent. A connection that accepts no more bytes does
/// not keep them alive.
pub struct Initial {
    slot: Arc<Mutex<Slot>>,
    timer: Option<AbortHandle>,
}

#[derive(Default)]
struct Slot {
    remaining: Option<Remaining>,
    permit: Option<Permit>,
    /// Grows with each chunk.
    taken: u64,
}

impl Initial {
    pub fn new(remaining: Remaining, permit: Option<Permit>) -> Initial {
        let is_short = remaining.entries.len() <= FEW;
        let slot = Arc::new(Mutex::new(Slot { remaining: Some(remaining), permit, taken: 0 }));
        let timer = (!is_short).then(|| knarr_supervisor::spawn(expire(slot.clone())).abort_handle());
        Initial { slot, timer }
    }

    /// Takes what is left, to send a chunk of it; `None` if the client took too long.
    pub fn take(&self) -> Option<Remaining> {
        let mut slot = self.slot.lock();
        slot.taken += 1;
        slot.remaining.take()
    }

    /// Returns what is left after a chunk was taken.
    pub fn put(&self, remaining: Remaining) {
        self.slot.lock().remaining = Some(remaining);
    }
}

async fn expire(slot: Arc<Mutex<Slot>>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(STALL_TIMEOUT).await;
        // Dropped after the lock is released.
        let (_permit, _stalled);
        let mut slot = slot.lock();
        _permit = slot.permit.take();
        if seen == Some(slot.taken) {
            _stalled = slot.remaining.take();
            return;
        }
        seen = Some(slot.taken);
    }
}

impl Drop for Initial {
    fn drop(&mut self) {
        // The timer lives on for a moment.
        *self.slot.lock() = Slot::default();
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    fn initial(seats: &Arc<Semaphore>) -> Initial {
        let entry = Arc::new(Entry::new("k".into(), bytes::Bytes::new(), 1, 1));
        let remaining = Remaining { entries: vec![entry; 1000].into_iter(), bookmark: None };
        Initial::new(remaining, Some(Permit::InFlight(seats.clone().try_acquire_owned().unwrap())))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_loses_its_seats_and_the_objects() {
        let seats = Arc::new(Semaphore::new(1));
        let initial = initial(&seats);
        initial.put(initial.take().unwrap());
        tokio::time::sleep(STALL_TIMEOUT + Duration::from_secs(1)).await;
        assert_eq!(seats.available_permits(), 1);
        tokio::time::sleep(STALL_TIMEOUT).await;
        assert!(initial.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_keeps_the_objects() {
        let seats = Arc::new(Semaphore::new(1));
        let initial = initial(&seats);
        for _ in 0..10 {
            tokio::time::sleep(STALL_TIMEOUT / 2).await;
            initial.put(initial.take().unwrap());
        }
        assert_eq!(seats.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn seats_are_released_with_the_watch() {
        let seats = Arc::new(Semaphore::new(1));
        drop(initial(&seats));
        assert_eq!(seats.available_permits(), 1);
    }
}
