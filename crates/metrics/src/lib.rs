//! Counters, gauges and histograms in Prometheus' text format.
//!
//! A component declares its families as statics, counts where events happen, and registers the families when it starts.
//! What a process registered is on all its pages of metrics. Label values come from fixed sets, never from requests: a
//! series is kept as long as the process runs.

mod process;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use parking_lot::Mutex;

pub use process::{write_process, write_totals};

/// All series of one name.
pub trait Family: Sync {
    fn name(&self) -> &'static str;
    /// Appends its lines.
    fn write(&self, out: &mut String);
}

static REGISTERED: Mutex<Vec<&'static dyn Family>> = Mutex::new(Vec::new());

/// Adds families to the pages of this process; those that are there already are not added again.
pub fn register(families: &[&'static dyn Family]) {
    let mut registered = REGISTERED.lock();
    for family in families {
        if registered.iter().all(|other| other.name() != family.name()) {
            registered.push(*family);
        }
    }
}

/// Appends all registered families.
pub fn write_registered(out: &mut String) {
    let families: Vec<&'static dyn Family> = REGISTERED.lock().clone();
    for family in families {
        family.write(out);
    }
}

/// What all families have.
struct Description {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
}

impl Description {
    fn write(&self, kind: &str, out: &mut String) {
        let Description { name, help, .. } = self;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// The labels of a series as they are written, which also identify it.
    fn series(&self, values: &[&str]) -> String {
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let mut text = String::with_capacity(64);
        for (label, value) in self.labels.iter().zip(values) {
            let separator = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{separator}{label}={value:?}");
        }
        text
    }
}

fn write_line(out: &mut String, name: &str, suffix: &str, labels: &str, value: impl Display) {
    let _ = if labels.is_empty() {
        writeln!(out, "{name}{suffix} {value}")
    } else {
        writeln!(out, "{name}{suffix}{{{labels}}} {value}")
    };
}

/// A number that only grows.
pub struct Counter {
    description: Description,
    series: Mutex<BTreeMap<String, u64>>,
}

impl Counter {
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Counter {
        Counter { description: Description { name, help, labels }, series: Mutex::new(BTreeMap::new()) }
    }

    /// Adds to the series of these label values.
    pub fn add(&self, values: &[&str], amount: u64) {
        *self.series.lock().entry(self.description.series(values)).or_default() += amount;
    }
}

impl Family for Counter {
    fn name(&self) -> &'static str {
        self.description.name
    }

    fn write(&self, out: &mut String) {
        self.description.write("counter", out);
        let series = self.series.lock();
        if series.is_empty() && self.description.labels.is_empty() {
            write_line(out, self.name(), "", "", 0);
        }
        for (labels, value) in &*series {
            write_line(out, self.name(), "", labels, value);
        }
    }
}

/// A number that grows and shrinks.
pub struct Gauge {
    description: Description,
    series: Mutex<BTreeMap<String, f64>>,
}

impl Gauge {
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Gauge {
        Gauge { description: Description { name, help, labels }, series: Mutex::new(BTreeMap::new()) }
    }

    /// Sets the series of these label values.
    pub fn set(&self, values: &[&str], value: f64) {
        self.series.lock().insert(self.description.series(values), value);
    }

    /// Adds to the series of these label values.
    pub fn add(&self, values: &[&str], amount: f64) {
        *self.series.lock().entry(self.description.series(values)).or_default() += amount;
    }

    /// Replaces all series.
    pub fn replace<'a>(&self, all: impl IntoIterator<Item = (Vec<&'a str>, f64)>) {
        let all = all.into_iter().map(|(values, value)| (self.description.series(&values), value)).collect();
        *self.series.lock() = all;
    }
}

impl Family for Gauge {
    fn name(&self) -> &'static str {
        self.description.name
    }

    fn write(&self, out: &mut String) {
        self.description.write("gauge", out);
        let series = self.series.lock();
        if series.is_empty() && self.description.labels.is_empty() {
            write_line(out, self.name(), "", "", 0);
        }
        for (labels, value) in &*series {
            write_line(out, self.name(), "", labels, value);
        }
    }
}

/// How many observations are at most as large as each of some bounds.
pub struct Histogram {
    description: Description,
    /// Upper bounds, ascending, without infinity.
    bounds: &'static [f64],
    series: Mutex<BTreeMap<String, Observations>>,
}

#[derive(Default)]
struct Observations {
    /// By bound; those between the bound before and this one.
    counts: Box<[u64]>,
    count: u64,
    sum: f64,
}

