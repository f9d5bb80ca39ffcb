//! All pods of the node: admission, their workers, and node-wide events that concern them.

mod admit;
pub mod evict;
mod orphans;
mod preempt;
mod resizes;
mod restart;
mod room;
mod shared_cpus;
mod shutdown;

pub use orphans::clear_leftovers;
pub use shared_cpus::keep_shared_cpus;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::context::Context;
use crate::eviction::Pressure;
use crate::journey_events;
use crate::pod;
use crate::resources::pod_resources::ListedPods;
use crate::runtime::RuntimePod;
use crate::worker::state::Termination;
use crate::worker::{Handle, Message, Worker};
use resizes::Resizes;

/// The workers of all pods on this node.
pub struct Pods {
    context: Arc<Context>,
    workers: Mutex<HashMap<String, Handle>>,
    /// Removed pods whose worker still runs, and their new version if they came back: a manifest may be deleted and
    /// restored. Locked after the workers.
    leaving: Mutex<HashMap<String, Option<Arc<Pod>>>>,
    /// Pods that a previous process left in the runtime, until they are seen in the API.
    leftovers: Mutex<HashMap<String, RuntimePod>>,
    /// Mirror pods by namespace and name.
    mirrors: Mutex<HashMap<(String, String), Arc<Pod>>>,
    resizes: Resizes,
    pressure: Mutex<Pressure>,
    node_changed: Arc<Notify>,
    shutting_down: AtomicBool,
}

impl Pods {
    pub fn new(context: Arc<Context>, leftovers: HashMap<String, RuntimePod>) -> Arc<Self> {
        for is_static in ["true", ""] {
            context.metrics.add("kubelet_restarted_pods_total", &[("static", is_static)], 0.0);
        }
        Arc::new(Self {
            context,
            workers: Mutex::default(),
            leaving: Mutex::default(),
            leftovers: Mutex::new(leftovers),
            mirrors: Mutex::default(),
            resizes: Resizes::default(),
            pressure: Mutex::default(),
            node_changed: Arc::default(),
            shutting_down: AtomicBool::new(false),
        })
    }

    /// Passes a new or changed pod to its worker. A pod not seen before must be admitted first.
    pub fn desire(self: &Arc<Self>, pod: Arc<Pod>) {
        let uid = pod::uid(&pod).to_string();
        let workers = self.workers.lock();
        let known = workers.get(&uid).cloned();
        if let Some(returned) = self.leaving.lock().get_mut(&uid) {
            // It must terminate first and is started again after that.
            *returned = Some(pod);
            return;
        }
        drop(workers);
        if let Some(worker) = known {
            *worker.pod.lock() = pod.clone();
            // The worker may have just stopped and is about to leave the map.
            let _ = worker.sender.send(Message::Desired(pod));
            return;
        }
        let runtime = self.leftovers.lock().remove(&uid);
        let refused = match (&runtime, is_finished(&pod)) {
            // A pod that already runs was admitted before.
            (None, false) => {
                admit::refusal(&self.context, &pod, &self.active(), self.pressure(), self.is_shutting_down())
            }
            _ => None,
        };
        let refused = match refused {
            None if runtime.is_none() && !is_finished(&pod) && pod::is_critical(&pod) => self.make_room(&pod),
            refused => refused,
        };
        let node = self.context.settings.node_name.as_str();
        journey_events::accepted(&pod, node);
        let count = pod::spec(&pod).containers.len();
        self.context.metrics.observe_value("kubelet_containers_per_pod_count", &[], count as f64);
        let refused = refused.map(|refusal| {
            journey_events::refused(&pod, &refusal.message);
            self.context.events.about_pod(&pod, true, &refusal.reason, refusal.message.clone());
            self.context.metrics.count("kubelet_admission_rejections_total", &[("reason", &refusal.reason)]);
            Termination::Rejected { reason: refusal.reason, message: refusal.message }
        });
        let worker = self.start(&uid, pod.clone(), runtime.unwrap_or_default(), refused);
        if pod::is_static(&pod) {
            let mirror = self.mirrors.lock().get(&key(&pod)).cloned();
            let _ = worker.sender.send(Message::Mirror(mirror));
        }
        self.update_burstable_weight();
    }

