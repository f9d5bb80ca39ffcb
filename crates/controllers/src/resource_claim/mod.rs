//! Creates the resource claims that pods request by template, and releases claims whose pods have finished.
//!
//! [`plan`] computes what a claim needs; this module watches pods and claims and carries it out. Devices are allocated by the
//! scheduler; claims of pods that were created with a node name, which bypass it, are reserved here.

mod plan;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, owner, pod, run_workers};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace, uid};
use crate::common::pods::BY_CONTROLLER;
use crate::common::requests::{replace, replace_status};
use crate::error::{Error, Result, ignore_not_found, message};

use plan::{ClaimReference, named};

/// Field manager of the pod status that names generated claims.
const FIELD_MANAGER: &str = "ResourceClaimController";
const BY_TEMPLATE: &str = "resource-claim-template";
const BY_RESOURCE_CLAIM: &str = "resource-claim";

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Item {
    Pod(Key),
    Claim(Key),
}

pub async fn run(context: Context) {
    let pods = context.informers.of::<Pod>();
    let claims = context.informers.of::<ResourceClaim>();
    let templates = context.informers.of::<ResourceClaimTemplate>();
    claims.add_index(BY_CONTROLLER, |claim| {
        owner::controller_uid(&claim.metadata).map(str::to_owned).into_iter().collect()
    });
    pods.add_index(BY_TEMPLATE, |pod| {
        let named = plan::claims_of(pod).filter_map(|claim| claim.resource_claim_template_name.as_ref());
        named.map(|template| format!("{}/{template}", namespace(pod))).collect()
    });
    pods.add_index(BY_RESOURCE_CLAIM, |pod| {
        let named = plan::claims_of(pod).filter_map(|claim| match named(pod, claim) {
            ClaimReference::As(name) => Some(format!("{}/{name}", namespace(pod))),
            _ => None,
        });
        named.collect()
    });
    let recorder = context.recorder("resource_claim");
    let queue = WorkQueue::new();
    let unseen = Arc::default();
    let controller = Arc::new(Controller { context, pods, claims, templates, unseen, queue, recorder });
    controller.watch();
    controller.pods.synced().await;
    controller.claims.synced().await;
    controller.templates.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-resourceclaim-syncs");
    run_workers(controller.queue.clone(), workers, move |item| {
        let controller = controller.clone();
        async move {
            match item {
                Item::Pod(key) => controller.reconcile_pod(key).await,
                Item::Claim(key) => controller.reconcile_claim(key).await,
            }
        }
    })
    .await;
}

struct Controller {
    context: Context,
    pods: Arc<Informer<Pod>>,
    claims: Arc<Informer<ResourceClaim>>,
    templates: Arc<Informer<ResourceClaimTemplate>>,
    unseen: Arc<Unseen>,
    queue: Arc<WorkQueue<Item>>,
    recorder: EventRecorder,
}

/// Claims that were created for an entry of a pod and that the cache does not show yet: the pod's own changes may be observed
/// before, and would otherwise create another claim.
#[derive(Default)]
struct Unseen(Mutex<HashMap<(String, String), String>>);

impl Unseen {
    fn created(&self, pod: &Pod, entry: &str, claim: &str) {
        self.0.lock().insert((uid(pod).to_owned(), entry.to_owned()), claim.to_owned());
    }

    fn get(&self, pod: &Pod, entry: &str) -> Option<String> {
        self.0.lock().get(&(uid(pod).to_owned(), entry.to_owned())).cloned()
    }

    fn seen(&self, claim: &ResourceClaim) {
        let entry = plan::entry_of(claim).zip(owner::controller_uid(&claim.metadata));
        if let Some((entry, pod)) = entry {
            self.0.lock().remove(&(pod.to_owned(), entry.to_owned()));
        }
    }

