//! Publishes which pods are behind a service, in EndpointSlices of bounded size.
//!
//! [`desired`] turns pods into endpoints, [`plan`] distributes endpoints over slices with few writes; both also serve the
//! mirroring of manual Endpoints in [`mirroring`].

mod desired;
mod metrics;
pub mod mirroring;
mod plan;
mod topology;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::events::{EventType, reference};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::Context;
use crate::common::key::{namespace, uid};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::{delete, replace};
use crate::common::service_pods::{TriggerTimes, index_pods_by_label, index_services, pods_labelled, services_touched};
use crate::common::written_versions::WrittenVersions;
use crate::common::{Expectations, Key, journey, messages};
use crate::error::{Error, Result, namespace_terminating};

pub(crate) use metrics::METRICS;
use metrics::Totals;
use plan::Changes;
use topology::{Shares, Zones};

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// Index of slices by namespace, service and manager.
const BY_SERVICE: &str = "service";

pub async fn run(context: Context) {
    let services = context.informers.of::<Service>();
    let pods = context.informers.of::<Pod>();
    let nodes = context.informers.of::<Node>();
    let slices = context.informers.of::<EndpointSlice>();
    index_services(&services);
    index_pods_by_label(&pods);
    index_slices(&slices);
    let controller = Arc::new(Controller {
        recorder: context.recorder("endpoint-slice-controller"),
        queue: WorkQueue::new(),
        written: Writes::default(),
        trigger_times: TriggerTimes::default(),
        waits_for_nodes: Mutex::default(),
        shares: Mutex::default(),
        totals: Totals::default(),
        context,
        services,
        pods,
        nodes,
        slices,
    });
    controller.watch();
    controller.services.synced().await;
    controller.pods.synced().await;
    controller.nodes.synced().await;
    controller.slices.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-service-endpoint-syncs");
    run_controller(&controller, &controller.queue, workers).await;
}

struct Controller {
    context: Context,
    services: Arc<Informer<Service>>,
    pods: Arc<Informer<Pod>>,
    nodes: Arc<Informer<Node>>,
    slices: Arc<Informer<EndpointSlice>>,
    queue: Arc<WorkQueue<Key>>,
    written: Writes,
    trigger_times: TriggerTimes,
    /// How often in a row a service had pods on unknown nodes.
    waits_for_nodes: Mutex<HashMap<Key, u32>>,
    /// How many endpoints are hinted for each zone, by service with topology hints and by family.
    shares: Mutex<HashMap<Key, BTreeMap<&'static str, Shares>>>,
    recorder: EventRecorder,
    totals: Totals,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span("endpointslice", "services", &key);
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            self.written.expected.forget(&key);
            self.trigger_times.forget(&key);
            self.waits_for_nodes.lock().remove(&key);
            self.shares.lock().remove(&key);
            self.totals.forget(&key);
            return Ok(());
        };
        let Some(spec) = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName")) else {
            return Ok(());
        };
        let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else { return Ok(()) };
        let pods = pods_labelled(&self.pods, &key.namespace, selector);
        let existing = slices_of(&self.slices, &key, CONTROLLER);
        self.written.are_observed(&key, &existing)?;
        let trigger_time = self.trigger_times.earliest(&service, &pods);
        let mut desired = desired::of_service(&service, spec, &pods, |node| self.nodes.get("", node));
        let by_zone = topology::is_requested(&service);
        if by_zone {
            topology::keep_hints(&mut desired.endpoints, &existing);
        }
        let parent = desired::parent_of(&service, spec, trigger_time);
        let max = self.context.settings.endpoints.max_per_slice;
        let mut changes = plan::plan(&parent, &desired.families, desired.endpoints, &existing, max, true);
        self.totals.synced(&key, &existing, &changes, max, spec.traffic_distribution.as_deref());
        let events = self.distribute(&key, by_zone, &desired.families, &mut changes, &existing);
        let outcome = carry_out(&self.context.client, &key, &self.written, changes).await;
        for (kind, reason, message) in events {
            self.recorder.about(reference(&*service), kind, reason, message);
        }
        let failed = match &outcome {
            Err(error) => Some(error.to_string()),
            Ok(()) if desired.skipped.is_empty() => None,
            Ok(()) => Some(messages::failures(&desired.skipped)),
        };
        if let Some(error) = failed {
            let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
            self.recorder.warning(&*service, "FailedToUpdateEndpointSlices", message);
        }
        if desired.skipped.is_empty() {
            self.waits_for_nodes.lock().remove(&key);
        } else {
            let wait = {
                let mut waits = self.waits_for_nodes.lock();
                let times = waits.entry(key.clone()).or_default();
                *times = times.saturating_add(1);
                node_backoff(*times - 1)
            };
            self.queue.add_after(key, wait);
        }
        outcome
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let queue = self.queue.clone();
        self.services.on_change(move |change| queue.add(Key::of(&**change.latest())));
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let period = controller.context.settings.endpoints.batch_period;
            for key in services_touched(&controller.services, change) {
                let delay = period.max(controller.trigger_times.batch_delay(&key));
                controller.queue.add_after(key, delay);
            }
        });
        let weak = Arc::downgrade(self);
        self.nodes.on_change(move |change| {
            if let Some(controller) = weak.upgrade()
                && topology::concerns(change.previous().map(|old| &**old), change.latest())
            {
                controller.zones_changed();
            }
        });
        let weak = Arc::downgrade(self);
        self.slices.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                slice_changed(change, CONTROLLER, &controller.written, &controller.queue);
            }
        });
    }

    /// Queues services whose endpoints are now too few for some zone.
    fn zones_changed(&self) {
        let shares = self.shares.lock();
        if shares.is_empty() {
            return;
        }
        let zones = self.zones();
        for (key, families) in &*shares {
            if families.values().any(|shares| zones.overload(shares)) {
                self.queue.add(key.clone());
            }
        }
    }

    fn zones(&self) -> Zones {
        let nodes = self.nodes.list();
        Zones::of(nodes.iter().map(|node| &**node))
    }
}

