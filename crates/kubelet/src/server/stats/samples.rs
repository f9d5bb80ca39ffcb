//! Samples of CPU time, from which rates are computed.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

/// The last CPU samples by key, for rates.
#[derive(Default)]
pub struct Samples(Mutex<HashMap<String, Sample>>);

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    nanoseconds: u64,
    rate: Option<u64>,
}

impl Samples {
    /// Billionths of a CPU used since the previous sample. Samples in quick succession share a rate.
    pub fn rate(&self, key: &str, nanoseconds: u64, now: Instant) -> Option<u64> {
        let mut samples = self.0.lock();
        let last = samples.get(key).copied();
        let (rate, replace) = match last {
            Some(last) => {
                let passed = now.saturating_duration_since(last.at).as_nanos();
                if passed < 500_000_000 {
                    (last.rate, false)
                } else {
                    let used = u128::from(nanoseconds.saturating_sub(last.nanoseconds));
                    (u64::try_from(used * 1_000_000_000 / passed).ok(), true)
                }
            }
            None => (None, true),
        };
        if replace {
            samples.insert(key.to_string(), Sample { at: now, nanoseconds, rate });
        }
        rate
    }

    /// Removes samples that are too old.
    pub fn remove_old(&self, now: Instant) {
        self.0.lock().retain(|_, sample| now.saturating_duration_since(sample.at).as_secs() < 600);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_samples() {
        let samples = Samples::default();
        let start = Instant::now();
        let at = |second| start + std::time::Duration::from_secs(second);
        assert_eq!(samples.rate("a", 1_000_000_000, at(0)), None);
        assert_eq!(samples.rate("a", 3_000_000_000, at(4)), Some(500_000_000));
        assert_eq!(samples.rate("a", 3_000_000_000, at(4)), Some(500_000_000), "the same moment, the same rate");
    }
}
