//! Whether a connection has anything to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

#[derive(Default)]
pub struct Activity {
    running: AtomicUsize,
    begun: AtomicUsize,
    quiet: Notify,
}

/// A request that is being answered, up to the last byte of the answer.
pub struct Running(Arc<Activity>);

impl Activity {
    pub fn begin(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        Running(Arc::clone(self))
    }

    /// Returns when nothing was asked for so long, at most twice that.
    pub async fn idle_for(&self, limit: Duration) {
        loop {
            while self.running.load(Ordering::SeqCst) > 0 {
                self.quiet.notified().await;
            }
            let begun = self.begun.load(Ordering::SeqCst);
            tokio::time::sleep(limit).await;
            if self.running.load(Ordering::SeqCst) == 0 && self.begun.load(Ordering::SeqCst) == begun {
                return;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.quiet.notify_one();
        }
    }
}
