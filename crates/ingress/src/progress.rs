//! A request's body that says when some of it was last sent.
//!
//! The time that a pod has for its response starts when it has the whole request: an upload may take hours.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// When a request last made progress.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn made(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Completes once there was no progress for this long.
    pub async fn stopped_for(&self, limit: Duration) {
        loop {
            let until = *self.0.lock() + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

pub struct SentBody {
    body: Incoming,
    progress: Progress,
}

impl SentBody {
    pub fn new(body: Incoming, progress: &Progress) -> Self {
        Self { body, progress: progress.clone() }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.progress.made();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_postpones_the_end() {
        let (progress, started) = (Progress::new(), Instant::now());
        let sending = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                progress.made();
            }
        };
        tokio::join!(sending, progress.stopped_for(Duration::from_secs(60)));
        assert_eq!(started.elapsed().as_secs(), 560);
    }
}
