//! VolumeBinding: a pod runs where its volumes are, or where volumes for its claims exist or can be provisioned.

mod matching;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

use crate::cluster::Cluster;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::storage::{Storage, class_of_claim, is_fully_bound, object_key, volume_name};
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

use matching::{NO_VOLUME, can_be_provisioned, matching_volume, requested};

pub use matching::is_reachable;

const NAME: &str = "VolumeBinding";
const OTHER_NODE: &str = "node(s) didn't match PersistentVolume's node affinity";
const LOST_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

pub struct VolumeBinding;

/// A pod's claims by what is left to do for them.
struct Claims {
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Their volume is chosen or provisioned once the node is known; the smallest first.
    delayed: Vec<Arc<PersistentVolumeClaim>>,
}

/// What must be done for a pod's claims before it can be bound to the node.
#[derive(Default)]
pub struct VolumePlan {
    pub bind: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    pub provision: Vec<Arc<PersistentVolumeClaim>>,
}

impl VolumePlan {
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }

    /// The keys of the claims it works on.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        self.bind.iter().map(|(claim, _)| claim).chain(&self.provision).map(|claim| object_key(&claim.metadata))
    }
}

/// The plan for the pod's claims on the chosen node.
pub fn plan_volumes(pod: &PodState, storage: &Storage, node: &NodeState) -> VolumePlan {
    if pod.claims.is_empty() {
        return VolumePlan::default();
    }
    sort_claims(pod, storage)
        .and_then(|claims| claims.plan(storage, node).map_err(|_| String::new()))
        .unwrap_or_default()
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        if pod.claims.is_empty() {
            return Prepared::Nothing;
        }
        match sort_claims(pod, &cluster.storage) {
            Ok(claims) => Prepared::Filter(Box::new(claims)),
            Err(reason) => Prepared::Reject(Rejection::unresolvable(NAME, reason)),
        }
    }
}

/// Whether an ephemeral claim was created for this pod.
fn is_created_for(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref())
}

fn sort_claims(pod: &PodState, storage: &Storage) -> Result<Claims, String> {
    for used in &pod.claims {
        let name = &used.name;
        let claim = storage.claim(&used.key).ok_or_else(|| {
            if used.is_ephemeral {
                format!("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\"")
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            }
        })?;
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
            let volume = volume_name(claim).unwrap_or_default();
            return Err(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            ));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        if used.is_ephemeral && !is_created_for(claim, &pod.object) {
            let namespace = pod.namespace();
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                pod.name()
            ));
        }
    }
    let mut claims = Claims { bound: Vec::new(), delayed: Vec::new() };
    for claim in pod.claims.iter().filter_map(|used| storage.claim(&used.key)) {
        if is_fully_bound(claim) {
            claims.bound.push(Arc::clone(claim));
        } else if volume_name(claim).is_none() && waits_for_node(claim, storage) {
            claims.delayed.push(Arc::clone(claim));
        } else {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
    }
    claims.delayed.sort_by_key(|claim| requested(claim));
    Ok(claims)
}

fn waits_for_node(claim: &PersistentVolumeClaim, storage: &Storage) -> bool {
    let class = storage.class(class_of_claim(claim));
    class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

impl Claims {
    fn plan(&self, storage: &Storage, node: &NodeState) -> Result<VolumePlan, Vec<&'static str>> {
        let mut reasons = Vec::new();
        let mut lost = false;
        for claim in &self.bound {
            match volume_name(claim).and_then(|name| storage.volume(name)) {
                None => {
                    lost = true;
                    break;
                }
                Some(volume) if !is_reachable(volume, node) => {
                    reasons.push(OTHER_NODE);
                    break;
                }
                Some(_) => {}
            }
        }
        let mut plan = VolumePlan::default();
        if let Err(reason) = self.plan_delayed(storage, node, &mut plan) {
            reasons.push(reason);
        }
        if lost {
            reasons.push(LOST_VOLUME);
        }
        if reasons.is_empty() { Ok(plan) } else { Err(reasons) }
    }

    fn plan_delayed(&self, storage: &Storage, node: &NodeState, plan: &mut VolumePlan) -> Result<(), &'static str> {
        let mut to_match = Vec::new();
        for claim in &self.delayed {
            match storage.selected_node(claim) {
                Some(selected) if selected != node.name() => return Err(NO_VOLUME),
                Some(_) => plan.provision.push(Arc::clone(claim)),
                None => to_match.push(claim),
            }
        }
        let mut chosen = BTreeSet::new();
        for claim in to_match {
            match matching_volume(claim, storage, node, &chosen) {
                Some(volume) => {
                    chosen.insert(volume.metadata.name.clone().unwrap_or_default());
                    plan.bind.push((Arc::clone(claim), Arc::clone(volume)));
                }
                None => plan.provision.push(Arc::clone(claim)),
            }
        }
        for claim in &plan.provision {
            let Some(class) = storage.class(class_of_claim(claim)) else { return Err(NO_VOLUME) };
            can_be_provisioned(claim, class, storage, node)?;
        }
        Ok(())
    }
}

impl Filter for Claims {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let reasons = self.plan(&view.cluster.storage, view.node).err()?;
        let reasons = reasons.into_iter().map(str::to_owned).collect();
        Some(Rejection { plugin: NAME, reasons, unresolvable: true, is_error: false })
    }
}

#[cfg(test)]
mod tests;
