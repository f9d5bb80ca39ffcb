//! How long a failed component waits before it is restarted.

use std::time::Duration;

const INITIAL: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(30);
/// A component that ran this long starts again with the initial backoff.
const STABLE: Duration = Duration::from_secs(60);

/// Doubles with each failure in a row.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay after a run that lasted `ran`.
    pub fn next(&mut self, ran: Duration) -> Duration {
        if ran >= STABLE {
            self.failures = 0;
        }
        let delay = INITIAL.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(MAX);
        self.failures = self.failures.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_until_a_run_was_stable() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..10).map(|_| backoff.next(Duration::ZERO).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        assert_eq!(backoff.next(STABLE), INITIAL);
        assert_eq!(backoff.next(Duration::ZERO), INITIAL * 2);
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(backoff.next(Duration::ZERO), MAX);
    }
}
