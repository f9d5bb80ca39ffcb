//! Counters, gauges and histograms. Updates are atomic and take no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::series::AllSeries;
use crate::text::{self, number};
use crate::{Described, Family, Kind};

/// What all families have.
struct Description {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
}

impl Description {
    const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Description { name, help, labels }
    }

    /// The labels of a series as they are written.
    fn series(&self, values: &[Box<str>]) -> String {
        text::labels(self.labels.iter().copied().zip(values.iter().map(|value| &**value)))
    }

    fn check(&self, values: &[&str]) {
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
    }

    fn described(&self, kind: Kind, bounds: &'static [f64]) -> Vec<Described> {
        vec![Described { name: self.name, kind, labels: self.labels, bounds }]
    }
}

/// A number that only grows.
pub struct Counter {
    description: Description,
    series: AllSeries<AtomicU64>,
}

impl Counter {
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Counter {
        Counter { description: Description::new(name, help, labels), series: AllSeries::new() }
    }

    /// Adds to the series of these label values.
    pub fn add(&self, values: &[&str], amount: u64) {
        self.description.check(values);
        self.series.update(values, AtomicU64::default, |value| value.fetch_add(amount, Ordering::Relaxed));
    }

    /// Removes all series.
    pub fn clear(&self) {
        self.series.retain(|_| false);
    }
}

impl Family for Counter {
    fn name(&self) -> &'static str {
        self.description.name
    }

    fn described(&self) -> Vec<Described> {
        self.description.described(Kind::Counter, &[])
    }

    fn write(&self, out: &mut String) {
        let Description { name, help, labels } = self.description;
        text::head(out, name, "counter", help);
        let mut is_empty = true;
        self.series.for_each(|values, value| {
            is_empty = false;
            let value = value.load(Ordering::Relaxed).to_string();
            text::line(out, name, "", &self.description.series(values), &value);
        });
        if is_empty && labels.is_empty() {
            text::line(out, name, "", "", "0");
        }
    }
}

/// A number with a fraction that threads may add to.
#[derive(Default)]
pub(crate) struct AtomicNumber(AtomicU64);

impl AtomicNumber {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn add(&self, amount: f64) {
        let sum = |bits| Some((f64::from_bits(bits) + amount).to_bits());
        // `sum` is never none.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}

/// A number that grows and shrinks.
pub struct Gauge {
    description: Description,
    series: AllSeries<AtomicNumber>,
}

impl Gauge {
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Gauge {
        Gauge { description: Description::new(name, help, labels), series: AllSeries::new() }
    }

    /// Sets the series of these label values.
    pub fn set(&self, values: &[&str], value: f64) {
        self.description.check(values);
        self.series.update(values, AtomicNumber::default, |own| own.set(value));
    }

    /// Adds to the series of these label values.
    pub fn add(&self, values: &[&str], amount: f64) {
        self.description.check(values);
        self.series.update(values, AtomicNumber::default, |own| own.add(amount));
    }

    /// Sets all series of a family that has none yet, whatever their number.
    pub fn fill<'a, const N: usize>(&self, all: impl IntoIterator<Item = ([&'a str; N], f64)>) {
        self.series.fill(all.into_iter().map(|(values, value)| {
            self.description.check(&values);
            let number = AtomicNumber::default();
            number.set(value);
            (values, number)
        }));
    }

    /// Replaces all series.
    pub fn replace<'a>(&self, all: impl IntoIterator<Item = (Vec<&'a str>, f64)>) {
        let all: Vec<(Vec<&str>, f64)> = all.into_iter().collect();
        let is_kept =
            |own: &[Box<str>]| all.iter().any(|(values, _)| own.iter().map(|own| &**own).eq(values.iter().copied()));
        self.series.retain(is_kept);
        for (values, value) in &all {
            self.set(values, *value);
        }
    }
}

impl Family for Gauge {
    fn name(&self) -> &'static str {
        self.description.name
    }

    fn described(&self) -> Vec<Described> {
        self.description.described(Kind::Gauge, &[])
    }

    fn write(&self, out: &mut String) {
        let Description { name, help, labels } = self.description;
        text::head(out, name, "gauge", help);
        let mut is_empty = true;
        self.series.for_each(|values, value| {
            is_empty = false;
            text::line(out, name, "", &self.description.series(values), &number(value.get()));
        });
        if is_empty && labels.is_empty() {
            text::line(out, name, "", "", "0");
        }
    }
}

/// How many observations are at most as large as each of some bounds.
pub struct Histogram {
    description: Description,
    /// Upper bounds, ascending, without infinity.
    bounds: &'static [f64],
    series: AllSeries<Observations>,
}

pub(crate) struct Observations {
    /// By bound, the last without one: those between the bound before and this one.
    counts: Box<[AtomicU64]>,
    sum: AtomicNumber,
}

impl Observations {
    fn new(bounds: &[f64]) -> Self {
        Observations { counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicNumber::default() }
    }
}

impl Histogram {
    pub const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Histogram {
        Histogram { description: Description::new(name, help, labels), bounds, series: AllSeries::new() }
    }

    /// Adds an observation to the series of these label values.
    pub fn observe(&self, values: &[&str], value: f64) {
        self.description.check(values);
        let bound = self.bounds.partition_point(|bound| *bound < value);
        self.series.update(
            values,
            || Observations::new(self.bounds),
            |observations| {
                observations.counts[bound].fetch_add(1, Ordering::Relaxed);
                observations.sum.add(value);
            },
        );
    }

    /// Removes all series.
    pub fn clear(&self) {
        self.series.retain(|_| false);
    }

    fn write_series(&self, out: &mut String, labels: &str, observations: &Observations) {
        let (name, separator) = (self.description.name, if labels.is_empty() { "" } else { "," });
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut total = 0;
        for (bound, count) in bounds.zip(&observations.counts) {
            total += count.load(Ordering::Relaxed);
            let labels = format!("{labels}{separator}le=\"{}\"", number(bound));
            text::line(out, name, "_bucket", &labels, &total.to_string());
        }
        text::line(out, name, "_sum", labels, &number(observations.sum.get()));
        text::line(out, name, "_count", labels, &total.to_string());
    }
}

impl Family for Histogram {
    fn name(&self) -> &'static str {
        self.description.name
    }

    fn described(&self) -> Vec<Described> {
        self.description.described(Kind::Histogram, self.bounds)
    }

    fn write(&self, out: &mut String) {
        let Description { name, help, labels } = self.description;
        text::head(out, name, "histogram", help);
        let mut is_empty = true;
        self.series.for_each(|values, observations| {
            is_empty = false;
            self.write_series(out, &self.description.series(values), observations);
        });
        if is_empty && labels.is_empty() {
            self.write_series(out, "", &Observations::new(self.bounds));
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
        histogram.clear();
        assert!(page(&histogram).ends_with("# TYPE h histogram\n"));
    }
}
