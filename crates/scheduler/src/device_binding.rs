//! Writes allocations and reservations into a pod's claims before it is bound, waits for its devices, and undoes that
//! when the pod cannot be bound.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_client::api_error::{is_not_found, message};
use knarr_client::{Informer, Informers};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::claims::{
    BindingState, Cycle, DevicePlan, allocation, binding_state, has_conditions, is_overdue, is_reserved_for,
};
use crate::cluster::pod::PodState;
use crate::cluster::storage::object_key;

const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// A write that conflicts with others is repeated this often.
const MAX_CONFLICTS: usize = 5;
const CONFLICT_DELAY: Duration = Duration::from_millis(10);
/// The scheduler waits no longer for a claim to be deallocated.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("claim {0} got deleted in the meantime")]
    Deleted(String),
    #[error("claim {0} got allocated elsewhere in the meantime")]
    Allocated(String),
    #[error("claim {0} got deallocated elsewhere in the meantime")]
    Deallocated(String),
    #[error("{step} claim {claim}: {}", message(.error))]
    Write { step: &'static str, claim: String, error: kube::Error },
    #[error("update pod {pod} ExtendedResourceClaimStatus: {}", message(.error))]
    PodStatus { pod: String, error: kube::Error },
    #[error("{0}")]
    Failed(String),
    #[error("device binding timeout: {0}")]
    TooLong(String),
}

/// Where claims are read while a pod waits for its devices.
#[derive(Clone)]
pub struct ClaimInformer {
    claims: Arc<Informer<ResourceClaim>>,
    changes: watch::Receiver<()>,
}

impl ClaimInformer {
    pub fn new(informers: &Informers) -> Self {
        let (sender, changes) = watch::channel(());
        let claims: Arc<Informer<ResourceClaim>> = informers.of();
        claims.on_change(move |_| {
            sender.send_replace(());
        });
        ClaimInformer { claims, changes }
    }
}

/// How claims are written.
#[derive(Clone)]
pub struct Write {
    pub client: Client,
    pub now: fn() -> Timestamp,
}

/// The claims of one pod that is being bound.
pub struct DeviceBinding {
    pub write: Write,
    pub watched: ClaimInformer,
    pub plan: DevicePlan,
    pub timeout: Duration,
    pub on_written: Box<dyn Fn(&ResourceClaim) + Send + Sync>,
    pub on_waiting: Box<dyn Fn() + Send + Sync>,
    /// The claims that are reserved for the pod.
    pub reserved: Vec<ResourceClaim>,
    /// The claim that was created for its extended resources.
    pub created: Option<ResourceClaim>,
}

