//! How many seats a priority level needed since the last adjustment, and a smoothed envelope of it.

use std::time::Duration;

/// How slowly the smoothed demand falls: its share that remains after one period.
const SMOOTHING: f64 = 0.977;

/// Integrates the demand over time.
#[derive(Debug, Default)]
pub struct Integrator {
    last: Duration,
    value: f64,
    max: f64,
    seconds: f64,
    /// Integrals of the value and of its square over time.
    sum: f64,
    squares: f64,
}

/// The demand during one period.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Observed {
    pub seconds: f64,
    pub average: f64,
    pub deviation: f64,
    pub max: f64,
}

impl Integrator {
    /// Sets the demand from `now` on.
    pub fn set(&mut self, now: Duration, value: f64) {
        self.advance(now);
        self.value = value;
        self.max = self.max.max(value);
    }

    /// The demand since the last call.
    pub fn take(&mut self, now: Duration) -> Observed {
        self.advance(now);
        let average = if self.seconds > 0.0 { self.sum / self.seconds } else { 0.0 };
        let variance = if self.seconds > 0.0 { self.squares / self.seconds - average * average } else { 0.0 };
        let observed = Observed { seconds: self.seconds, average, deviation: variance.max(0.0).sqrt(), max: self.max };
        *self = Integrator { last: self.last, value: self.value, max: self.value, ..Integrator::default() };
        observed
    }

    fn advance(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        self.seconds += seconds;
        self.sum += self.value * seconds;
        self.squares += self.value * self.value * seconds;
    }
}

/// Statistics of the demand over several periods.
#[derive(Debug, Default, Clone, Copy)]
pub struct Demand {
    pub average: f64,
    pub deviation: f64,
    pub high_watermark: u32,
    /// Rises at once and falls slowly.
    pub smoothed: f64,
}

impl Demand {
    pub fn update(&mut self, observed: Observed) {
        self.high_watermark = observed.max.round() as u32;
        if observed.seconds <= 0.0 {
            return;
        }
        self.average = observed.average;
        self.deviation = observed.deviation;
        let envelope = observed.average + observed.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_averaged_over_time() {
        let mut integrator = Integrator::default();
        integrator.set(Duration::from_secs(1), 4.0);
        integrator.set(Duration::from_secs(3), 0.0);
        let observed = integrator.take(Duration::from_secs(4));
        assert_eq!((observed.seconds, observed.average, observed.max), (4.0, 2.0, 4.0));
        assert!((observed.deviation - 2.0).abs() < 1e-9);
        assert_eq!(integrator.take(Duration::from_secs(4)), Observed::default());
    }

    #[test]
    fn smoothed_demand_rises_at_once_and_falls_slowly() {
        let mut demand = Demand::default();
        demand.update(Observed { seconds: 10.0, average: 90.0, deviation: 10.0, max: 120.0 });
        assert_eq!((demand.smoothed, demand.high_watermark), (100.0, 120));
        demand.update(Observed { seconds: 10.0, ..Observed::default() });
        assert!((demand.smoothed - 97.7).abs() < 1e-9, "{demand:?}");
    }
}