    /// Preempts other pods if there is no room for a critical one.
    fn make_room(&self, pod: &Arc<Pod>) -> Option<admit::Refusal> {
        const MESSAGE: &str = "Preempted in order to admit critical pod";
        const CONDITION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";
        let others: Vec<Arc<Pod>> = self.active().into_iter().map(|(other, _)| other).collect();
        let missing = preempt::missing(pod, &others, &self.context.allocatable.read());
        let Some(victims) = preempt::victims(pod, &others, &missing) else {
            let message = format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
                 pods to preempt: no set of running pods found to reclaim resources: {}",
                preempt::rendered(&missing)
            );
            return Some(admit::Refusal { reason: "UnexpectedAdmissionError".into(), message });
        };
        for victim in victims {
            tracing::warn!(
                pod = pod::title(&victim),
                critical = pod::title(pod),
                "preempting a pod for a critical one"
            );
            self.context.events.about_pod(&victim, true, "Preempting", MESSAGE);
            let signal = missing.keys().next().map_or("", String::as_str);
            self.context.metrics.count("kubelet_preemptions", &[("preemption_signal", signal)]);
            let termination = Termination::Stopped {
                reason: "Preempting".into(),
                message: MESSAGE.into(),
                grace: None,
                condition: Some(("TerminationByKubelet".into(), CONDITION.into())),
            };
            if let Some(worker) = self.workers.lock().get(pod::uid(&victim)) {
                let _ = worker.sender.send(Message::Stop(Box::new(termination)));
            }
        }
        None
    }

    fn start(self: &Arc<Self>, uid: &str, pod: Arc<Pod>, runtime: RuntimePod, refused: Option<Termination>) -> Handle {
        let (pods, finished) = (self.clone(), uid.to_string());
        let pods_weak = Arc::downgrade(self);
        let fits =
            Arc::new(move |pod: &Arc<Pod>| pods_weak.upgrade().and_then(|pods| admit::resize_obstacle(&pods, pod)));
        let mut workers = self.workers.lock();
        let handle = Worker::spawn(self.context.clone(), pod, runtime, refused, fits, move |panicked| {
            if let Some(reason) = panicked {
                return pods.replace_worker(finished, &reason);
            }
            let returned = {
                let mut workers = pods.workers.lock();
                let ended = workers.remove(&finished);
                let returned = pods.leaving.lock().remove(&finished).flatten();
                returned.map(|pod| counting_on(pod, ended.map(|ended| ended.status.lock().clone())))
            };
            pods.update_burstable_weight();
            if let Some(pod) = returned {
                let is_static = if pod::is_static(&pod) { "true" } else { "" };
                pods.context.metrics.count("kubelet_restarted_pods_total", &[("static", is_static)]);
                pods.desire(pod);
            }
        });
        workers.insert(uid.to_string(), handle.clone());
        handle
    }

    /// The pod was deleted from the API or the manifest directory.
    pub fn remove(&self, uid: &str) {
        if let Some(worker) = self.workers.lock().get(uid) {
            self.leaving.lock().insert(uid.to_string(), None);
            let _ = worker.sender.send(Message::Removed);
        }
    }

    /// A mirror pod was added, changed or deleted.
    pub fn mirror(&self, pod: &Arc<Pod>, present: bool) {
        let mirror = present.then(|| pod.clone());
        match &mirror {
            Some(mirror) => self.mirrors.lock().insert(key(pod), mirror.clone()),
            None => self.mirrors.lock().remove(&key(pod)),
        };
        for worker in self.workers.lock().values() {
            let own = worker.pod.lock().clone();
            if pod::is_static(&own) && key(&own) == key(pod) {
                let _ = worker.sender.send(Message::Mirror(mirror.clone()));
            }
        }
    }

    pub fn mirror_count(&self) -> usize {
        self.mirrors.lock().len()
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.mirrors.lock().get(&key(pod)).cloned()
    }

    /// Mirror pods whose static pod is neither desired nor still terminating.
    pub fn stray_mirrors(&self) -> Vec<Arc<Pod>> {
        let own: std::collections::HashSet<_> = self
            .all()
            .into_iter()
            .map(|worker| worker.pod.lock().clone())
            .filter(|pod| pod::is_static(pod) && !pod::is_mirror(pod))
            .map(|pod| key(&pod))
            .collect();
        self.mirrors.lock().iter().filter(|(key, _)| !own.contains(*key)).map(|(_, mirror)| mirror.clone()).collect()
    }

    /// Whether another static pod has this pod's name.
    pub fn is_name_in_use(&self, pod: &Pod) -> bool {
        self.all().iter().any(|worker| {
            let own = worker.pod.lock();
            pod::is_static(&own) && key(&own) == key(pod) && own.metadata.uid != pod.metadata.uid
        })
    }

    pub fn static_count(&self) -> usize {
        self.all().iter().filter(|worker| pod::is_static(&worker.pod.lock())).count()
    }

    pub fn knows(&self, uid: &str) -> bool {
        self.workers.lock().contains_key(uid)
    }

    pub fn find(&self, namespace: &str, name: &str) -> Option<Handle> {
        let workers = self.workers.lock();
        let mut found = workers.values().filter(|worker| {
            let pod = worker.pod.lock();
            pod::namespace(&pod) == namespace && pod::name(&pod) == name
        });
        let first = found.next()?;
        // Of two pods with the same name, prefers the one that is not being deleted.
        let alive = |worker: &Handle| worker.pod.lock().metadata.deletion_timestamp.is_none();
        Some(found.find(|worker| alive(worker)).unwrap_or(first).clone())
    }

    pub fn all(&self) -> Vec<Handle> {
        self.workers.lock().values().cloned().collect()
    }

    /// Pods that use resources of the node, with their latest status.
    pub fn active(&self) -> Vec<(Arc<Pod>, PodStatus)> {
        let all = self.all().into_iter().map(|worker| (worker.pod.lock().clone(), worker.status.lock().clone()));
        all.filter(|(_, status)| !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))).collect()
    }

    /// Releases the exclusive resources of pods that are gone.
    pub fn release_stale_grants(&self) {
        self.context.resources.release_unknown(|uid| self.knows(uid));
    }

    pub fn pressure(&self) -> Pressure {
        *self.pressure.lock()
    }

    pub fn set_pressure(&self, pressure: Pressure) {
        let old = std::mem::replace(&mut *self.pressure.lock(), pressure);
        if old != pressure {
            self.node_changed.notify_one();
        }
    }

    /// Makes pods with devices report their devices' health again.
    pub fn notify_device_change(&self) {
        for worker in self.all() {
            let pod = worker.pod.lock().clone();
            let mut devices = self.context.resources.health_of(pod::uid(&pod));
            self.context.dra.add_health(&pod, &mut devices);
            if !devices.is_empty() {
                // The worker may already have stopped.
                let _ = worker.sender.send(Message::Relist(None));
            }
        }
    }

    /// Notified when the node's status should be updated before its next interval.
    pub fn node_changed(&self) -> Arc<Notify> {
        self.node_changed.clone()
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    pub fn set_shutting_down(&self, shutting_down: bool) {
        self.shutting_down.store(shutting_down, Ordering::Relaxed);
        self.node_changed.notify_one();
    }

    /// Updates the CPU weight of the burstable class.
    fn update_burstable_weight(&self) {
        use crate::cgroup::{amounts::pod_amounts, qos::QosClass, qos::qos_class};
        let Some(cgroups) = &self.context.cgroups else { return };
        let burstable = self.active().into_iter().filter(|(pod, _)| qos_class(pod) == QosClass::Burstable);
        let sum = burstable.map(|(pod, _)| pod_amounts(&pod).cpu_request).sum();
        if let Err(error) = cgroups.set_burstable_weight(sum) {
            tracing::debug!(%error, "cannot set the CPU weight of burstable pods");
        }
    }
}

