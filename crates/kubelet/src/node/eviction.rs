//! Ending pods before the node itself runs out of memory, disk or processes.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::filesystem::{FilesystemUsage, usage_of};
use crate::context::Context;
use crate::pods::evict;

/// A limit in bytes, or as a share of the whole in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    Bytes(i64),
    Thousandths(i64),
}

impl Threshold {
    pub fn amount(self, whole: i64) -> i64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Thousandths(share) => i64::try_from(i128::from(whole) * i128::from(share) / 1000).unwrap_or(i64::MAX),
        }
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(out, "{bytes}"),
            Self::Thousandths(share) => write!(out, "{}%", *share as f64 / 10.0),
        }
    }
}

/// Below which the node is under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub memory_available: Threshold,
    pub nodefs_available: Threshold,
    pub nodefs_inodes_free: Threshold,
    pub imagefs_available: Threshold,
    pub processes_available: Threshold,
    /// How long a condition stays after its cause has gone, so that it does not flicker.
    pub transition: SignedDuration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            memory_available: Threshold::Bytes(100 << 20),
            nodefs_available: Threshold::Thousandths(100),
            nodefs_inodes_free: Threshold::Thousandths(50),
            imagefs_available: Threshold::Thousandths(150),
            processes_available: Threshold::Bytes(0),
            transition: SignedDuration::from_mins(5),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub processes: bool,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals {
    pub memory_total: u64,
    pub memory_available: u64,
    pub nodefs: FilesystemUsage,
    pub imagefs: FilesystemUsage,
    pub processes_total: u64,
    pub processes: u64,
}

pub fn measure(context: &Context, image_folder: &std::path::Path) -> Signals {
    let number = |path: &str| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    // The fourth field of loadavg is "running/all".
    let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let tasks = loadavg.split_whitespace().nth(3).and_then(|field| field.split('/').nth(1)?.parse().ok());
    Signals {
        memory_total: context.machine.memory,
        memory_available: super::machine::available_memory(),
        nodefs: usage_of(&context.settings.root).unwrap_or_default(),
        imagefs: usage_of(image_folder).unwrap_or_default(),
        processes_total: number("/proc/sys/kernel/pid_max").unwrap_or(0),
        processes: tasks.unwrap_or(0),
    }
}

pub fn judge(thresholds: &Thresholds, signals: &Signals) -> Pressure {
    let below = |available: u64, whole: u64, threshold: Threshold| {
        let whole = i64::try_from(whole).unwrap_or(i64::MAX);
        whole > 0 && i64::try_from(available).unwrap_or(i64::MAX) < threshold.amount(whole)
    };
    let fs = |usage: &FilesystemUsage, threshold| below(usage.available, usage.capacity, threshold);
    Pressure {
        memory: below(signals.memory_available, signals.memory_total, thresholds.memory_available),
        disk: fs(&signals.nodefs, thresholds.nodefs_available)
            || fs(&signals.imagefs, thresholds.imagefs_available)
            || below(signals.nodefs.inodes_free, signals.nodefs.inodes, thresholds.nodefs_inodes_free),
        processes: below(
            signals.processes_total.saturating_sub(signals.processes),
            signals.processes_total,
            thresholds.processes_available,
        ),
    }
}

/// What the node is short of: the resource by its name, how much there should be, and how much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: &'static str,
    /// What was measured, by the name thresholds have.
    pub signal: &'static str,
    pub threshold: i64,
    pub available: i64,
}

