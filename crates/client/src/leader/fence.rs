//! Notifies work that it may no longer act: a process that was suspended can wake up after its lease has passed to another.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Open while a lease is held, and closed at the latest when the holder would have to have renewed it. What acts for the
/// holder of the lease asks before each request.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Closed,
    Until(Instant),
    Always,
}

impl Fence {
    /// For work that nobody else can do.
    pub fn always_open() -> Self {
        Self { state: Arc::new(Mutex::new(State::Always)) }
    }

    /// Whether work may act now.
    pub fn is_open(&self) -> bool {
        match *self.state.lock() {
            State::Closed => false,
            State::Until(end) => Instant::now() < end,
            State::Always => true,
        }
    }

    /// Returns when it has closed by itself, or was found closed.
    pub async fn closed(&self) {
        loop {
            let state = *self.state.lock();
            match state {
                State::Closed => return,
                State::Until(end) if Instant::now() >= end => return,
                State::Until(end) => tokio::time::sleep_until(end).await,
                State::Always => std::future::pending().await,
            }
        }
    }

    /// Whether it never closes.
    pub fn is_always_open(&self) -> bool {
        matches!(*self.state.lock(), State::Always)
    }

    pub(super) fn open_until(&self, end: Instant) {
        *self.state.lock() = State::Until(end);
    }

    pub(super) fn close(&self) {
        *self.state.lock() = State::Closed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_fence_closes_by_itself() {
        let fence = Fence::default();
        assert!(!fence.is_open() && Fence::always_open().is_open());
        fence.open_until(Instant::now() + Duration::from_secs(7));
        assert!(fence.is_open());
        // As after a suspension of the process: nothing renewed it, and nothing closed it.
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(!fence.is_open());
        fence.open_until(Instant::now() + Duration::from_secs(7));
        fence.close();
        assert!(!fence.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_notified_when_it_closes() {
        let fence = Fence::default();
        fence.closed().await;
        fence.open_until(Instant::now() + Duration::from_secs(7));
        let (started, waiting) = (Instant::now(), fence.clone());
        let waiting = tokio::spawn(async move { waiting.closed().await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        fence.open_until(Instant::now() + Duration::from_secs(7));
        waiting.await.unwrap();
        assert_eq!(started.elapsed(), Duration::from_secs(12));
        let forever = tokio::time::timeout(Duration::from_secs(1000), Fence::always_open().closed()).await;
        assert!(forever.is_err());
    }
}