    fn forget(&self, pod: &Pod) {
        if plan::claims_of(pod).next().is_some() {
            self.0.lock().retain(|(known, _), _| known != uid(pod));
        }
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let (queue, unseen) = (self.queue.clone(), self.unseen.clone());
        self.pods.on_change(move |change| {
            let pod = change.latest();
            let gone = matches!(change, Change::Deleted(_));
            if gone {
                unseen.forget(pod);
            }
            if gone || plan::is_done(pod) {
                for claim in plan::claims_of(pod) {
                    if let ClaimReference::As(claim) = named(pod, claim) {
                        queue.add(Item::Claim(Key::new(namespace(&**pod), claim)));
                    }
                }
            }
            if !gone && !pod::is_terminating(pod) && plan::claims_of(pod).next().is_some() {
                queue.add(Item::Pod(Key::of(&**pod)));
            }
        });
        let (queue, pods, unseen) = (self.queue.clone(), Arc::downgrade(&self.pods), self.unseen.clone());
        self.claims.on_change(move |change| {
            let key = Key::of(&**change.latest());
            unseen.seen(change.latest());
            if let Some(pods) = pods.upgrade() {
                let users = pods.by_index(BY_RESOURCE_CLAIM, &key.to_string());
                users.iter().for_each(|pod| queue.add(Item::Pod(Key::of(&**pod))));
            }
            if !matches!(change, Change::Deleted(_)) {
                queue.add(Item::Claim(key));
            }
        });
        let (queue, pods) = (self.queue.clone(), Arc::downgrade(&self.pods));
        self.templates.on_change(move |change| {
            if let Some(pods) = pods.upgrade() {
                let waiting = pods.by_index(BY_TEMPLATE, &Key::of(&**change.latest()).to_string());
                waiting.iter().for_each(|pod| queue.add(Item::Pod(Key::of(&**pod))));
            }
        });
    }

