//! The latencies of requests, and how they are printed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

/// The latencies of one kind of request.
#[derive(Default)]
pub struct Latencies {
    durations: Vec<Duration>,
    failures: usize,
}

impl Latencies {
    /// Adds a request: how long it took, or `None` if it failed.
    pub fn add(&mut self, result: Option<Duration>) {
        match result {
            Some(took) => self.durations.push(took),
            None => self.failures += 1,
        }
    }

    pub fn merge(&mut self, other: Latencies) {
        self.durations.extend(other.durations);
        self.failures += other.failures;
    }

    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.durations.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |percent| self.percentile(percent).as_secs_f64() * 1e3;
        let (p50, p99, max) = (milliseconds(50), milliseconds(99), milliseconds(100));
        let count = self.durations.len();
        write!(out, "p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms, {count} of {}", count + self.failures)
    }
}

/// Latencies by the kind of request, recorded by many tasks.
#[derive(Default)]
pub struct Recorder(Mutex<BTreeMap<&'static str, Latencies>>);

impl Recorder {
    /// Records a request.
    pub fn add(&self, kind: &'static str, result: Option<Duration>) {
        self.lock().entry(kind).or_default().add(result);
    }

    /// What was recorded since the last call.
    pub fn take(&self) -> BTreeMap<&'static str, Latencies> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Latencies>> {
        // A panic while recording leaves whole records.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_failures_are_shown() {
        let mut latencies = Latencies::default();
        (1..=200).for_each(|milliseconds| latencies.add(Some(Duration::from_millis(milliseconds))));
        latencies.add(None);
        assert_eq!(latencies.to_string(), "p50 101.0 ms, p99 199.0 ms, max 200.0 ms, 200 of 201");
        assert_eq!(Latencies::default().to_string(), "p50 0.0 ms, p99 0.0 ms, max 0.0 ms, 0 of 0");
    }

    #[test]
    fn a_recorder_starts_again_when_it_was_read() {
        let recorder = Recorder::default();
        recorder.add("get", Some(Duration::from_millis(1)));
        recorder.add("get", None);
        assert_eq!(recorder.take()["get"].to_string(), "p50 1.0 ms, p99 1.0 ms, max 1.0 ms, 1 of 2");
        assert!(recorder.take().is_empty());
    }
}