impl DeviceBinding {
    /// Allocates and reserves all claims, and waits until their devices can be used.
    pub async fn bind(&mut self, pod: &PodState) -> Result<(), DeviceError> {
        for plan in self.plan.claims.clone() {
            if is_reserved_for(&plan.claim, pod.uid()) {
                self.reserved.push((*plan.claim).clone());
                continue;
            }
            let written = self.write.reserve((*plan.claim).clone(), plan.allocation.as_ref(), pod).await?;
            (self.on_written)(&written);
            self.reserved.push(written);
        }
        if let Some(plan) = self.plan.extended.clone() {
            let claims: Api<ResourceClaim> = Api::namespaced(self.write.client.clone(), pod.namespace());
            let created = claims.create(&PostParams::default(), &plan.claim).await;
            let created = created.map_err(|error| DeviceError::Write {
                step: "create",
                claim: format!("for extended resources {}/", pod.namespace()),
                error,
            })?;
            self.created = Some(created.clone());
            let written = self.write.reserve(created, Some(&plan.allocation), pod).await?;
            (self.on_written)(&written);
            let name = written.metadata.name.clone().unwrap_or_default();
            self.created = Some(written);
            let status = json!({"resourceClaimName": name, "requestMappings": plan.mappings});
            let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"extendedResourceClaimStatus": status}});
            let pods: Api<Pod> = Api::namespaced(self.write.client.clone(), pod.namespace());
            let patched = pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await;
            patched.map_err(|error| DeviceError::PodStatus { pod: pod.key.to_string(), error })?;
        }
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> Result<(), DeviceError> {
        let claims: Vec<&ResourceClaim> = self.reserved.iter().chain(&self.created).collect();
        if !claims.iter().any(|claim| has_conditions(claim)) {
            return Ok(());
        }
        (self.on_waiting)();
        let deadline = Instant::now() + self.timeout;
        let mut changes = self.watched.changes.clone();
        loop {
            changes.mark_unchanged();
            let mut is_ready = true;
            for claim in &claims {
                let now = self.current(claim);
                match binding_state(&now) {
                    BindingState::Ready => {}
                    BindingState::Failed(why) => return Err(DeviceError::Failed(why)),
                    BindingState::Waiting if is_overdue(&now, self.timeout, (self.write.now)()) => {
                        let name = now.metadata.name.as_deref().unwrap_or_default();
                        return Err(DeviceError::TooLong(format!("claim={name}")));
                    }
                    BindingState::Waiting => is_ready = false,
                }
            }
            if is_ready {
                return Ok(());
            }
            match tokio::time::timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(DeviceError::Failed("the informer has closed".to_owned())),
                Err(_) => return Err(DeviceError::TooLong("context deadline exceeded".to_owned())),
            }
        }
    }

    /// The claim as it is now; as it was written, while the informer does not have that yet.
    fn current(&self, claim: &ResourceClaim) -> Arc<ResourceClaim> {
        let (namespace, name) = (&claim.metadata.namespace, &claim.metadata.name);
        let found =
            self.watched.claims.get(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        let found = found.filter(|found| found.metadata.uid == claim.metadata.uid && allocation(found).is_some());
        found.unwrap_or_else(|| Arc::new(claim.clone()))
    }

    /// Releases the claims of a pod that could not be bound. They stay allocated for its next attempt, except the one
    /// that was created for it.
    pub async fn undo(&mut self, pod: &PodState) {
        for claim in &self.reserved {
            let claims: Api<ResourceClaim> = Api::namespaced(self.write.client.clone(), pod.namespace());
            let user = json!({"$patch": "delete", "uid": pod.uid()});
            let patch = json!({"metadata": {"uid": claim.metadata.uid}, "status": {"reservedFor": [user]}});
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            if let Err(error) = claims.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await
                && !is_not_found(&error)
            {
                // The claim's controller removes pods that do not run.
                tracing::warn!(pod = &*pod.key, claim = name, %error, "cannot release a resource claim");
            }
        }
        if let Some(claim) = &self.created
            && let Err(error) = delete_claim(self.write.client.clone(), claim).await
            && !is_not_found(&error)
        {
            tracing::warn!(pod = &*pod.key, %error, "cannot delete the claim of extended resources");
        }
    }
}

