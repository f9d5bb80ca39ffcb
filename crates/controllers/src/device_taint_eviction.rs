//! Deletes pods whose devices have `NoExecute` taints that they do not tolerate, or tolerate only for a while.
//!
//! Taints are on devices in ResourceSlices; tolerations are recorded in the claim when a device is allocated.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::events::{EventType, reference};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, node_fit, pod, time};
use parking_lot::Mutex;

use crate::Context;
use crate::common::Key;
use crate::common::disruption::mark_disrupted;
use crate::common::key::{namespace, uid};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::delete;
use crate::error::Result;

const EFFECT: &str = "NoExecute";
/// Index of slices by their pool, and of claims by the pools they have devices of.
const BY_POOL: &str = "pool";

pub async fn run(context: Context) {
    let pods = context.informers.of::<Pod>();
    let claims = context.informers.of::<ResourceClaim>();
    let slices = context.informers.of::<ResourceSlice>();
    slices.add_index(BY_POOL, |slice| vec![pool_of(&slice.spec.driver, &slice.spec.pool.name)]);
    claims.add_index(BY_POOL, |claim| {
        let pools: HashSet<String> = devices(claim).map(|device| pool_of(&device.driver, &device.pool)).collect();
        pools.into_iter().collect()
    });
    let recorder = context.recorder("device-taint-eviction-controller");
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let controller = Arc::new(Controller { context, pods, claims, slices, queue, marked: Mutex::default(), recorder });
    controller.watch();
    controller.pods.synced().await;
    controller.claims.synced().await;
    controller.slices.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-device-taint-eviction-syncs");
    run_controller(&controller, &controller.queue, workers).await;
}

struct Controller {
    context: Context,
    pods: Arc<Informer<Pod>>,
    claims: Arc<Informer<ResourceClaim>>,
    slices: Arc<Informer<ResourceSlice>>,
    queue: Arc<WorkQueue<Key>>,
    /// Uids of pods whose deletion is scheduled.
    marked: Mutex<HashSet<String>>,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(()) };
        let claims = claims_named(&pod).filter_map(|name| self.claims.get(&key.namespace, name));
        let claims: Vec<_> = claims.filter(|claim| is_used_by(claim, &pod)).collect();
        let is_placed = pod::node_name(&pod).is_some_and(|node| !node.is_empty());
        let end = claims.iter().filter_map(|claim| end_of(claim, |device| self.taints(device))).min();
        let Some(end) = end.filter(|_| is_placed && !pod::is_terminating(&pod)) else {
            if self.marked.lock().remove(uid(&*pod)) && !pod::is_terminating(&pod) {
                self.record_event(&pod, "Cancelling deletion");
            }
            return Ok(());
        };
        self.marked.lock().insert(uid(&*pod).to_owned());
        let now = self.context.clock.now();
        if end > now {
            self.queue.add_after(key, time::until(now, end));
            return Ok(());
        }
        self.record_event(&pod, "Marking for deletion");
        let message = "Device Taint manager: deleting due to NoExecute taint";
        mark_disrupted(&self.context.client, &pod, "DeletionByDeviceTaintManager", message, None, now).await?;
        delete(&self.context.client, &*pod, None).await?;
        self.marked.lock().remove(uid(&*pod));
        Ok(())
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let pod = change.latest();
            if matches!(change, Change::Deleted(_)) {
                controller.marked.lock().remove(uid(&**pod));
            } else if claims_named(pod).next().is_some() {
                controller.queue.add(Key::of(&**pod));
            }
        });
        let weak = Arc::downgrade(self);
        self.claims.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            change.previous().into_iter().chain([change.latest()]).for_each(|claim| controller.queue_users(claim));
        });
        let weak = Arc::downgrade(self);
        self.slices.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let spec = &change.latest().spec;
            for claim in controller.claims.by_index(BY_POOL, &pool_of(&spec.driver, &spec.pool.name)) {
                controller.queue_users(&claim);
            }
        });
    }

    fn queue_users(&self, claim: &ResourceClaim) {
        let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        for user in users.filter(|user| user.resource == "pods") {
            self.queue.add(Key::new(namespace(claim), user.name.clone()));
        }
    }

    /// The taints of an allocated device, from the newest generation of the pool.
    fn taints(&self, device: &DeviceRequestAllocationResult) -> Vec<DeviceTaint> {
        let slices = self.slices.by_index(BY_POOL, &pool_of(&device.driver, &device.pool));
        let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
        let current = slices.iter().filter(|slice| Some(slice.spec.pool.generation) == newest);
        let mut devices = current.flat_map(|slice| slice.spec.devices.iter().flatten());
        let found = devices.find(|published| published.name == device.device);
        found.and_then(|published| published.taints.clone()).unwrap_or_default()
    }

    fn record_event(&self, pod: &Pod, message: &str) {
        self.recorder.about(reference(pod), EventType::Normal, "DeviceTaintManagerEviction", message);
    }
}

