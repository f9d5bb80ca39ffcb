//! Runs pods until enough of them have succeeded.
//!
//! [`view`] reads the state, [`plan`] decides what to do, [`tracking`] counts finished pods exactly once through a finalizer.
//! [`watch`] queues jobs, [`act`] and [`finish`] carry decisions out.

mod act;
mod back_off;
mod finish;
mod indexes;
mod plan;
mod pods;
mod policy;
mod tracking;
mod view;
mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_client::selector::{self, Selector};
use knarr_client::{Informer, WorkQueue, run_workers};
use parking_lot::Mutex;

use crate::Context;
use crate::common::adoption::{claim_all, is_alive};
use crate::common::key::uid;
use crate::common::pods::{BY_CONTROLLER, ORPHANS, PodControl, index_by_controller};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::written_versions::WrittenVersions;
use crate::common::{Expectations, Key, journey};
use crate::error::Result;
use crate::metrics;

use back_off::Records;
use view::{TRACKING, View};

pub(crate) use plan::{COMPLETE, FAILED, condition as true_condition, is_finished};

/// Changes of pods come in bursts.
const BATCH_DELAY: Duration = Duration::from_millis(50);
/// The backoff after the API server rejected a pod: an immediate retry would be rejected, too.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
const CONTROLLER_NAME: &str = "kubernetes.io/job-controller";

pub async fn run(context: Context) {
    let jobs = context.informers.of::<Job>();
    let pods = context.informers.of::<Pod>();
    index_by_controller(&pods);
    let control = PodControl { client: context.client.clone(), recorder: context.recorder("job-controller") };
    let controller = Arc::new(Controller {
        context,
        jobs,
        pods,
        queue: WorkQueue::with_backoff(INITIAL_BACKOFF, MAX_BACKOFF),
        orphans: WorkQueue::new(),
        expectations: Expectations::default(),
        released: Released::default(),
        finished: Mutex::default(),
        failures: Records::default(),
        written: WrittenVersions::default(),
        control,
    });
    controller.watch();
    controller.jobs.synced().await;
    controller.pods.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-job-syncs");
    let jobs = run_controller(&controller, &controller.queue, workers);
    let orphans = {
        let controller = controller.clone();
        run_workers(controller.orphans.clone(), workers, move |key| {
            let controller = controller.clone();
            async move { controller.release_orphan(key).await }
        })
    };
    tokio::join!(jobs, orphans);
}

struct Controller {
    context: Context,
    jobs: Arc<Informer<Job>>,
    pods: Arc<Informer<Pod>>,
    queue: Arc<WorkQueue<Key>>,
    /// Pods with a finalizer whose job is gone.
    orphans: Arc<WorkQueue<Key>>,
    expectations: Expectations,
    released: Released,
    /// Uids of jobs written as finished whose change was not observed yet.
    finished: Mutex<HashSet<String>>,
    failures: Records,
    written: WrittenVersions,
    control: PodControl,
}

/// Pods whose finalizer was removed while the cache still shows it.
#[derive(Default)]
struct Released(Mutex<HashMap<Key, HashSet<String>>>);

impl Released {
    fn of(&self, key: &Key) -> HashSet<String> {
        self.0.lock().get(key).cloned().unwrap_or_default()
    }

    fn add(&self, key: &Key, uid: &str) {
        self.0.lock().entry(key.clone()).or_default().insert(uid.to_owned());
    }

    fn remove(&self, key: &Key, uid: &str) {
        let mut all = self.0.lock();
        if let Some(uids) = all.get_mut(key) {
            uids.remove(uid);
            if uids.is_empty() {
                all.remove(key);
            }
        }
    }

    fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span("job", "jobs", &key);
        let Some(job) = self.jobs.get(&key.namespace, &key.name) else {
            self.expectations.forget(&key);
            self.released.forget(&key);
            self.failures.forget(&key);
            self.written.forget(&key);
            return Ok(());
        };
        if self.written.is_newer_than(&key, &job.metadata) {
            return Ok(());
        }
        let Some(spec) = job
            .spec
            .as_ref()
            .filter(|spec| spec.managed_by.as_deref().is_none_or(|manager| manager == CONTROLLER_NAME))
        else {
            return Ok(());
        };
        if is_finished(&job) {
            self.failures.forget(&key);
            return Ok(());
        }
        if self.finished.lock().contains(uid(&*job)) {
            return Ok(());
        }
        if !matches!(spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
            let message = "Skipped Job sync because completion mode is unknown";
            self.control.recorder.warning(&*job, "UnknownCompletionMode", message);
            return Ok(());
        }
        let may_act = self.expectations.are_satisfied(&key);
        let mut candidates = self.pods.by_index(BY_CONTROLLER, uid(&*job));
        candidates.extend(self.pods.by_index(ORPHANS, &key.namespace));
        let client = &self.context.client;
        let selector = selector_of(&job);
        let pods = claim_all(client, &*job, &selector, candidates, &[TRACKING], || is_alive(client, &*job)).await?;
        let view = View::new(&job, spec, pods, self.released.of(&key));
        let (mut action, started) = ("reconciling", Instant::now());
        let outcome = self.advance(&key, &view, may_act, &mut action).await;
        metrics::job_synced(action, view.completion_mode(), outcome.is_ok(), started.elapsed());
        outcome
    }
}

fn selector_of(job: &Job) -> Selector {
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector::of_option(selector).unwrap_or_else(|_| Selector::nothing())
}