fn key(pod: &Pod) -> (String, String) {
    (pod::namespace(pod).to_string(), pod::name(pod).to_string())
}

impl ListedPods for Pods {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.active().into_iter().map(|(pod, _)| pod).collect()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.find(namespace, name).map(|worker| worker.pod.lock().clone())
    }
}

fn is_finished(pod: &Pod) -> bool {
    !knarr_client::pod::is_active(pod)
}
/// A static pod that returns counts the restarts of its containers on; that of the API has its status.
fn counting_on(mut pod: Arc<Pod>, ended: Option<PodStatus>) -> Arc<Pod> {
    if let Some(ended) = ended.filter(|_| pod::is_static(&pod)) {
        Arc::make_mut(&mut pod).status = Some(PodStatus {
            container_statuses: ended.container_statuses,
            init_container_statuses: ended.init_container_statuses,
            ..PodStatus::default()
        });
    }
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_static_pod_that_returns_counts_its_restarts_on() {
        let pod = |annotations: serde_json::Value| -> Arc<Pod> {
            Arc::new(serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).expect("a pod"))
        };
        let ended: PodStatus = serde_json::from_value(json!({ "phase": "Succeeded", "containerStatuses": [
            { "name": "a", "restartCount": 2, "ready": false, "image": "i", "imageID": "", "containerID": "c://1" }] }))
        .expect("a status");
        let returned = counting_on(pod(json!({ pod::CONFIG_SOURCE: "file" })), Some(ended.clone()));
        let status = returned.status.as_ref().expect("a status");
        assert_eq!(status.container_statuses.as_ref().expect("statuses")[0].restart_count, 2);
        assert_eq!(status.phase, None, "it runs again");
        assert_eq!(counting_on(pod(json!({})), Some(ended)).status, None, "others have that of the API");
    }
}
