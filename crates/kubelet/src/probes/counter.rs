//! Counts consecutive probe results until a threshold is reached.

#[derive(Clone, Copy, Debug)]
pub struct Counter {
    failure_threshold: u32,
    success_threshold: u32,
    last: Option<bool>,
    streak: u32,
}

impl Counter {
    pub fn new(failure_threshold: i32, success_threshold: i32) -> Self {
        let at_least_one = |value: i32| u32::try_from(value).unwrap_or(1).max(1);
        Self {
            failure_threshold: at_least_one(failure_threshold),
            success_threshold: at_least_one(success_threshold),
            last: None,
            streak: 0,
        }
    }

    /// Records a result. Returns it once enough equal results came in a streak.
    pub fn record(&mut self, success: bool) -> Option<bool> {
        self.streak = if self.last == Some(success) { self.streak.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let needed = if success { self.success_threshold } else { self.failure_threshold };
        (self.streak >= needed).then_some(success)
    }

    /// Starts counting again.
    pub fn reset(&mut self) {
        self.streak = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_decide() {
        let mut counter = Counter::new(3, 2);
        let results = [false, false, true, false, false, false, true, true, false];
        let outcomes: Vec<_> = results.into_iter().map(|result| counter.record(result)).collect();
        assert_eq!(outcomes, [None, None, None, None, None, Some(false), None, Some(true), None]);
    }
}
