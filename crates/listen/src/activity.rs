//! Tracks the active requests of a connection, to detect idle ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The request counts of a connection.
#[derive(Default)]
pub struct Activity {
    active: AtomicUsize,
    started: AtomicUsize,
    idle: Notify,
    /// Whether the connection is to be closed when its requests have their responses.
    close: Notify,
    /// By when the response that is being sent must have been read.
    send_by: watch::Sender<Option<Instant>>,
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

    /// Closes the connection once its requests have their responses.
    pub fn close(&self) {
        self.close.notify_one();
    }

    /// Returns when the connection is to be closed.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Sets by when the response must have been read. HTTP/1.1 sends one response at a time.
    pub fn send_by(&self, deadline: Instant) {
        self.send_by.send_replace(Some(deadline));
    }

    /// Returns when a response was not read by its deadline.
    pub async fn overdue(&self) {
        let mut changes = self.send_by.subscribe();
        loop {
            let deadline = *changes.borrow_and_update();
            let due = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => return,
                // The sender lives as long as this.
                _ = changes.changed() => {}
            }
        }
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
        self.0.send_by.send_if_modified(|deadline| deadline.take().is_some());
        if self.0.active.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_one();
        }
    }
}
