//! Evaluates eviction signals against their limits: what is low, for how long, and whether a pod must be evicted.

use std::time::Duration;

use tokio::time::Instant;

use super::thresholds::{Limit, Signal};

/// The available amount of a resource and its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub available: u64,
    pub whole: u64,
}

/// The measured levels; a signal that cannot be measured is missing.
pub type Signals = std::collections::BTreeMap<Signal, Level>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub processes: bool,
}

impl Pressure {
    fn of(signals: impl Iterator<Item = Signal>) -> Self {
        signals.fold(Self::default(), |sum, signal| Self {
            memory: sum.memory || signal.resource() == "memory",
            disk: sum.disk || signal.is_disk(),
            processes: sum.processes || signal == Signal::Processes,
        })
    }
}

/// A resource that the node is short of, with its threshold and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub signal: Signal,
    pub threshold: i64,
    pub available: i64,
    /// The limit has a grace period, so pods get one as well.
    pub is_soft: bool,
}

/// The shortage if the limit is not met. With `more`, the minimum reclaim is added to the limit.
pub fn is_below(limit: &Limit, signals: &Signals, more: bool) -> Option<Shortage> {
    let level = signals.get(&limit.signal).filter(|level| level.whole > 0)?;
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let (available, whole) = (signed(level.available), signed(level.whole));
    let threshold = limit.below.amount(whole);
    let reclaim = limit.reclaim.filter(|_| more).map_or(0, |reclaim| reclaim.amount(whole));
    let short = Shortage { signal: limit.signal, threshold, available, is_soft: limit.grace.is_some() };
    (available < threshold.saturating_add(reclaim)).then_some(short)
}

/// The state between evaluations.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    /// Since when each unmet limit is unmet.
    since: Vec<(Limit, Instant)>,
    /// Limits that caused an eviction and stay active until their minimum reclaim is met.
    acted_on: Vec<Limit>,
    last: [Option<Instant>; 3],
}

/// The result of one evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// The pressure to report: set at once, cleared only after the transition period.
    pub pressure: Pressure,
    /// The shortage for which a pod must be evicted.
    pub shortage: Option<Shortage>,
}

impl Monitor {
    pub fn evaluate(&mut self, limits: &[Limit], signals: &Signals, now: Instant, transition: Duration) -> Evaluation {
        let holds = |limit: &&Limit| is_below(limit, signals, self.acted_on.contains(limit)).is_some();
        let unmet: Vec<Limit> = limits.iter().filter(holds).copied().collect();
        let unmet_since =
            |limit: &Limit| self.since.iter().find(|(known, _)| known == limit).map_or(now, |(_, at)| *at);
        self.since = unmet.iter().map(|limit| (*limit, unmet_since(limit))).collect();
        let over = |(limit, at): &&(Limit, Instant)| match limit.grace {
            None => true,
            Some(grace) => now.saturating_duration_since(*at) >= grace,
        };
        self.acted_on = self.since.iter().filter(over).map(|(limit, _)| *limit).collect();
        let mut due = self.acted_on.clone();
        due.sort_by_key(|limit| Signal::ALL.iter().position(|signal| *signal == limit.signal));
        Evaluation {
            pressure: self.hold(Pressure::of(unmet.iter().map(|limit| limit.signal)), now, transition),
            shortage: due.first().and_then(|limit| is_below(limit, signals, true)),
        }
    }

    fn hold(&mut self, current: Pressure, now: Instant, transition: Duration) -> Pressure {
        let hold = |last: &mut Option<Instant>, current: bool| {
            if current {
                *last = Some(now);
            } else if last.is_some_and(|last| now.saturating_duration_since(last) >= transition) {
                *last = None;
            }
            last.is_some()
        };
        let [memory, disk, processes] = &mut self.last;
        Pressure {
            memory: hold(memory, current.memory),
            disk: hold(disk, current.disk),
            processes: hold(processes, current.processes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::thresholds::{Eviction, Threshold};
    use super::*;

    fn at(second: u64) -> Instant {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *START + Duration::from_secs(second)
    }

    fn memory(available: u64) -> Signals {
        Signals::from([(Signal::Memory, Level { available, whole: 1 << 30 })])
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn pressure_is_set_at_once_and_cleared_slowly() {
        let limits = Eviction::default().all();
        let mut watch = Monitor::default();
        let first = watch.evaluate(&limits, &memory(1 << 20), at(0), MINUTE);
        assert!(first.pressure.memory);
        let expected = Shortage { signal: Signal::Memory, threshold: 100 << 20, available: 1 << 20, is_soft: false };
        assert_eq!(first.shortage, Some(expected));
        let better = watch.evaluate(&limits, &memory(500 << 20), at(30), MINUTE);
        assert!(better.pressure.memory && better.shortage.is_none());
        assert!(!watch.evaluate(&limits, &memory(500 << 20), at(60), MINUTE).pressure.memory);
        let disk = Signals::from([(Signal::NodeDisk, Level { available: 99, whole: 1000 })]);
        assert!(watch.evaluate(&limits, &disk, at(60), MINUTE).pressure.disk);
    }

    #[test]
    fn soft_limits_wait_for_their_grace_and_want_more_once_they_acted() {
        let soft = Limit {
            signal: Signal::Memory,
            below: Threshold::Amount(200 << 20),
            grace: Some(Duration::from_secs(30)),
            reclaim: Some(Threshold::Amount(100 << 20)),
        };
        let mut watch = Monitor::default();
        // Seconds, mebibytes that are free, whether the node reports pressure, and whether a pod is evicted.
        for (second, free, pressure, acts) in [
            (0, 300, false, false),
            (10, 150, true, false),
            (30, 150, true, false),
            (40, 150, true, true),
            (50, 250, true, true),
            (60, 301, true, false),
            (70, 250, true, false),
            (130, 250, false, false),
            (140, 150, true, false),
        ] {
            let evaluation = watch.evaluate(&[soft], &memory(free << 20), at(second), MINUTE);
            assert_eq!((evaluation.pressure.memory, evaluation.shortage.is_some()), (pressure, acts), "at {second}");
            assert!(evaluation.shortage.is_none_or(|short| short.is_soft));
        }
    }

    #[test]
    fn memory_goes_before_disk() {
        let mut signals = memory(1);
        signals.insert(Signal::NodeInodes, Level { available: 0, whole: 100 });
        signals.insert(Signal::AllocatableMemory, Level { available: 0, whole: 1 << 30 });
        let evaluation = Monitor::default().evaluate(&Eviction::default().all(), &signals, at(0), MINUTE);
        assert_eq!(evaluation.shortage.map(|short| short.signal), Some(Signal::Memory));
        signals.remove(&Signal::Memory);
        let evaluation = Monitor::default().evaluate(&Eviction::default().all(), &signals, at(0), MINUTE);
        assert_eq!(evaluation.shortage.map(|short| short.signal), Some(Signal::AllocatableMemory));
    }
}
