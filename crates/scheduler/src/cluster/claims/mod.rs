//! Resource claims, the classes and devices they refer to, and allocations that the API does not show yet.

mod conditions;
mod cycle;
pub mod extended;

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};

use super::storage::object_key;
use crate::devices::{Allocator, Budget, InUse, Inventory, Selectors};

pub use conditions::{BindingState, binding_state, has_conditions, is_overdue};
pub use cycle::{ClaimPlan, Cycle, DevicePlan, ExtendedPlan, NodeAllocation};

/// Extended resources with this prefix name a device class.
const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

#[derive(Default)]
pub struct ResourceClaims {
    claims: HashMap<String, Arc<ResourceClaim>>,
    classes: HashMap<String, Arc<DeviceClass>>,
    /// Classes by the extended resource whose requests they satisfy.
    by_resource: HashMap<String, Arc<DeviceClass>>,
    /// Claims for the extended resources of pods, by the pod's UID.
    extended: HashMap<String, String>,
    pub inventory: Inventory,
    in_use: InUse,
    /// Decided allocations that are being written, by the claim's UID.
    pending: HashMap<String, Pending>,
    selectors: Selectors,
    /// How much time searches for devices may take.
    pub budget: Budget,
    /// What the current decision found out about its pod's claims.
    pub cycle: Option<Arc<Cycle>>,
    /// The time of the current decision.
    pub now: Timestamp,
}

struct Pending {
    pod: String,
    allocation: AllocationResult,
}

impl ResourceClaims {
    pub fn set(&mut self, old: Option<&Arc<ResourceClaim>>, new: Option<&Arc<ResourceClaim>>) {
        match (old, new) {
            (_, Some(new)) => self.store(Arc::clone(new)),
            (Some(old), None) => self.remove(&object_key(&old.metadata)),
            (None, None) => {}
        }
    }

    /// Stores a claim as the API returned it; events from before that write are ignored.
    pub fn store(&mut self, claim: Arc<ResourceClaim>) {
        let key = object_key(&claim.metadata);
        if self.claims.get(&key).is_some_and(|known| is_older(&claim, known)) {
            return;
        }
        self.remove(&key);
        if let Some(allocation) = allocation(&claim) {
            self.in_use.add(allocation);
            self.forget_pending(claim.metadata.uid.as_deref().unwrap_or_default());
        }
        if let Some(pod) = extended_owner(&claim) {
            self.extended.insert(pod.to_owned(), key.clone());
        }
        self.claims.insert(key, claim);
    }

    fn remove(&mut self, key: &str) {
        let Some(claim) = self.claims.remove(key) else { return };
        if let Some(allocation) = allocation(&claim) {
            self.in_use.remove(allocation);
        }
        if let Some(pod) = extended_owner(&claim)
            && self.extended.get(pod).is_some_and(|own| own == key)
        {
            self.extended.remove(pod);
        }
    }

    /// Counts an allocation that is about to be written for the pod.
    pub fn add_pending(&mut self, claim_uid: &str, pod_uid: &str, allocation: AllocationResult) {
        self.forget_pending(claim_uid);
        self.in_use.add(&allocation);
        self.pending.insert(claim_uid.to_owned(), Pending { pod: pod_uid.to_owned(), allocation });
    }

    fn forget_pending(&mut self, claim_uid: &str) {
        if let Some(pending) = self.pending.remove(claim_uid) {
            self.in_use.remove(&pending.allocation);
        }
    }

    /// The pod's claims were written, or will not be. Returns whether an allocation was given up.
    pub fn finish_pending(&mut self, pod_uid: &str) -> bool {
        let own = self.pending.iter().filter(|(_, pending)| pending.pod == pod_uid);
        let own: Vec<String> = own.map(|(claim, _)| claim.clone()).collect();
        own.iter().for_each(|claim| self.forget_pending(claim));
        !own.is_empty()
    }

    pub fn is_pending(&self, claim: &ResourceClaim) -> bool {
        claim.metadata.uid.as_ref().is_some_and(|uid| self.pending.contains_key(uid))
    }