fn pool_of(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

fn devices(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices.into_iter().flat_map(|devices| devices.results.iter().flatten())
}

/// The names of a pod's claims that exist.
fn claims_named(pod: &Pod) -> impl Iterator<Item = &str> {
    let desired = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    desired.filter_map(|desired| {
        let generated = || {
            let statuses = pod.status.as_ref()?.resource_claim_statuses.as_ref()?;
            statuses.iter().find(|status| status.name == desired.name)?.resource_claim_name.as_deref()
        };
        desired.resource_claim_name.as_deref().or_else(generated)
    })
}

fn is_used_by(claim: &ResourceClaim, pod: &Pod) -> bool {
    let mut users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    users.any(|user| user.uid == uid(pod))
}

/// When users of the claim must be evicted: the earliest time that any taint of its devices requires.
fn end_of(
    claim: &ResourceClaim,
    taints: impl Fn(&DeviceRequestAllocationResult) -> Vec<DeviceTaint>,
) -> Option<Timestamp> {
    let ends = devices(claim).flat_map(|device| {
        let tolerations = device.tolerations.as_deref().unwrap_or_default();
        taints(device).iter().filter_map(|taint| end_by(taint, tolerations)).collect::<Vec<_>>()
    });
    ends.min()
}

/// When the taint evicts users of a device; `None` when it does not evict or is tolerated for good.
fn end_by(taint: &DeviceTaint, tolerations: &[DeviceToleration]) -> Option<Timestamp> {
    if taint.effect != EFFECT {
        return None;
    }
    let since = taint.time_added.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
    let mut shortest: Option<i64> = None;
    for toleration in tolerations.iter().filter(|toleration| tolerates(toleration, taint)) {
        let seconds = toleration.toleration_seconds?.max(0);
        shortest = Some(shortest.map_or(seconds, |known| known.min(seconds)));
    }
    let stay = SignedDuration::from_secs(shortest.unwrap_or(0));
    Some(since.saturating_add(stay).unwrap_or(Timestamp::MAX))
}

/// Only tolerations of this very effect keep a pod.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    toleration.effect.as_deref() == Some(EFFECT) && node_fit::tolerates_device(toleration, taint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn devices_are_used_as_long_as_their_taints_are_tolerated() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let taint = |effect: &str| {
            let since = at(100).to_string();
            serde_json::from_value::<DeviceTaint>(
                json!({"key": "k", "value": "v", "effect": effect, "timeAdded": since}),
            )
            .unwrap()
        };
        let toleration = |more: Value| {
            let mut toleration = json!({"key": "k", "effect": "NoExecute"});
            toleration.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            toleration
        };
        let exists = |seconds: Value| toleration(json!({"operator": "Exists", "tolerationSeconds": seconds}));
        for (effect, tolerations, end) in [
            ("NoSchedule", json!([]), None),
            ("NoExecute", json!([]), Some(100)),
            ("NoExecute", json!([exists(Value::Null)]), None),
            ("NoExecute", json!([exists(json!(30))]), Some(130)),
            ("NoExecute", json!([exists(json!(30)), exists(json!(5))]), Some(105)),
            ("NoExecute", json!([exists(json!(-1))]), Some(100)),
            ("NoExecute", json!([toleration(json!({"value": "other"}))]), Some(100)),
            ("NoExecute", json!([toleration(json!({"value": "v"}))]), None),
            ("NoExecute", json!([{"operator": "Exists", "effect": "NoSchedule"}]), Some(100)),
        ] {
            let tolerations: Vec<DeviceToleration> = serde_json::from_value(tolerations).unwrap();
            assert_eq!(end_by(&taint(effect), &tolerations), end.map(at), "{effect} {tolerations:?}");
        }
    }

    #[test]
    fn the_first_taint_to_run_out_counts() {
        let device = |name: &str| json!({"request": "r", "driver": "d", "pool": "p", "device": name});
        let claim: ResourceClaim = serde_json::from_value(json!({
            "spec": {}, "status": {"allocation": {"devices": {"results": [device("a"), device("b")]}}}
        }))
        .unwrap();
        let tainted = |device: &DeviceRequestAllocationResult| -> Vec<DeviceTaint> {
            let since = if device.device == "a" { "2026-01-02T00:00:00Z" } else { "2026-01-01T00:00:00Z" };
            serde_json::from_value(json!([{"key": "k", "effect": "NoExecute", "timeAdded": since}])).unwrap()
        };
        assert_eq!(end_of(&claim, tainted), Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(end_of(&claim, |_| Vec::new()), None);
    }

    #[test]
    fn claims_are_found_by_name_or_by_generated_name() {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [], "resourceClaims": [
                {"name": "own", "resourceClaimName": "c"}, {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "later", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}]}
        }))
        .unwrap();
        assert_eq!(claims_named(&pod).collect::<Vec<_>>(), ["c", "p-made-x"]);
    }
}
