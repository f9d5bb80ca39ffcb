//! Which volume satisfies a claim on a node, or whether one can be provisioned there.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::value;
use knarr_client::selector::{self, Selector};

use crate::cluster::affinity::term_matches;
use crate::cluster::labels::Labels;
use crate::cluster::node::NodeState;
use crate::cluster::storage::{Storage, class_of_claim, class_of_volume, is_for_claim, object_key, source_node};

pub(super) const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
pub(super) const NO_SPACE: &str = "node(s) did not have enough free storage";
/// The provisioner of classes whose volumes are created manually.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Whether a volume can be used from a node.
pub fn is_reachable(volume: &PersistentVolume, node: &NodeState) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// The volume reserved for the claim, or the smallest free one that satisfies it.
pub(super) fn matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    storage: &'a Storage,
    node: &NodeState,
    reserved: &BTreeSet<String>,
) -> Option<&'a Arc<PersistentVolume>> {
    let class = class_of_claim(claim);
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.map(|selector| selector::of(selector).unwrap_or_else(|_| Selector::nothing()));
    let key = object_key(&claim.metadata);
    let mut smallest: Option<(&Arc<PersistentVolume>, i64)> = None;
    for volume in storage.volumes_for(class, &key) {
        let Some(spec) = &volume.spec else { continue };
        let is_reserved = volume.metadata.name.as_ref().is_some_and(|name| reserved.contains(name));
        if is_reserved || spec.claim_ref.is_some() && !is_for_claim(volume, claim) {
            continue;
        }
        let capacity = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage")).map_or(0, value);
        if capacity < requested(claim) || !has_same_mode(claim, volume) || volume.metadata.deletion_timestamp.is_some()
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
fn has_same_mode(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
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
pub(super) fn can_be_provisioned(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    storage: &Storage,
    node: &NodeState,
) -> Result<(), &'static str> {
    if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER || !allows_topology(class, node.labels()) {
        return Err(NO_VOLUME);
    }
    if source_node(claim).is_some_and(|source| source != node.name()) {
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
                selector::of(topology).is_ok_and(|selector| selector.matches(Some(node.labels())))
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

pub(super) fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).map_or(0, value)
}
