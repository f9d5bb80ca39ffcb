//! The store's source of time, so that tests can advance it.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time, by which entries expire.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now(&self) -> u64;
}

/// The host's clock as it was first read by this process, plus the time that has passed since: a step of the host's clock neither
/// expires entries early nor keeps them longer.
pub struct SystemClock;

static START: LazyLock<(SystemTime, Instant)> = LazyLock::new(|| (SystemTime::now(), Instant::now()));

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        let (start, since) = *START;
        milliseconds(start, since.elapsed())
    }
}

/// Milliseconds from 1970 to a time that has passed since `start`.
fn milliseconds(start: SystemTime, passed: Duration) -> u64 {
    let total = start.duration_since(UNIX_EPOCH).unwrap_or_default() + passed;
    u64::try_from(total.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_from_the_start_on() {
        let start = UNIX_EPOCH + Duration::from_secs(5);
        assert_eq!(milliseconds(start, Duration::from_millis(2500)), 7500);
        assert_eq!(milliseconds(UNIX_EPOCH - Duration::from_secs(1), Duration::from_secs(2)), 2000, "before 1970");
        let first = SystemClock.now();
        assert!(SystemClock.now() >= first);
    }
}
