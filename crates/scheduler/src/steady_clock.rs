//! Time for the queue, which waits for backoffs to expire.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The wall clock's time at the start plus the time that has passed since. A step of the wall clock would end all backoffs at
/// once, or make pods wait for as long as it was set back.
pub struct SteadyClock {
    start: Timestamp,
    since: Instant,
}

impl SteadyClock {
    pub fn starting_at(start: Timestamp) -> Self {
        SteadyClock { start, since: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.since.elapsed()).unwrap_or(SignedDuration::MAX);
        self.start.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn only_passing_time_moves_it() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = SteadyClock::starting_at(start);
        assert_eq!(clock.now(), start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), start.saturating_add(SignedDuration::from_secs(90)).unwrap());
    }
}
