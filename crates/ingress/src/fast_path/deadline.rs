//! A timer that can be reset for every request at no cost: the runtime's timer is only touched when it fires.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

pub struct Deadline {
    at: Instant,
    /// Fires at `at` or before it.
    sleep: Pin<Box<Sleep>>,
}

impl Deadline {
    pub fn new(after: Duration) -> Self {
        let at = Instant::now() + after;
        Self { at, sleep: Box::pin(tokio::time::sleep_until(at)) }
    }

    pub fn set(&mut self, after: Duration) {
        self.at = Instant::now() + after;
        if self.at < self.sleep.deadline() {
            self.sleep.as_mut().reset(self.at);
        }
    }

    pub async fn passed(&mut self) {
        poll_fn(|context| self.poll(context)).await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(context).is_ready() {
            if Instant::now() >= self.at {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.at);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_fires_at_the_last_deadline() {
        let started = Instant::now();
        let mut deadline = Deadline::new(Duration::from_secs(10));
        tokio::time::sleep(Duration::from_secs(5)).await;
        deadline.set(Duration::from_secs(10));
        deadline.passed().await;
        assert_eq!(started.elapsed().as_secs(), 15);
        deadline.set(Duration::from_secs(10));
        deadline.set(Duration::from_secs(1));
        deadline.passed().await;
        assert_eq!(started.elapsed().as_secs(), 16);
    }
}
