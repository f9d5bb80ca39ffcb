//! VolumeBinding: a pod runs where its volumes are, or where volumes for its claims exist or can be provisioned.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::value;
use knarr_client::selector::Selector;

use crate::cluster::Cluster;
use crate::cluster::affinity::term_matches;
use crate::cluster::labels::Labels;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::storage::{
    Storage, class_of_claim, class_of_volume, is_for_claim, is_fully_bound, object_key, volume_name,
};
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "VolumeBinding";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const OTHER_NODE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const LOST_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// The provisioner of classes whose volumes are created manually.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

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
    pub make: Vec<Arc<PersistentVolumeClaim>>,
}

impl VolumePlan {
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.make.is_empty()
    }

    /// The keys of the claims it works on.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        self.bind.iter().map(|(claim, _)| claim).chain(&self.make).map(|claim| object_key(&claim.metadata))
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
fn is_made_for(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
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
        if used.is_ephemeral && !is_made_for(claim, &pod.object) {
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

fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).map_or(0, value)
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
                Some(_) => plan.make.push(Arc::clone(claim)),
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
                None => plan.make.push(Arc::clone(claim)),
            }
        }
        for claim in &plan.make {
            let Some(class) = storage.class(class_of_claim(claim)) else { return Err(NO_VOLUME) };
            can_be_made(claim, class, storage, node)?;
        }
        Ok(())
    }
}

impl Filter for Claims {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let reasons = self.plan(&view.cluster.storage, view.node).err()?;
        let reasons = reasons.into_iter().map(str::to_owned).collect();
        Some(Rejection { plugin: NAME, reasons, unresolvable: true })
    }
}

/// Whether a volume can be used from a node.
pub fn is_reachable(volume: &PersistentVolume, node: &NodeState) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// The volume reserved for the claim, or the smallest free one that satisfies it.
fn matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    storage: &'a Storage,
    node: &NodeState,
    reserved: &BTreeSet<String>,
) -> Option<&'a Arc<PersistentVolume>> {
    let class = class_of_claim(claim);
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.map(|selector| Selector::of(selector).unwrap_or_else(|_| Selector::nothing()));
    let key = object_key(&claim.metadata);
    let mut smallest: Option<(&Arc<PersistentVolume>, i64)> = None;
    for volume in storage.volumes_for(class, &key) {
        let Some(spec) = &volume.spec else { continue };
        let is_reserved = volume.metadata.name.as_ref().is_some_and(|name| reserved.contains(name));
        if is_reserved || spec.claim_ref.is_some() && !is_for_claim(volume, claim) {
            continue;
        }
        let capacity = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage")).map_or(0, value);
        if capacity < requested(claim)
            || !is_of_same_make(claim, volume)
            || volume.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        if is_for_claim(volume, claim) {
            return is_reachable(volume, node).then_some(volume);
        }
        let is_available = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available");
        let is_selected = selector.as_ref().is_none_or(|selector| selector.matches(volume.metadata.labels.as_ref()));
        if !is_available
            || !is_selected
            || class_of_volume(volume) != class
            || !is_reachable(volume, node)
            || !has_modes(claim, volume)
        {
            continue;
        }
        if smallest.is_none_or(|(_, min)| capacity.cmp(&min) == Ordering::Less) {
            smallest = Some((volume, capacity));
        }
    }
    smallest.map(|(volume, _)| volume)
}

/// Whether both are blocks or both are file systems, with the same attributes class.
fn is_of_same_make(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (Some(claim), Some(volume)) = (&claim.spec, &volume.spec) else { return false };
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    mode(&claim.volume_mode) == mode(&volume.volume_mode)
        && attributes(&claim.volume_attributes_class_name) == attributes(&volume.volume_attributes_class_name)
}

fn has_modes(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let required = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    let own: BTreeSet<&String> = volume.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten()).collect();
    required.into_iter().all(|mode| own.contains(mode))
}

/// Whether a volume for the claim can be provisioned for the node.
fn can_be_made(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    storage: &Storage,
    node: &NodeState,
) -> Result<(), &'static str> {
    if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER || !allows_topology(class, node.labels()) {
        return Err(NO_VOLUME);
    }
    let keeps_count =
        |driver: &str| storage.csi_driver(driver).is_some_and(|driver| driver.spec.storage_capacity.unwrap_or(false));
    let size = requested(claim);
    if size == 0 || !keeps_count(&class.provisioner) {
        return Ok(());
    }
    let class_name = class.metadata.name.as_deref().unwrap_or_default();
    let has_room = |capacity: &Arc<CSIStorageCapacity>| {
        let limit: Option<&Quantity> = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        capacity.storage_class_name == class_name
            && limit.is_some_and(|limit| value(limit) >= size)
            && capacity.node_topology.as_ref().is_some_and(|topology| {
                Selector::of(topology).is_ok_and(|selector| selector.matches(Some(node.labels())))
            })
    };
    if storage.capacities().any(has_room) { Ok(()) } else { Err(NO_SPACE) }
}

