//! Computes the usage of resource quotas.
//!
//! The API server raises the usage when it admits objects; this controller recalculates it when a quota is created or changed,
//! when counted objects are deleted, and periodically. [`usage`] defines what objects count for.

mod usage;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_client::pod_resources::{Amounts, ResourceList as Resources};
use knarr_client::quantity::{self, Quantity};
use knarr_client::{Change, Informer, WorkQueue, pod};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Context;
use crate::common::Key;
use crate::common::discovery::{Kind, KnownKinds};
use crate::common::key::namespace;
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::replace_status;
use crate::error::{Error, Result, ignore_not_found};

/// Deletions come in bursts.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// A kind that was not listed in this time probably cannot be.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn run(context: Context) {
    let quotas = context.informers.of::<ResourceQuota>();
    let pods = context.informers.of::<Pod>();
    let services = context.informers.of::<Service>();
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let controller = Arc::new(Controller {
        context,
        quotas,
        pods,
        services,
        claims,
        queue: WorkQueue::new(),
        watched: Mutex::default(),
        kinds: KnownKinds::default(),
    });
    controller.watch();
    controller.quotas.synced().await;
    controller.pods.synced().await;
    controller.services.synced().await;
    controller.claims.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-resource-quota-syncs");
    run_controller(&controller, &controller.queue, workers).await;
}

struct Controller {
    context: Context,
    quotas: Arc<Informer<ResourceQuota>>,
    pods: Arc<Informer<Pod>>,
    services: Arc<Informer<Service>>,
    claims: Arc<Informer<PersistentVolumeClaim>>,
    queue: Arc<WorkQueue<Key>>,
    /// Resources that some quota counts, and since when their deletions are watched.
    watched: Mutex<HashMap<String, Instant>>,
    kinds: KnownKinds,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let Some(quota) = self.quotas.get(&key.namespace, &key.name) else { return Ok(()) };
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
        let mut used = self.typed_usage(&quota);
        let (mut failure, mut unknown) = (None, Vec::new());
        for resource in hard.keys() {
            match self.counted(&key.namespace, resource).await {
                Ok(Some(count)) => {
                    used.insert(resource.clone(), Quantity::new(count as i64, Default::default()));
                }
                Ok(None) => {}
                Err(error) if self.is_starting(resource) => return Err(error),
                // A resource that cannot be counted does not delay the others.
                Err(error) => {
                    unknown.push(resource.clone());
                    failure = Some(error);
                }
            }
        }
        let mut used = masked(&hard, &used);
        for resource in unknown {
            // Admission allows nothing of a resource whose use was never counted.
            match quota.status.as_ref().and_then(|status| status.used.as_ref()?.get(&resource)) {
                Some(last) => used.insert(resource, last.clone()),
                None => used.remove(&resource),
            };
        }
        let status = ResourceQuotaStatus { used: Some(used), hard: Some(hard) };
        if !is_same(quota.status.as_ref(), &status) {
            let changed = ResourceQuota { status: Some(status), ..(*quota).clone() };
            ignore_not_found(replace_status(&self.context.client, &changed).await)?;
        }
        self.queue.add_after(key, self.context.settings.resource_quota_sync_period);
        failure.map_or(Ok(()), Err)
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let queue = self.queue.clone();
        self.quotas.on_change(move |change| {
            // A changed status is written by this controller or the API server.
            let same = change.previous().is_some_and(|old| old.spec == change.latest().spec);
            if !same {
                queue.add(Key::of(&**change.latest()));
            }
        });
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            let freed = match change {
                Change::Deleted(_) => true,
                Change::Updated { old, new } => pod::is_terminal(new) && !pod::is_terminal(old),
                Change::Added(_) => false,
            };
            if let (true, Some(controller)) = (freed, weak.upgrade()) {
                controller.recount(namespace(&**change.latest()));
            }
        });
        let weak = Arc::downgrade(self);
        self.services.on_change(move |change| {
            let changed = change.previous().is_some_and(|old| old.spec != change.latest().spec);
            if let (true, Some(controller)) = (changed || matches!(change, Change::Deleted(_)), weak.upgrade()) {
                controller.recount(namespace(&**change.latest()));
            }
        });
        let weak = Arc::downgrade(self);
        self.claims.on_change(move |change| {
            // The status contains the volume attributes class, which is a scope.
            let latest = change.latest();
            let changed = change.previous().is_some_and(|old| old.spec != latest.spec || old.status != latest.status);
            if let (true, Some(controller)) = (changed || matches!(change, Change::Deleted(_)), weak.upgrade()) {
                controller.recount(namespace(&**change.latest()));
            }
        });
    }

    fn recount(&self, namespace: &str) {
        for quota in self.quotas.in_namespace(namespace) {
            self.queue.add_after(Key::of(&*quota), BATCH_DELAY);
        }
    }

    /// Usage by pods, services and claims.
    fn typed_usage(&self, quota: &ResourceQuota) -> Resources {
        let now = self.context.clock.now();
        let mut used = Resources::new();
        let at = namespace(quota);
        for pod in self.pods.in_namespace(at) {
            if usage::covers_pod(quota, &pod) {
                used.add(&usage::of_pod(&pod, now));
            }
        }
        for claim in self.claims.in_namespace(at) {
            if usage::covers_claim(quota, &claim) {
                used.add(&usage::of_claim(&claim));
            }
        }
        if usage::has_scopes(quota) {
            return used;
        }
        for service in self.services.in_namespace(at) {
            used.add(&usage::of_service(&service));
        }
        used
    }

    /// Whether the objects that a resource name counts have just been requested: they are probably known in a moment.
    fn is_starting(&self, resource: &str) -> bool {
        let Some(name) = usage::counted_kind(resource) else { return false };
        self.watched.lock().get(&name).is_some_and(|since| since.elapsed() < LIST_TIMEOUT)
    }

    /// The number of objects that a `count/` resource name counts, unless they are counted otherwise.
    async fn counted(self: &Arc<Self>, namespace: &str, resource: &str) -> Result<Option<usize>> {
        let Some(name) = usage::counted_kind(resource) else { return Ok(None) };
        if name == "resourcequotas" {
            // Counted where the quota itself was observed: another informer may not know it yet.
            return Ok(Some(self.quotas.in_namespace(namespace).len()));
        }
        let is_meant = |kind: &Kind| kind.namespaced && kind.full_name() == name;
        let Some(kind) = self.kinds.find(&self.context.client, is_meant).await? else { return Ok(None) };
        let informer = self.context.informers.metadata(&kind.resource);
        let is_new = {
            let mut watched = self.watched.lock();
            let known = watched.len();
            watched.entry(name).or_insert_with(Instant::now);
            watched.len() > known
        };
        if is_new {
            let weak = Arc::downgrade(self);
            informer.on_change(move |change| {
                // An object older than the quota may be observed only after the quota was counted.
                if let (Change::Deleted(object) | Change::Added(object), Some(controller)) = (change, weak.upgrade()) {
                    controller.recount(object.metadata.namespace.as_deref().unwrap_or(""));
                }
            });
        }
        if !informer.is_synced() {
            return Err(Error::Later(format!("{resource} is not yet known")));
        }
        Ok(Some(informer.in_namespace(namespace).len()))
    }
}

