//! Schedules probes: one loop per probe of a container, for as long as its pod exists.
//!
//! The period is counted from when the pod's probes were added, not from a container's start, so a restarted container
//! joins the running schedule. Readiness is also probed whenever the status of a pod that is not ready changes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use super::ProbeKind;
use super::counter::Counter;

/// Readiness is probed an extra time this long after a container's start. Many servers listen within their first
/// second, and should not have to wait a whole period because the first probe came too early.
const EARLY_READINESS_DELAY: Duration = Duration::from_secs(1);

/// The container that is probed, as the pod's worker knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub id: String,
    pub running: bool,
    pub started_at: Instant,
    /// It has no startup probe, or that has succeeded.
    pub started: bool,
    pub address: String,
}

/// Where a worker puts the current target for the loop that probes it.
#[derive(Default)]
pub struct Slot {
    target: Mutex<Option<Target>>,
    trigger: Notify,
}

impl Slot {
    /// Sets the container to probe. How old a running one is follows from the wall clock, so only the first time counts: a
    /// step of the clock changes no delay.
    pub fn put(&self, target: Option<Target>) {
        let mut current = self.target.lock();
        let known = current.take().filter(|known| known.running);
        *current = target.map(|target| match known {
            Some(known) if known.id == target.id => Target { started_at: known.started_at, ..target },
            _ => target,
        });
    }

    /// Probes without waiting for the end of the period.
    pub fn trigger(&self) {
        self.trigger.notify_one();
    }

    fn get(&self) -> Option<Target> {
        self.target.lock().clone()
    }
}

/// Runs a probe and reports its result.
pub trait Prober {
    /// Whether the probe succeeded; none when it could not be run.
    fn probe(&self, target: &Target) -> impl Future<Output = Option<bool>> + Send;

    /// Reports a result that differs from the last one. False when the worker has stopped.
    fn report(&self, id: &str, outcome: bool) -> bool;
}

/// When a probe runs, and its thresholds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    initial_delay: Duration,
    period: Duration,
    pub timeout: Duration,
    failure_threshold: i32,
    success_threshold: i32,
}

impl Timing {
    pub fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).filter(|v| *v > 0).unwrap_or(default))
        };
        let threshold = |value: Option<i32>, default| value.filter(|threshold| *threshold > 0).unwrap_or(default);
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            failure_threshold: threshold(probe.failure_threshold, 3),
            success_threshold: threshold(probe.success_threshold, 1),
        }
    }

    /// The initial delay of a probe of a container that started before the kubelet, so that not all are probed at once.
    pub fn offset(&self, since_kubelet_start: Duration, fraction: f64) -> Duration {
        if self.period > since_kubelet_start { self.period.mul_f64(fraction.clamp(0.0, 1.0)) } else { Duration::ZERO }
    }
}

/// The state of one probe loop.
struct Progress {
    kind: ProbeKind,
    timing: Timing,
    counter: Counter,
    id: Option<String>,
    /// No probes until the container is replaced.
    on_hold: bool,
    reported: Option<bool>,
    early_probe_at: Option<Instant>,
}

impl Progress {
    fn new(kind: ProbeKind, timing: Timing) -> Self {
        let counter = Counter::new(timing.failure_threshold, timing.success_threshold);
        Self { kind, timing, counter, id: None, on_hold: false, reported: None, early_probe_at: None }
    }

    /// Whether to probe the target now.
    fn is_due(&mut self, target: &Target, now: Instant) -> bool {
        if self.id.as_ref() != Some(&target.id) {
            self.id = Some(target.id.clone());
            self.on_hold = false;
            self.reported = None;
            let at = target.started_at + EARLY_READINESS_DELAY;
            self.early_probe_at = Some(at).filter(|at| self.kind == ProbeKind::Readiness && *at > now);
        }
        if self.on_hold || !target.running {
            return false;
        }
        // Whole seconds count, as the delay is given in them.
        if now.saturating_duration_since(target.started_at).as_secs() < self.timing.initial_delay.as_secs() {
            return false;
        }
        target.started == (self.kind != ProbeKind::Startup)
    }

    /// Records a result and returns what must be reported.
    fn record(&mut self, success: bool) -> Option<bool> {
        let outcome = self.counter.record(success)?;
        if outcome && self.kind == ProbeKind::Readiness {
            self.early_probe_at = None;
        }
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && !outcome) {
            self.on_hold = true;
            self.counter.reset();
        }
        (self.reported.replace(outcome) != Some(outcome)).then_some(outcome)
    }
}

/// Probes the slot's target until the worker has stopped.
pub async fn run(kind: ProbeKind, timing: Timing, offset: Duration, slot: Arc<Slot>, prober: impl Prober) {
    tokio::time::sleep(offset).await;
    let mut progress = Progress::new(kind, timing);
    let mut ticks = tokio::time::interval(timing.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick comes at once.
    ticks.tick().await;
    loop {
        if !probe_once(&mut progress, &slot, &prober).await {
            return;
        }
        let early_probe_at = progress.early_probe_at;
        let again = async {
            match early_probe_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = ticks.tick() => {}
            () = slot.trigger.notified() => ticks.reset(),
            () = again => {
                progress.early_probe_at = None;
                ticks.reset();
            }
        }
    }
}

async fn probe_once(progress: &mut Progress, slot: &Slot, prober: &impl Prober) -> bool {
    let Some(target) = slot.get() else { return true };
    if !progress.is_due(&target, Instant::now()) {
        return true;
    }
    let Some(success) = Box::pin(prober.probe(&target)).await else { return true };
    match progress.record(success) {
        Some(outcome) => prober.report(&target.id, outcome),
        None => true,
    }
}

#[cfg(test)]
mod tests;
