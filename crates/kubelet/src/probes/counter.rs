//! When a row of answers is long enough to change the verdict.

#[derive(Clone, Copy, Debug)]
pub struct Counter {
    failure_threshold: u32,
    success_threshold: u32,
    last: Option<bool>,
    row: u32,
}

impl Counter {
    pub fn new(failure_threshold: i32, success_threshold: i32) -> Self {
        let at_least_one = |value: i32| u32::try_from(value).unwrap_or(1).max(1);
        Self {
            failure_threshold: at_least_one(failure_threshold),
            success_threshold: at_least_one(success_threshold),
            last: None,
            row: 0,
        }
    }

    /// The verdict once the same answer came often enough in a row, and none while it did not.
    pub fn answer(&mut self, success: bool) -> Option<bool> {
        self.row = if self.last == Some(success) { self.row.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let needed = if success { self.success_threshold } else { self.failure_threshold };
        (self.row >= needed).then_some(success)
    }

    /// The results so far count no more.
    pub fn restart_row(&mut self) {
        self.row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_decide() {
        let mut counter = Counter::new(3, 2);
        let answers = [false, false, true, false, false, false, true, true, false];
        let verdicts: Vec<_> = answers.into_iter().map(|answer| counter.answer(answer)).collect();
        assert_eq!(verdicts, [None, None, None, None, None, Some(false), None, Some(true), None]);
    }
}