impl Write {
    /// Reserves a claim for a pod, after writing its allocation if there is one.
    async fn reserve(
        &self,
        mut claim: ResourceClaim,
        new: Option<&AllocationResult>,
        pod: &PodState,
    ) -> Result<ResourceClaim, DeviceError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), pod.namespace());
        let key = object_key(&claim.metadata);
        let failed = |step: &'static str| {
            let claim = key.clone();
            move |error| DeviceError::Write { step, claim, error }
        };
        let mut conflicts = 0;
        loop {
            let step = if new.is_some() { "add allocation and reservation to" } else { "add reservation to" };
            match self.try_reserve(&claims, claim, new, pod).await {
                Ok(written) => return Ok(written),
                Err(TryError::Obstacle(error)) => return Err(error),
                Err(TryError::Api(step_of, error)) if conflicts < MAX_CONFLICTS && is_conflict(&error) => {
                    tracing::debug!(claim = key, step_of, "a resource claim was changed by another writer");
                    conflicts += 1;
                    tokio::time::sleep(CONFLICT_DELAY).await;
                    let name = key.split_once('/').map_or("", |(_, name)| name);
                    claim = claims.get(name).await.map_err(failed("get updated"))?;
                }
                Err(TryError::Api(step_of, error)) => {
                    return Err(failed(if step_of == "status" { step } else { "add finalizer to" })(error));
                }
            }
        }
    }

    async fn try_reserve(
        &self,
        claims: &Api<ResourceClaim>,
        mut claim: ResourceClaim,
        new: Option<&AllocationResult>,
        pod: &PodState,
    ) -> Result<ResourceClaim, TryError> {
        let key = object_key(&claim.metadata);
        let name = claim.metadata.name.clone().unwrap_or_default();
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(TryError::Obstacle(DeviceError::Deleted(key)));
        }
        if let Some(new) = new {
            if allocation(&claim).is_some() {
                return Err(TryError::Obstacle(DeviceError::Allocated(key)));
            }
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|own| own == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
                let replaced = claims.replace(&name, &PostParams::default(), &claim).await;
                claim = replaced.map_err(|error| TryError::Api("finalizer", error))?;
            }
            claim.status.get_or_insert_default().allocation = Some(new.clone());
        }
        let status = claim.status.get_or_insert_default();
        let Some(allocation) = &mut status.allocation else {
            return Err(TryError::Obstacle(DeviceError::Deallocated(key)));
        };
        allocation.allocation_timestamp.get_or_insert_with(|| Time(whole_seconds((self.now)())));
        status.reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
        });
        let replaced = claims.replace_status(&name, &PostParams::default(), &claim).await;
        replaced.map_err(|error| TryError::Api("status", error))
    }
}

enum TryError {
    Obstacle(DeviceError),
    /// The step that failed.
    Api(&'static str, kube::Error),
}

/// The API's times have no fractions.
fn whole_seconds(time: Timestamp) -> Timestamp {
    time - SignedDuration::new(0, time.subsec_nanosecond())
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Deallocates one of the claims that keep a pod from fitting, or deletes the claim that an earlier attempt has left.
/// Returns what that came to.
pub async fn free_claims(client: Client, cycle: &Cycle) -> String {
    let freed = async {
        if let Some(claim) = cycle.to_deallocate() {
            let mut claim = (**claim).clone();
            if let Some(status) = &mut claim.status {
                (status.allocation, status.reserved_for, status.devices) = (None, None, None);
            }
            let namespace = claim.metadata.namespace.clone().unwrap_or_default();
            let name = claim.metadata.name.clone().unwrap_or_default();
            let claims: Api<ResourceClaim> = Api::namespaced(client, &namespace);
            claims.replace_status(&name, &PostParams::default(), &claim).await?;
            return Ok("deallocation of ResourceClaim completed");
        }
        if let Some(claim) = cycle.extended.as_ref().and_then(|extended| extended.left_over.as_ref()) {
            delete_claim(client, claim).await?;
            return Ok("deletion of ResourceClaim completed");
        }
        Ok::<_, kube::Error>("still not schedulable")
    };
    match tokio::time::timeout(FREE_TIMEOUT, freed).await {
        Ok(Ok(text)) => text.to_owned(),
        Ok(Err(error)) => message(&error),
        Err(_) => "context deadline exceeded".to_owned(),
    }
}

/// Deletes a claim that no pod uses.
async fn delete_claim(client: Client, claim: &ResourceClaim) -> Result<(), kube::Error> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<ResourceClaim> = Api::namespaced(client, namespace);
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let mut current = claim.clone();
    for attempt in 0.. {
        if let Some(finalizers) = &mut current.metadata.finalizers {
            finalizers.retain(|own| own != FINALIZER);
        }
        match claims.replace(name, &PostParams::default(), &current).await {
            Err(error) if is_conflict(&error) && attempt < MAX_CONFLICTS => current = claims.get(name).await?,
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    claims.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
