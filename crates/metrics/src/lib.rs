//! Counters, gauges and histograms in Prometheus' text format.
//!
//! A component declares its families as statics, counts where events happen, and registers the families when it starts.
//! What a process registered is on all its pages of metrics. Label values come from fixed sets, never from requests: a
//! series is kept as long as the process runs.

mod family;
mod indicators;
mod process;
pub mod reference;
mod series;
mod text;

use parking_lot::Mutex;

pub use family::{Counter, Gauge, Histogram};
pub use indicators::Indicators;
pub use process::{write_features, write_process, write_totals};
pub use text::{number, push_quoted};

/// All series of one name.
pub trait Family: Sync {
    fn name(&self) -> &'static str;
    /// Appends its lines.
    fn write(&self, out: &mut String);
    /// The names, types and labels of what it writes.
    fn described(&self) -> Vec<Described>;
}

/// What is known of a metric before it has a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Described {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// Upper bounds of a histogram's buckets, without infinity.
    pub bounds: &'static [f64],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// The word after `# TYPE`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
