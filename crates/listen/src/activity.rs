//! Tracks the active requests of a connection, to detect idle ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// The request counts of a connection.
#[derive(Default)]
pub struct Activity {
    active: AtomicUsize,
    started: AtomicUsize,
    idle: Notify,
}

/// A request in progress, up to the last byte of its response.
pub struct ActiveRequest(Arc<Activity>);

impl Activity {
    /// Counts a request until the result is dropped.
    pub fn start_request(self: &Arc<Self>) -> ActiveRequest {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.started.fetch_add(1, Ordering::SeqCst);
        ActiveRequest(Arc::clone(self))
    }

    /// Returns when there was no request for `limit`, at the latest after twice that time.
    pub async fn idle_for(&self, limit: Duration) {
        loop {
            while self.active.load(Ordering::SeqCst) > 0 {
                self.idle.notified().await;
            }
            let started = self.started.load(Ordering::SeqCst);
            tokio::time::sleep(limit).await;
            if self.active.load(Ordering::SeqCst) == 0 && self.started.load(Ordering::SeqCst) == started {
                return;
            }
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_one();
        }
    }
}
