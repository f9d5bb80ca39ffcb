//! How long the search for devices may take.
//!
//! One task decides for all pods, so a claim that is hard to satisfy keeps all others waiting. While such claims are
//! rare, each gets the configured time. What they use is charged to an account that fills slowly; when it is empty, a
//! search ends after a moment.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A search may always take this long. Usual claims need less than a thousandth of it.
const ALWAYS: Duration = Duration::from_millis(50);
/// Usual searches are not charged.
const FREE: Duration = Duration::from_millis(5);
/// The account fills by one part in this many of the time that passes.
const SHARE: u32 = 10;

#[derive(Debug, Default)]
pub struct Budget(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    spent: Duration,
    at: Option<Instant>,
}

impl Budget {
    /// How long a search that starts now may take; none is without a limit.
    pub fn limit(&self, configured: Duration, now: Instant) -> Option<Duration> {
        if configured.is_zero() {
            return None;
        }
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = account.at.replace(now) {
            let recovered = now.saturating_duration_since(before) / SHARE;
            // What is spent beyond the account's size is forgiven.
            account.spent = account.spent.min(configured).saturating_sub(recovered);
        }
        Some(configured.saturating_sub(account.spent).max(ALWAYS.min(configured)))
    }

    pub fn spend(&self, time: Duration) {
        if time > FREE {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).spent += time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_searches_use_up_their_time() {
        let (budget, start) = (Budget::default(), Instant::now());
        let ten = Duration::from_secs(10);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(budget.limit(Duration::ZERO, start), None);
        assert_eq!(budget.limit(ten, start), Some(ten));
        budget.spend(Duration::from_millis(4));
        assert_eq!(budget.limit(ten, start), Some(ten));
        budget.spend(Duration::from_secs(7));
        assert_eq!(budget.limit(ten, start), Some(Duration::from_secs(3)));
        budget.spend(Duration::from_secs(3));
        assert_eq!(budget.limit(ten, after(0)), Some(ALWAYS));
        budget.spend(Duration::from_secs(1000));
        assert_eq!(budget.limit(ten, after(50)), Some(Duration::from_secs(5)));
        assert_eq!(budget.limit(ten, after(1000)), Some(ten));
        assert_eq!(budget.limit(Duration::from_millis(1), after(1000)), Some(Duration::from_millis(1)));
    }
}
