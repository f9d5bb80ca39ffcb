//! Whether anything happens on a connection that carries many requests, so that one on which nothing does can be closed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How many requests are under way.
#[derive(Clone)]
pub struct Activity(Arc<watch::Sender<usize>>);

/// One request, under way until dropped.
pub struct UnderWay(Activity);

impl Activity {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub fn begin(&self) -> UnderWay {
        self.0.send_modify(|count| *count += 1);
        UnderWay(self.clone())
    }

    /// Ends once nothing has been under way for so long.
    pub async fn idle_for(&self, limit: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = count.wait_for(|count| *count == 0).await;
            if tokio::time::timeout(limit, count.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn requests_under_way_keep_a_connection() {
        let activity = Activity::new();
        let begun = Instant::now();
        let request = activity.begin();
        let ends = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(request);
        };
        tokio::join!(ends, activity.idle_for(Duration::from_secs(10)));
        assert_eq!(begun.elapsed().as_secs(), 110);
    }
}