/// Only limited resources are reported, with zero where there is no usage; unknown ones are left out.
fn masked(hard: &BTreeMap<String, ApiQuantity>, used: &Resources) -> BTreeMap<String, ApiQuantity> {
    let counted = hard.keys().filter(|name| !usage::is_never_counted(name));
    counted.map(|name| (name.clone(), quantity::to_api(used.get(name).unwrap_or(&Quantity::ZERO)))).collect()
}

fn is_same(old: Option<&ResourceQuotaStatus>, new: &ResourceQuotaStatus) -> bool {
    let amounts = |list: Option<&BTreeMap<String, ApiQuantity>>| -> Option<Vec<(String, Quantity)>> {
        list.map(|list| list.iter().map(|(name, value)| (name.clone(), quantity::of(value))).collect())
    };
    old.is_some_and(|old| {
        amounts(old.hard.as_ref()) == amounts(new.hard.as_ref())
            && amounts(old.used.as_ref()) == amounts(new.used.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limited_resources_are_reported() {
        let api = |text: &str| ApiQuantity(text.into());
        let hard = BTreeMap::from([
            ("pods".to_owned(), api("5")),
            ("requests.cpu".to_owned(), api("2")),
            ("count/events".to_owned(), api("9")),
        ]);
        let used = Resources::from([
            ("pods".to_owned(), Quantity::parse("2").unwrap()),
            ("memory".to_owned(), Quantity::parse("1Gi").unwrap()),
        ]);
        let reported = masked(&hard, &used);
        assert_eq!(reported, BTreeMap::from([("pods".to_owned(), api("2")), ("requests.cpu".to_owned(), api("0"))]));
        let status = ResourceQuotaStatus { hard: Some(hard.clone()), used: Some(reported) };
        let other = ResourceQuotaStatus {
            used: Some([("pods".to_owned(), api("2000m")), ("requests.cpu".to_owned(), api("0"))].into()),
            hard: Some(hard),
        };
        assert!(is_same(Some(&other), &status), "the same amount in other words");
        assert!(!is_same(None, &status));
    }
}