    async fn reconcile_pod(&self, key: Key) -> Result<()> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(()) };
        if pod::is_terminating(&pod) {
            return Ok(());
        }
        let (mut made, mut is_new) = (BTreeMap::new(), false);
        for desired in plan::claims_of(&pod) {
            match self.claim_for(&pod, desired).await {
                Ok(Some(claim)) => {
                    made.insert(desired.name.clone(), claim);
                    is_new = true;
                }
                // Names that are left out of what is applied would be removed.
                Ok(None) => {
                    if let (ClaimReference::As(claim), Some(_)) =
                        (named(&pod, desired), &desired.resource_claim_template_name)
                    {
                        made.insert(desired.name.clone(), claim.to_owned());
                    }
                }
                Err(error) => {
                    let text = format!("PodResourceClaim {}: {error}", desired.name);
                    self.recorder.warning(&*pod, "FailedResourceClaimCreation", text);
                    return Err(error);
                }
            }
        }
        if is_new {
            self.write_claim_names(&pod, &made).await?;
        }
        if pod::node_name(&pod).is_none() {
            // The scheduler reserves the claim when it places the pod.
            return Ok(());
        }
        for desired in plan::claims_of(&pod) {
            let ClaimReference::As(claim) = named(&pod, desired) else { continue };
            let Some(claim) = self.claims.get(&key.namespace, claim) else { continue };
            if plan::may_be_reserved(&claim, &pod) {
                self.reserve(&claim, &pod).await?;
            }
        }
        Ok(())
    }

    /// The name of the claim created for the pod's entry, unless the pod has it already or none is needed.
    async fn claim_for(&self, pod: &Pod, desired: &PodResourceClaim) -> Result<Option<String>> {
        if let Some(claim) = self.unseen.get(pod, &desired.name) {
            let is_named = matches!(named(pod, desired), ClaimReference::As(named) if named == claim);
            return Ok((!is_named).then_some(claim));
        }
        match named(pod, desired) {
            ClaimReference::NotNeeded => return Ok(None),
            ClaimReference::As(claim) => {
                let present = self.claims.get(namespace(pod), claim);
                let is_made = desired.resource_claim_template_name.is_some();
                let suits = |claim: &ResourceClaim| !is_made || owner::is_controlled_by(&claim.metadata, &pod.metadata);
                if present.is_some_and(|claim| suits(&claim)) {
                    return Ok(None);
                }
            }
            ClaimReference::NotYet => {}
        }
        let Some(template) = &desired.resource_claim_template_name else { return Ok(None) };
        let owned = self.claims.by_index(BY_CONTROLLER, uid(pod));
        if let Some(present) = owned.iter().find(|claim| plan::is_for_entry(claim, &desired.name)) {
            return Ok(Some(name(&**present).to_owned()));
        }
        let Some(found) = self.templates.get(namespace(pod), template) else {
            let text = format!("resourceclaimtemplate.resource.k8s.io \"{template}\" not found");
            return Err(Error::Later(format!("resource claim template \"{template}\": {text}")));
        };
        let api: Api<ResourceClaim> = Api::namespaced(self.context.client.clone(), namespace(pod));
        let claim = plan::new_claim(pod, desired, &found);
        let created = api.create(&PostParams::default(), &claim).await;
        let created = created.map_err(|error| Error::Later(format!("create ResourceClaim : {}", message(&error))))?;
        self.unseen.created(pod, &desired.name, name(&created));
        // The watch may have been faster.
        if let Some(seen) = self.claims.get(namespace(pod), name(&created)) {
            self.unseen.seen(&seen);
        }
        Ok(Some(name(&created).to_owned()))
    }

    async fn write_claim_names(&self, pod: &Pod, made: &BTreeMap<String, String>) -> Result<()> {
        let statuses: Vec<_> =
            made.iter().map(|(entry, claim)| json!({"name": entry, "resourceClaimName": claim})).collect();
        let patch = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(pod), "namespace": namespace(pod)},
            "status": {"resourceClaimStatuses": statuses}});
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(pod));
        let params = PatchParams::apply(FIELD_MANAGER).force();
        ignore_not_found(api.patch_subresource("status", name(pod), &params, &Patch::Apply(patch)).await)?;
        Ok(())
    }

    async fn reserve(&self, claim: &ResourceClaim, pod: &Pod) -> Result<()> {
        let mut changed = claim.clone();
        changed.status.get_or_insert_default().reserved_for.get_or_insert_default().push(
            ResourceClaimConsumerReference {
                api_group: None,
                resource: "pods".to_owned(),
                name: name(pod).to_owned(),
                uid: uid(pod).to_owned(),
            },
        );
        replace_status(&self.context.client, &changed).await?;
        Ok(())
    }

    async fn reconcile_claim(&self, key: Key) -> Result<()> {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(()) };
        let mut remaining = Vec::new();
        for consumer in plan::consumers(&claim) {
            if self.still_uses(&key.namespace, consumer).await? {
                remaining.push(consumer.clone());
            }
        }
        let mut current = (*claim).clone();
        if let Some(freed) = plan::without_consumers(&current, &remaining) {
            current = replace_status(&self.context.client, &freed).await?;
        }
        if let Some(unmarked) = plan::without_finalizer(&current, &remaining) {
            current = replace(&self.context.client, &unmarked).await?;
        }
        if !remaining.is_empty() || current.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let Some(reference) = owner::controller_of(&claim.metadata).filter(|owner| owner.kind == "Pod") else {
            return Ok(());
        };
        // A claim of an unknown pod is left to the garbage collector.
        let owner = self.pods.get(&key.namespace, &reference.name);
        if owner.is_some_and(|pod| uid(&*pod) != reference.uid || plan::is_done(&pod)) {
            let api: Api<ResourceClaim> = Api::namespaced(self.context.client.clone(), &key.namespace);
            ignore_not_found(api.delete(&key.name, &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    /// Pods that are gone or finished use nothing; other consumers are unknown, so they stay.
    async fn still_uses(&self, namespace: &str, consumer: &ResourceClaimConsumerReference) -> Result<bool> {
        if consumer.resource != "pods" || consumer.api_group.as_deref().is_some_and(|group| !group.is_empty()) {
            return Ok(true);
        }
        if let Some(pod) = self.pods.get(namespace, &consumer.name) {
            return Ok(uid(&*pod) == consumer.uid && !plan::is_done(&pod));
        }
        // The cache may not hold a pod that is just being scheduled.
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        Ok(api.get_opt(&consumer.name).await?.is_some_and(|pod| uid(&pod) == consumer.uid))
    }
}
