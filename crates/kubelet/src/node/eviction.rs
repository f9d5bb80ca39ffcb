//! Evicts pods before the node runs out of memory, disk or processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::eviction::{Level, Limit, Monitor, Signal, Signals, is_below};
use crate::filesystem::usage_of;
use crate::pods::evict;

/// How often the signals are measured.
const INTERVAL: Duration = Duration::from_secs(10);

/// Measures the eviction signals forever and evicts pods when needed.
pub async fn watch(context: Arc<Context>, pods: Arc<crate::pods::Pods>) {
    let mut monitor = Monitor::default();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut image_directory = None;
    let limits = context.settings.eviction.all();
    let transition = Duration::try_from(context.settings.eviction.transition).unwrap_or_default();
    loop {
        ticks.tick().await;
        if image_directory.is_none() {
            image_directory = find_image_directory(&context).await;
        }
        let image_directory = image_directory.as_deref().unwrap_or(&context.settings.root);
        let has_image_disk = on_different_filesystems(&context.settings.root, image_directory);
        let (signals, measured) = (measure(&context, image_directory), Instant::now());
        let evaluation = monitor.evaluate(&limits, &signals, tokio::time::Instant::now(), transition);
        pods.set_pressure(evaluation.pressure);
        let Some(short) = evaluation.shortage else { continue };
        let resource = short.signal.resource();
        context.events.about_node(true, "EvictionThresholdMet", format!("Attempting to reclaim {resource}"));
        if short.signal.is_disk() && images_were_enough(&context, &limits, image_directory).await {
            continue;
        }
        let age = measured.elapsed();
        context.metrics.observe("kubelet_eviction_stats_age_seconds", &[("eviction_signal", short.signal.name())], age);
        evict::evict_one(&context, &pods, &short, has_image_disk).await;
    }
}

/// Evicts pods that exceed their own storage limits. A task of its own: whoever has millions of files makes measuring slow,
/// and must not delay evictions for the node's sake.
pub async fn watch_storage_limits(context: Arc<Context>, pods: Arc<crate::pods::Pods>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        evict::enforce_storage_limits(&context, &pods).await;
    }
}

/// Removes unused images. Pods are evicted only if that is not enough.
async fn images_were_enough(context: &Context, limits: &[Limit], image_directory: &Path) -> bool {
    match context.images.collect_garbage(true).await {
        Ok(0) => return false,
        Ok(freed) => tracing::info!(freed, "removed unused images"),
        Err(error) => {
            tracing::warn!(error, "cannot remove unused images");
            return false;
        }
    }
    let signals = measure(context, image_directory);
    let disk = limits.iter().filter(|limit| limit.signal.is_disk());
    disk.filter_map(|limit| is_below(limit, &signals, true)).next().is_none()
}

fn measure(context: &Context, image_directory: &Path) -> Signals {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut signals = Signals::from([(
        Signal::Memory,
        Level { available: crate::host::available_memory(), whole: context.host.memory },
    )]);
    if let Some(used) = context.cgroups.as_ref().and_then(|cgroups| cgroups.pods_usage().working_set) {
        let whole = super::object::memory_for_pods(&context.settings, &context.host);
        signals.insert(Signal::AllocatableMemory, Level { available: whole.saturating_sub(used), whole });
    }
    for (directory, disk, inodes) in [
        (context.settings.root.as_path(), Signal::NodeDisk, Signal::NodeInodes),
        (image_directory, Signal::ImageDisk, Signal::ImageInodes),
    ] {
        let Some(usage) = usage_of(directory) else { continue };
        signals.insert(disk, Level { available: usage.available, whole: usage.capacity });
        signals.insert(inodes, Level { available: usage.inodes_free, whole: usage.inodes });
    }
    // The fourth field of loadavg is "running/all".
    let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let tasks = loadavg.split_whitespace().nth(3).and_then(|field| field.split('/').nth(1)?.parse::<u64>().ok());
    if let (Some(whole), Some(tasks)) = (number("/proc/sys/kernel/pid_max"), tasks) {
        signals.insert(Signal::Processes, Level { available: whole.saturating_sub(tasks), whole });
    }
    signals
}

/// The runtime's image directory; none while the runtime does not respond.
async fn find_image_directory(context: &Context) -> Option<PathBuf> {
    match context.runtime.image_fs_info().await {
        Ok(info) => {
            let point = info.image_filesystems.into_iter().next().and_then(|usage| usage.fs_id).map(|id| id.mountpoint);
            Some(point.map_or_else(|| context.settings.root.clone(), Into::into))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot locate the runtime's images yet");
            None
        }
    }
}

/// Whether two directories are on different file systems.
fn on_different_filesystems(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    device(one).zip(device(other)).is_some_and(|(one, other)| one != other)
}