fn allows_topology(class: &StorageClass, labels: &Labels) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
            !expressions.is_empty()
                && expressions.iter().all(|one| labels.get(&one.key).is_some_and(|own| one.values.contains(own)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn volume(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
        let mut spec =
            json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}))
    }

    fn storage() -> Storage {
        let mut storage = Storage::default();
        for (name, provisioner, mode) in [
            ("late", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
            ("made", "driver", "WaitForFirstConsumer"),
            ("now", "driver", "Immediate"),
        ] {
            let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode,
                "allowedTopologies": if name == "made" {
                    json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]) } else { Value::Null }});
            storage.set_class(None, Some(&object(class)));
        }
        let on_b = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}});
        for volume in [
            volume("large", "9Gi", json!({})),
            volume("small", "2Gi", json!({})),
            volume("tiny", "1Mi", json!({})),
            volume("far", "1Gi", on_b),
            volume("block", "1Gi", json!({"volumeMode": "Block"})),
            volume("taken", "1Gi", json!({"claimRef": {"namespace": "n", "name": "other"}})),
        ] {
            storage.set_volume(None, Some(&volume));
        }
        for (name, class, annotations) in [
            ("claim", "late", json!({})),
            ("made", "made", json!({})),
            ("elsewhere", "made", json!({"volume.kubernetes.io/selected-node": "other"})),
            ("now", "now", json!({})),
        ] {
            let claim = json!({"metadata": {"namespace": "n", "name": name, "annotations": annotations}, "spec":
                {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
            storage.set_claim(None, Some(&object(claim)));
        }
        let bound = json!({"metadata": {"namespace": "n", "name": "bound", "annotations":
            {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "far"}});
        storage.set_claim(None, Some(&object(bound)));
        storage
    }

    fn pod(claims: &[&str]) -> PodState {
        let volumes: Vec<Value> =
            claims.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})).collect();
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [], "volumes": volumes}});
        PodState::new(object(pod))
    }

    fn node(zone: &str) -> NodeState {
        NodeState::new(object(json!({"metadata": {"name": "node", "labels": {"zone": zone}}})))
    }

    /// What is bound and provisioned, or why not.
    fn planned(claims: &[&str], zone: &str, storage: &Storage) -> String {
        let pod = pod(claims);
        let name = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            metadata.name.clone().unwrap_or_default()
        };
        match sort_claims(&pod, storage).map(|claims| claims.plan(storage, &node(zone))) {
            Err(reason) => reason,
            Ok(Err(reasons)) => reasons.join(", "),
            Ok(Ok(plan)) => {
                let bound: Vec<String> = plan.bind.iter().map(|(_, volume)| name(&volume.metadata)).collect();
                let provisioned: Vec<String> = plan.make.iter().map(|claim| name(&claim.metadata)).collect();
                format!("bind [{}] make [{}]", bound.join(" "), provisioned.join(" "))
            }
        }
    }

    #[test]
    fn volumes_are_found_or_made_or_neither() {
        let storage = storage();
        for (claims, zone, outcome) in [
            (&["claim"][..], "a", "bind [small] make []"),
            (&["claim"], "b", "bind [far] make []"),
            (&["made"], "a", "bind [] make [made]"),
            (&["made"], "b", NO_VOLUME),
            (&["elsewhere"], "a", NO_VOLUME),
            (&["claim", "made"], "a", "bind [small] make [made]"),
            (&["now"], "a", "pod has unbound immediate PersistentVolumeClaims"),
            (&["missing"], "a", "persistentvolumeclaim \"missing\" not found"),
            (&["bound"], "b", "bind [] make []"),
            (&["bound"], "a", OTHER_NODE),
        ] {
            assert_eq!(planned(claims, zone, &storage), outcome, "{claims:?} in {zone}");
        }
    }

    #[test]
    fn promises_count_until_they_end() {
        let mut storage = storage();
        storage.assume_volume("small", "n/other");
        assert_eq!(planned(&["claim"], "a", &storage), "bind [large] make []");
        storage.assume_node("n/made", "another");
        assert_eq!(planned(&["made"], "a", &storage), NO_VOLUME);
        storage.drop_assumptions("n/other");
        storage.drop_assumptions("n/made");
        assert_eq!(planned(&["claim", "made"], "a", &storage), "bind [small] make [made]");
    }

    #[test]
    fn drivers_that_keep_count_must_have_room() {
        let mut storage = storage();
        storage.set_csi_driver(
            None,
            Some(&object(json!({"metadata": {"name": "driver"}, "spec": {"storageCapacity": true}}))),
        );
        assert_eq!(planned(&["made"], "a", &storage), NO_SPACE);
        let capacity = |size: &str| {
            object(json!({"metadata": {"namespace": "n", "name": "c"}, "storageClassName": "made", "capacity": size,
                "nodeTopology": {"matchLabels": {"zone": "a"}}}))
        };
        storage.set_capacity(None, Some(&capacity("1Mi")));
        assert_eq!(planned(&["made"], "a", &storage), NO_SPACE);
        storage.set_capacity(None, Some(&capacity("5Gi")));
        assert_eq!(planned(&["made"], "a", &storage), "bind [] make [made]");
    }
}
