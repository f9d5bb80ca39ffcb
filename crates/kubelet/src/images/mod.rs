//! Pulls images before containers start, and removes unused ones.

mod access;
mod collect;
mod credentials;
mod ensure;
mod glob;
mod providers;
mod pull;
#[cfg(test)]
mod tests;

pub use providers::{ApiAccounts, ProviderError, Providers};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_cri::Runtime;
use knarr_cri::messages::Image;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::counters::Counters;
use crate::events::Events;
use crate::settings::{ImageSettings, Settings};
use access::Access;
use pull::PullFailure;

/// Why an image is not available: reason and message of the container's status, and when to retry.
#[derive(Debug, PartialEq, Eq)]
pub struct ImageFailure {
    pub reason: &'static str,
    pub message: String,
    pub retry_at: Instant,
}

/// The shared state of pulling and removing images.
pub struct Parts {
    pub runtime: Runtime,
    pub events: Events,
    pub metrics: Arc<Counters>,
    pub providers: Providers,
}

#[derive(Clone)]
pub struct Images(Arc<Inner>);

struct Inner {
    settings: ImageSettings,
    thresholds: Thresholds,
    /// Whether the image archives of the node are imported.
    loaded: watch::Receiver<bool>,
    runtime: Runtime,
    events: Events,
    metrics: Arc<Counters>,
    providers: Providers,
    pulls: Semaphore,
    failures: Mutex<HashMap<(String, String), Failure>>,
    /// When the first pull for a pod started and the last one finished, by the pod's uid.
    pulling: Mutex<HashMap<String, (Instant, Instant)>>,
    /// For garbage collection.
    uses: Mutex<Uses>,
    /// The uses of images are known from here on.
    opened_at: Instant,
    access: Access,
    /// Directories of docker configuration files of the node.
    node_files: Vec<PathBuf>,
}

/// Garbage collection frees space from above the high percentage of the image file system to below the low one.
#[derive(Clone, Copy)]
struct Thresholds {
    high: u8,
    low: u8,
}

/// When images were last used, or seen for the first time: one that is new may be about to be used, or still be imported.
#[derive(Default)]
struct Uses {
    /// None for what was there before, and was not used since.
    at: HashMap<String, Option<Instant>>,
    /// Whether the images that were there before are known.
    is_complete: bool,
}

struct Failure {
    delay: Duration,
    at: Instant,
    failure: PullFailure,
}

pub const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

impl Images {
    pub fn open(settings: &Settings, parts: Parts) -> Self {
        let Parts { runtime, events, metrics, providers } = parts;
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
        let node_files = [Some(settings.plugin_root.clone()), home, Some(PathBuf::from("/.docker"))];
        Self(Arc::new(Inner {
            settings: settings.images.clone(),
            thresholds: Thresholds { high: settings.image_gc_high_percent, low: settings.image_gc_low_percent },
            loaded: settings.images_loaded.clone(),
            runtime,
            events,
            metrics,
            providers,
            pulls: Semaphore::new(settings.images.max_parallel_pulls.max(1)),
            failures: Mutex::default(),
            pulling: Mutex::default(),
            uses: Mutex::default(),
            opened_at: Instant::now(),
            access: Access::open(&settings.root, settings.images.verification.clone()),
            node_files: node_files.into_iter().flatten().collect(),
        }))
    }

    fn backing_off(&self, key: &(String, String), now: Instant) -> Option<(Instant, PullFailure)> {
        let failures = self.0.failures.lock();
        let failure = failures.get(key)?;
        let until = failure.at + failure.delay;
        (until > now).then(|| (until, failure.failure.clone()))
    }

    fn record_failure(&self, key: (String, String), failure: PullFailure, now: Instant) -> Instant {
        let mut failures = self.0.failures.lock();
        let delay = failures.get(&key).map_or(INITIAL_BACKOFF, |known| (known.delay * 2).min(MAX_BACKOFF));
        failures.insert(key, Failure { delay, at: now, failure });
        // The status shows the failure briefly before it shows the back-off.
        now + Duration::from_millis(1500)
    }

    /// Removes the pull records of images that are gone.
    fn remove_stale_records<'a>(&self, there: impl Iterator<Item = &'a str>) {
        self.0.access.keep_only(there);
        self.record_counts();
    }

    fn record_counts(&self) {
        let (intents, records) = self.0.access.counts();
        self.0.metrics.set("kubelet_imagemanager_ondisk_pullintents", &[], intents as f64);
        self.0.metrics.set("kubelet_imagemanager_ondisk_pulledrecords", &[], records as f64);
    }

    fn record_use(&self, id: &str) {
        self.0.uses.lock().at.insert(id.to_string(), Some(Instant::now()));
    }

    /// Records which images there are.
    fn record_present(&self, images: &[Image]) {
        let mut uses = self.0.uses.lock();
        let seen = uses.is_complete.then(Instant::now);
        uses.is_complete = true;
        let mut known = std::mem::take(&mut uses.at);
        uses.at = images.iter().map(|image| (image.id.clone(), known.remove(&image.id).unwrap_or(seen))).collect();
    }

    fn last_used(&self, id: &str) -> Option<Instant> {
        self.0.uses.lock().at.get(id).copied().flatten()
    }

    /// How long a pod's images took to pull.
    pub fn time_pulling(&self, uid: &str) -> Duration {
        let span = self.0.pulling.lock().get(uid).copied();
        span.map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from))
    }

    pub fn forget_pod(&self, uid: &str) {
        self.0.pulling.lock().remove(uid);
        self.0.failures.lock().retain(|(owner, _), _| owner != uid);
    }
}