type EventFields = (EventType, &'static str, String);

impl Controller {
    /// Sets zone hints on endpoints, where the service requests that. Returns the events to record.
    fn distribute(
        &self,
        key: &Key,
        is_requested: bool,
        families: &[&'static str],
        changes: &mut Changes,
        existing: &[Arc<EndpointSlice>],
    ) -> Vec<EventFields> {
        const DISABLED: &str = "TopologyAwareHintsDisabled";
        let mut all = self.shares.lock();
        if !is_requested {
            let removed = all.remove(key).into_iter().flat_map(BTreeMap::into_keys);
            let message = |family| format!("Topology Aware Hints has been disabled, addressType: {family}");
            return removed.map(|family| (EventType::Warning, DISABLED, message(family))).collect();
        }
        let zones = self.zones();
        let mut events = Vec::new();
        for family in families {
            let was_shared = all.contains_key(key);
            match topology::distribute(changes, family, existing, &zones) {
                Ok(shares) => {
                    all.entry(key.clone()).or_default().insert(family, shares);
                    if !was_shared {
                        let message = format!("Topology Aware Hints has been enabled, addressType: {family}");
                        events.push((EventType::Normal, "TopologyAwareHintsEnabled", message));
                    }
                }
                Err(problem) => {
                    if let Some(shares) = all.get_mut(key) {
                        shares.remove(family);
                    }
                    all.retain(|_, families| !families.is_empty());
                    events.push((EventType::Warning, DISABLED, problem));
                }
            }
        }
        events
    }
}

/// A node that is unknown may never appear: the backoff doubles with each attempt.
fn node_backoff(times: u32) -> Duration {
    const MAX_BACKOFF: Duration = Duration::from_secs(1000);
    Duration::from_secs(1 << times.min(10)).min(MAX_BACKOFF)
}

fn index_slices(slices: &Informer<EndpointSlice>) {
    slices.add_index(BY_SERVICE, |slice| {
        let labels = slice.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map_or("", String::as_str);
        vec![format!("{}/{}/{}", namespace(slice), label(SERVICE_NAME), label(MANAGED_BY))]
    });
}

fn slices_of(slices: &Informer<EndpointSlice>, key: &Key, manager: &str) -> Vec<Arc<EndpointSlice>> {
    let mut found = slices.by_index(BY_SERVICE, &format!("{key}/{manager}"));
    found.retain(|slice| slice.metadata.deletion_timestamp.is_none());
    found.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    found
}

/// Versions that were written and may not be in the cache yet.
#[derive(Default)]
struct Writes {
    expected: Expectations,
    versions: WrittenVersions,
}

impl Writes {
    /// Syncing with slices older than those written last would write them again.
    fn are_observed(&self, key: &Key, slices: &[Arc<EndpointSlice>]) -> Result<()> {
        let is_behind = |slice: &Arc<EndpointSlice>| self.versions.is_newer_than(&Key::of(&**slice), &slice.metadata);
        if self.expected.are_satisfied(key) && !slices.iter().any(is_behind) {
            return Ok(());
        }
        Err(Error::Later("the cache does not hold the slices written last".to_owned()))
    }
}

/// Records written slices as observed, and queues the service when another client changed one.
fn slice_changed(change: &Change<EndpointSlice>, manager: &str, written: &Writes, queue: &WorkQueue<Key>) {
    const FOREIGN_CHANGE_DELAY: Duration = Duration::from_secs(1);
    let slice = change.latest();
    let labels = slice.metadata.labels.as_ref();
    if labels.and_then(|labels| labels.get(MANAGED_BY)).map(String::as_str) != Some(manager) {
        return;
    }
    let Some(service) = labels.and_then(|labels| labels.get(SERVICE_NAME)) else { return };
    let key = Key::new(namespace(&**slice), service);
    match change {
        Change::Added(_) => written.expected.created(&key),
        Change::Deleted(slice) => {
            written.expected.deleted(&key, uid(&**slice));
            written.versions.forget(&Key::of(&**slice));
        }
        Change::Updated { .. } => {}
    }
    queue.add_after(key, FOREIGN_CHANGE_DELAY);
}

async fn carry_out(client: &Client, key: &Key, written: &Writes, changes: Changes) -> Result<()> {
    for slice in &changes.create {
        let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.namespace);
        written.expected.expect_creations(key, 1);
        if let Err(error) = api.create(&PostParams::default(), slice).await {
            written.expected.created(key);
            return if namespace_terminating(&error) { Ok(()) } else { Err(error.into()) };
        }
    }
    for slice in &changes.update {
        let now = replace(client, slice).await?;
        written.versions.note(&Key::of(&now), &now.metadata);
    }
    journey::published(key, &changes.create);
    journey::published(key, &changes.update);
    for slice in &changes.delete {
        written.expected.expect_deletions(key, [uid(&**slice).to_owned()]);
        if let Err(error) = delete(client, &**slice, None).await {
            written.expected.deleted(key, uid(&**slice));
            return Err(error);
        }
    }
    Ok(())
}