/// What pods are ended for, memory first.
pub fn shortage(thresholds: &Thresholds, pressure: Pressure, signals: &Signals) -> Option<Shortage> {
    let found = |resource, signal, threshold: Threshold, available: u64, whole: u64| {
        let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        let threshold = threshold.amount(signed(whole));
        let short = Shortage { resource, signal, threshold, available: signed(available) };
        (short.available < threshold).then_some(short)
    };
    let Signals { nodefs, imagefs, memory_available, memory_total, .. } = *signals;
    if pressure.memory {
        return found("memory", "memory.available", thresholds.memory_available, memory_available, memory_total);
    }
    if pressure.disk {
        let disk = |signal, threshold, usage: FilesystemUsage| {
            found("ephemeral-storage", signal, threshold, usage.available, usage.capacity)
        };
        let inodes =
            || found("inodes", "nodefs.inodesFree", thresholds.nodefs_inodes_free, nodefs.inodes_free, nodefs.inodes);
        return disk("nodefs.available", thresholds.nodefs_available, nodefs)
            .or_else(|| disk("imagefs.available", thresholds.imagefs_available, imagefs))
            .or_else(inodes);
    }
    let free = signals.processes_total.saturating_sub(signals.processes);
    let processes = found("pids", "pid.available", thresholds.processes_available, free, signals.processes_total);
    processes.filter(|_| pressure.processes)
}

/// Pressure as it is reported: it begins at once and ends only after it has been gone for a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    memory: Option<Timestamp>,
    disk: Option<Timestamp>,
    processes: Option<Timestamp>,
}

impl Held {
    pub fn update(&mut self, current: Pressure, now: Timestamp, transition: SignedDuration) -> Pressure {
        let hold = |last: &mut Option<Timestamp>, current: bool| {
            if current {
                *last = Some(now);
            } else if last.is_some_and(|last| now.duration_since(last) >= transition) {
                *last = None;
            }
            last.is_some()
        };
        Pressure {
            memory: hold(&mut self.memory, current.memory),
            disk: hold(&mut self.disk, current.disk),
            processes: hold(&mut self.processes, current.processes),
        }
    }
}

/// Watches over the node for as long as it lives and ends pods where it must.
pub async fn watch(context: Arc<Context>, pods: Arc<crate::pods::Pods>) {
    let mut held = Held::default();
    let mut ticks = tokio::time::interval(std::time::Duration::from_secs(10));
    let image_folder = image_folder(&context).await;
    loop {
        ticks.tick().await;
        let signals = measure(&context, &image_folder);
        let current = judge(&context.settings.eviction, &signals);
        let reported = held.update(current, Timestamp::now(), context.settings.eviction.transition);
        pods.set_pressure(reported);
        if current.disk {
            match crate::images::collect_garbage(&context, true).await {
                Ok(freed) if freed > 0 => {
                    tracing::info!(freed, "unused images were removed");
                    continue;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(error, "unused images can't be removed"),
            }
        }
        if current != Pressure::default() {
            evict::evict_one(&context, &pods, current, &signals).await;
        }
        evict::enforce_storage_limits(&context, &pods).await;
    }
}

async fn image_folder(context: &Context) -> std::path::PathBuf {
    let info = context.runtime.image_fs_info().await;
    let first = info.ok().and_then(|info| info.image_filesystems.into_iter().next());
    let point = first.and_then(|usage| usage.fs_id).map(|id| id.mountpoint);
    point.map_or_else(|| context.settings.root.clone(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_at_once_and_ends_slowly() {
        let thresholds = Thresholds::default();
        let mut signals = Signals { memory_total: 1 << 30, memory_available: 1 << 20, ..Default::default() };
        assert!(judge(&thresholds, &signals).memory);
        signals.memory_available = 500 << 20;
        assert_eq!(judge(&thresholds, &signals), Pressure::default());
        signals.nodefs = FilesystemUsage { capacity: 1000, available: 99, inodes: 100, inodes_free: 100 };
        assert!(judge(&thresholds, &signals).disk);
        let at = |second| Timestamp::from_second(second).expect("a moment");
        let mut held = Held::default();
        let bad = Pressure { memory: true, ..Default::default() };
        let minute = SignedDuration::from_mins(1);
        assert!(held.update(bad, at(0), minute).memory);
        assert!(held.update(Pressure::default(), at(30), minute).memory);
        assert!(!held.update(Pressure::default(), at(60), minute).memory);
    }
}
