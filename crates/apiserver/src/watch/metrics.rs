//! Metrics of watches, by Kubernetes' names.

use std::sync::Arc;
use std::time::Instant;

use knarr_metrics::{Family, Histogram};

use crate::kinds::Resource;
use crate::request::Target;
use crate::request_metrics::{self, LongRunning};

static INITIAL: Histogram = Histogram::new(
    "apiserver_watch_list_duration_seconds",
    "[BETA] Time from the start of a watch until its initial objects were sent, for clients that requested them.",
    &["group", "resource", "scope", "version"],
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0],
);

pub const FAMILIES: &[&dyn Family] = &[&INITIAL];

/// A watch that is counted until this is dropped.
pub struct MeasuredWatch {
    resource: Arc<Resource>,
    scope: &'static str,
    started: Instant,
    _open: LongRunning,
}

impl MeasuredWatch {
    pub fn start(resource: &Arc<Resource>, target: &Target) -> MeasuredWatch {
        let (open, scope) = (LongRunning::watch(resource, target), request_metrics::scope(target));
        MeasuredWatch { resource: resource.clone(), scope, started: Instant::now(), _open: open }
    }

    /// Records that the initial objects are sent.
    pub fn initial_sent(&self) {
        let kind = &self.resource.kind;
        let labels = [kind.group.as_str(), &kind.plural, self.scope, &kind.version];
        INITIAL.observe(&labels, self.started.elapsed().as_secs_f64());
    }
}
