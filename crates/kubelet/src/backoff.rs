//! How long work on volumes, drivers and slices waits after failures.

use std::time::Duration;

/// The delays between attempts at one volume, as Kubernetes has them.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(122);

/// The delay after a number of consecutive failures.
pub fn backoff(failures: u32) -> Duration {
    INITIAL_BACKOFF.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(16))).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_two_minutes() {
        let delays: Vec<u128> = (1..=10).map(|failures| backoff(failures).as_millis()).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
        assert_eq!(backoff(u32::MAX), MAX_BACKOFF);
    }
}
