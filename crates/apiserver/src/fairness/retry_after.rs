//! After how many seconds a client that was refused should retry: doubled while many are refused, lowered step by step
//! when few are.

use std::collections::VecDeque;

/// The longest advice.
const MAX_SECONDS: u64 = 32;

/// The refusals of one priority level. Times are whole seconds of any clock.
#[derive(Debug)]
pub struct RetryAfter {
    /// Refusals by second, without the current one.
    history: VecDeque<(u64, u64)>,
    current: (u64, u64),
    seconds: u64,
    raised: Option<u64>,
}

impl Default for RetryAfter {
    fn default() -> RetryAfter {
        RetryAfter { history: VecDeque::new(), current: (0, 0), seconds: 1, raised: None }
    }
}

impl RetryAfter {
    /// Counts a refusal, and returns the advice for it.
    pub fn refuse(&mut self, now: u64) -> u64 {
        if self.current.0 == now {
            self.current.1 += 1;
            return self.seconds;
        }
        let past = std::mem::replace(&mut self.current, (now, 1));
        if past.1 > 0 {
            self.history.push_back(past);
        }
        self.adjust(now);
        let oldest = now.saturating_sub((2 * self.seconds).min(MAX_SECONDS));
        while self.history.front().is_some_and(|(second, _)| *second < oldest) {
            self.history.pop_front();
        }
        self.seconds
    }

    fn adjust(&mut self, now: u64) {
        let recent = self.history.iter().filter(|(second, _)| now - second.min(&now) <= self.seconds);
        let refused: u64 = recent.map(|(_, count)| count).sum();
        let may_raise = self.raised.is_none_or(|raised| now - raised.min(now) >= self.seconds);
        if may_raise && refused >= 3 * self.seconds {
            self.seconds = (2 * self.seconds).min(MAX_SECONDS);
            self.raised = Some(now);
        } else if refused < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_doubles_under_load_and_falls_afterwards() {
        let mut advice = RetryAfter::default();
        let mut seen = Vec::new();
        for second in 100..180 {
            for _ in 0..200 {
                advice.refuse(second);
            }
            seen.push(advice.refuse(second));
        }
        assert_eq!(seen[0], 1);
        assert!(seen.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == 2 * pair[0]), "{seen:?}");
        assert_eq!(seen.last(), Some(&MAX_SECONDS));
        assert_eq!(advice.refuse(400), MAX_SECONDS - 1);
        assert_eq!(advice.refuse(600), MAX_SECONDS - 2);
    }
}
