//! Duration metrics of admission, per plugin and in total.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Operation;

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// The step of admission that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Admit,
    Validate,
}

impl Step {
    const ALL: [Step; 2] = [Step::Admit, Step::Validate];

    fn name(self) -> &'static str {
        match self {
            Step::Admit => "admit",
            Step::Validate => "validate",
        }
    }
}

/// Lock-free duration histograms of one plugin or of the whole chain.
#[derive(Default)]
pub struct Durations([[[Histogram; 2]; 2]; 4]);

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Durations {
    pub fn record(&self, operation: Operation, step: Step, rejected: bool, took: Duration) {
        let histogram = &self.0[operation as usize][step as usize][usize::from(rejected)];
        let seconds = took.as_secs_f64();
        for (bucket, _) in histogram.buckets.iter().zip(BUCKETS).filter(|(_, end)| seconds <= *end) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        histogram.count.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        histogram.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Writes all series that are not empty. `label` comes first among their labels.
    pub fn write(&self, out: &mut String, metric: &str, label: &str) {
        for operation in OPERATIONS {
            for step in Step::ALL {
                for rejected in [false, true] {
                    let histogram = &self.0[operation as usize][step as usize][usize::from(rejected)];
                    let labels = format!(
                        "{label}operation={:?},rejected=\"{rejected}\",type={:?}",
                        operation.name(),
                        step.name()
                    );
                    histogram.write(out, metric, &labels);
                }
            }
        }
    }
}

impl Histogram {
    fn write(&self, out: &mut String, metric: &str, labels: &str) {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 {
            return;
        }
        for (bucket, end) in self.buckets.iter().zip(BUCKETS) {
            let within = bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{metric}_bucket{{{labels},le=\"{end}\"}} {within}");
        }
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(out, "{metric}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{metric}_sum{{{labels}}} {seconds}\n{metric}_count{{{labels}}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_reported_by_operation_and_outcome() {
        let durations = Durations::default();
        durations.record(Operation::Create, Step::Admit, false, Duration::from_millis(10));
        durations.record(Operation::Create, Step::Admit, false, Duration::from_secs(9));
        durations.record(Operation::Delete, Step::Validate, true, Duration::ZERO);
        let mut out = String::new();
        durations.write(&mut out, "m", "name=\"P\",");
        let created = "{name=\"P\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"";
        for line in [
            format!("m_bucket{created},le=\"0.005\"}} 0\n"),
            format!("m_bucket{created},le=\"0.025\"}} 1\n"),
            format!("m_bucket{created},le=\"+Inf\"}} 2\n"),
            format!("m_sum{created}}} 9.01\nm_count{created}}} 2\n"),
            "m_count{name=\"P\",operation=\"DELETE\",rejected=\"true\",type=\"validate\"} 1\n".to_owned(),
        ] {
            assert!(out.contains(&line), "{line} in {out}");
        }
        assert!(!out.contains("UPDATE"));
    }
}