    pub fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// Returns the extended resources of the class before and after the change.
    pub fn set_class(&mut self, old: Option<&Arc<DeviceClass>>, new: Option<&Arc<DeviceClass>>) -> Vec<String> {
        if let Some(old) = old {
            self.classes.remove(old.metadata.name.as_deref().unwrap_or_default());
        }
        if let Some(new) = new {
            self.classes.insert(new.metadata.name.clone().unwrap_or_default(), Arc::clone(new));
        }
        self.by_resource.clear();
        for class in self.classes.values() {
            let Some(resource) = class.spec.extended_resource_name.as_ref() else { continue };
            // While one class replaces another, the newer one counts.
            let rank = |class: &DeviceClass| {
                let created = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
                (created, std::cmp::Reverse(class.metadata.name.clone()))
            };
            if self.by_resource.get(resource).is_none_or(|known| rank(known) < rank(class)) {
                self.by_resource.insert(resource.clone(), Arc::clone(class));
            }
        }
        let names = |class: &Arc<DeviceClass>| {
            let implicit = format!("{CLASS_PREFIX}{}", class.metadata.name.as_deref().unwrap_or_default());
            class.spec.extended_resource_name.clone().into_iter().chain([implicit])
        };
        old.into_iter().chain(new).flat_map(names).collect()
    }

    /// The class whose devices satisfy requests for an extended resource.
    pub fn class_for_resource(&self, resource: &str) -> Option<&Arc<DeviceClass>> {
        match resource.strip_prefix(CLASS_PREFIX) {
            Some(class) => self.classes.get(class),
            None => self.by_resource.get(resource),
        }
    }

    /// The claim for a pod's extended resources that an earlier decision created.
    pub fn extended_claim(&self, pod_uid: &str) -> Option<&Arc<ResourceClaim>> {
        self.extended.get(pod_uid).and_then(|key| self.claims.get(key))
    }

    pub fn allocator(&self) -> Allocator<'_> {
        Allocator {
            inventory: &self.inventory,
            in_use: &self.in_use,
            classes: &self.classes,
            selectors: &self.selectors,
        }
    }

    /// Why a claim cannot be allocated on any node.
    pub fn obstacle(&self, claim: &ResourceClaim) -> Option<String> {
        if self.is_pending(claim) {
            let key = object_key(&claim.metadata);
            return Some(format!("resource claim {key} is in the process of being allocated"));
        }
        let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
        let required = requests.flat_map(|request| {
            let exact = request.exactly.iter().map(|exact| (request.name.clone(), &exact.device_class_name));
            let choices = request.first_available.iter().flatten();
            let choices =
                choices.map(|choice| (format!("{}/{}", request.name, choice.name), &choice.device_class_name));
            exact.chain(choices).collect::<Vec<_>>()
        });
        let mut missing = required.filter(|(_, class)| !self.classes.contains_key(*class));
        missing.next().map(|(request, class)| format!("request {request}: device class {class} does not exist"))
    }

    /// The claims of a pod, or why it must wait for them.
    pub fn of_pod(&self, pod: &Pod) -> Result<Vec<Arc<ResourceClaim>>, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        let mut claims = Vec::new();
        for required in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
            let (name, is_made_for_pod) = match &required.resource_claim_name {
                Some(name) => (name.clone(), false),
                None => {
                    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
                    let Some(generated) = statuses.into_iter().find(|status| status.name == required.name) else {
                        return Err(format!("pod \"{namespace}/{pod_name}\": ResourceClaim not created yet"));
                    };
                    // The template needed no claim.
                    let Some(name) = generated.resource_claim_name.clone() else { continue };
                    (name, true)
                }
            };
            let Some(claim) = self.claims.get(&format!("{namespace}/{name}")) else {
                return Err(format!("resourceclaim.resource.k8s.io \"{name}\" not found"));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim \"{name}\" is being deleted"));
            }
            let owners = claim.metadata.owner_references.iter().flatten();
            if is_made_for_pod && !owners.into_iter().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
                return Err(format!(
                    "ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod_name} (Pod is not owner)"
                ));
            }
            claims.push(Arc::clone(claim));
        }
        Ok(claims)
    }
}

/// Whether the claim is an earlier version of the known one.
fn is_older(claim: &ResourceClaim, known: &ResourceClaim) -> bool {
    let version = |claim: &ResourceClaim| claim.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    claim.metadata.uid == known.metadata.uid
        && matches!((version(claim), version(known)), (Some(new), Some(old)) if new < old)
}

pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref().and_then(|status| status.allocation.as_ref())
}

/// Whether the claim is reserved for a pod.
pub fn is_reserved_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let mut users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    users.any(|user| user.uid == pod_uid)
}

/// The UID of the pod for whose extended resources the claim was created.
fn extended_owner(claim: &ResourceClaim) -> Option<&str> {
    let is_extended = claim.metadata.annotations.as_ref()?.get(EXTENDED).is_some_and(|value| value == "true");
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    is_extended.then_some(owner.uid.as_str())
}