impl Histogram {
    pub const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Histogram {
        Histogram { description: Description { name, help, labels }, bounds, series: Mutex::new(BTreeMap::new()) }
    }

    /// Adds an observation to the series of these label values.
    pub fn observe(&self, values: &[&str], value: f64) {
        let bound = self.bounds.partition_point(|bound| *bound < value);
        let mut series = self.series.lock();
        let observations = series.entry(self.description.series(values)).or_default();
        if observations.counts.is_empty() {
            observations.counts = vec![0; self.bounds.len()].into();
        }
        if let Some(count) = observations.counts.get_mut(bound) {
            *count += 1;
        }
        observations.count += 1;
        observations.sum += value;
    }

    fn write_series(&self, out: &mut String, labels: &str, observations: &Observations) {
        let separator = if labels.is_empty() { "" } else { "," };
        let mut total = 0;
        for (bound, count) in self.bounds.iter().zip(&observations.counts) {
            total += count;
            write_line(out, self.name(), "_bucket", &format!("{labels}{separator}le=\"{bound}\""), total);
        }
        write_line(out, self.name(), "_bucket", &format!("{labels}{separator}le=\"+Inf\""), observations.count);
        write_line(out, self.name(), "_sum", labels, observations.sum);
        write_line(out, self.name(), "_count", labels, observations.count);
    }
}

impl Family for Histogram {
    fn name(&self) -> &'static str {
        self.description.name
    }

    fn write(&self, out: &mut String) {
        self.description.write("histogram", out);
        let series = self.series.lock();
        if series.is_empty() && self.description.labels.is_empty() {
            let nothing = Observations { counts: vec![0; self.bounds.len()].into(), ..Observations::default() };
            self.write_series(out, "", &nothing);
        }
        for (labels, observations) in &*series {
            self.write_series(out, labels, observations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(family: &dyn Family) -> String {
        let mut out = String::new();
        family.write(&mut out);
        out
    }

    #[test]
    fn series_are_written_with_their_labels() {
        let counter = Counter::new("attempts_total", "Attempts.", &["profile", "result"]);
        counter.add(&["a\"b", "error"], 2);
        counter.add(&["a\"b", "error"], 1);
        assert_eq!(
            page(&counter),
            "# HELP attempts_total Attempts.\n# TYPE attempts_total counter\n\
             attempts_total{profile=\"a\\\"b\",result=\"error\"} 3\n"
        );
        let gauge = Gauge::new("pending", "Pending.", &["queue"]);
        gauge.set(&["active"], 3.0);
        gauge.add(&["active"], -1.0);
        assert!(page(&gauge).ends_with("# TYPE pending gauge\npending{queue=\"active\"} 2\n"));
        gauge.replace([(vec!["gated"], 1.0)]);
        assert!(page(&gauge).ends_with("# TYPE pending gauge\npending{queue=\"gated\"} 1\n"));
    }

    #[test]
    fn a_family_without_labels_is_never_empty() {
        assert!(page(&Counter::new("c", "C.", &[])).ends_with("\nc 0\n"));
        assert!(page(&Gauge::new("g", "G.", &[])).ends_with("\ng 0\n"));
        let histogram = Histogram::new("h", "H.", &[], &[1.0]);
        assert!(page(&histogram).ends_with("\nh_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n"));
    }

    #[test]
    fn a_bucket_counts_what_is_at_most_its_bound() {
        let histogram = Histogram::new("h", "H.", &["kind"], &[0.5, 1.0, 2.0]);
        for value in [0.5, 0.6, 2.0, 7.0] {
            histogram.observe(&["x"], value);
        }
        let expected = "h_bucket{kind=\"x\",le=\"0.5\"} 1\nh_bucket{kind=\"x\",le=\"1\"} 2\nh_bucket{kind=\"x\",le=\"2\"} 3\n\
                        h_bucket{kind=\"x\",le=\"+Inf\"} 4\nh_sum{kind=\"x\"} 10.1\nh_count{kind=\"x\"} 4\n";
        assert!(page(&histogram).ends_with(expected), "{}", page(&histogram));
    }

    #[test]
    fn a_family_is_registered_once() {
        static ONE: Counter = Counter::new("registered_once", "One.", &[]);
        register(&[&ONE]);
        register(&[&ONE]);
        let mut out = String::new();
        write_registered(&mut out);
        assert_eq!(out.matches("# TYPE registered_once counter").count(), 1);
    }
}
