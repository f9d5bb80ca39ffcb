//! VolumeRestrictions: disks that only one node can write to, and claims that only one pod may use.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Volume;

use crate::cluster::Cluster;
use crate::cluster::placed::{PlacedPod, is_disk};
use crate::cluster::pod::PodState;
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "VolumeRestrictions";
const DISK_CONFLICT: &str = "node(s) had no available disk";
const CLAIM_IN_USE: &str =
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

pub struct VolumeRestrictions;

struct Restrictions {
    pod: Arc<PodState>,
    /// The pod's ReadWriteOncePod claims, and how many of them are in use.
    exclusive: BTreeSet<String>,
    in_use: usize,
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        let mut exclusive = BTreeSet::new();
        for used in pod.claims.iter().filter(|used| !used.is_ephemeral) {
            let Some(claim) = cluster.storage.claim(&used.key) else {
                let reason = format!("persistentvolumeclaim \"{}\" not found", used.name);
                return Prepared::Reject(Rejection::unresolvable(NAME, reason));
            };
            let modes = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
            if modes.into_iter().any(|mode| mode == "ReadWriteOncePod") {
                exclusive.insert(used.key.clone());
            }
        }
        let in_use = exclusive.iter().filter(|key| cluster.users_of_claim(key) > 0).count();
        if in_use == 0 && !disks(pod).any(|_| true) {
            return Prepared::Nothing;
        }
        Prepared::Filter(Box::new(Restrictions { pod: Arc::clone(pod), exclusive, in_use }))
    }
}

fn disks(pod: &PlacedPod) -> impl Iterator<Item = &Volume> {
    pod.disks.iter().filter(|volume| is_disk(volume))
}

/// Whether a placed pod has a disk or a claim that the waiting one needs exclusively.
pub fn is_blocked_by(waiting: &PlacedPod, placed: &PlacedPod) -> bool {
    let shares_disk = || disks(waiting).any(|volume| disks(placed).any(|other| conflict(volume, other)));
    let shares_claim = || {
        let named = waiting.claims.iter().filter(|claim| !claim.is_ephemeral);
        named.into_iter().any(|claim| placed.claims.contains(claim))
    };
    waiting.namespace() == placed.namespace() && (shares_disk() || shares_claim())
}

/// Two mounts of one disk conflict unless both only read, where the disk allows that.
fn conflict(one: &Volume, other: &Volume) -> bool {
    let both_read = |one: Option<bool>, other: Option<bool>| one.unwrap_or(false) && other.unwrap_or(false);
    if let (Some(one), Some(other)) = (&one.gce_persistent_disk, &other.gce_persistent_disk)
        && one.pd_name == other.pd_name
        && !both_read(one.read_only, other.read_only)
    {
        return true;
    }
    if let (Some(one), Some(other)) = (&one.aws_elastic_block_store, &other.aws_elastic_block_store)
        && one.volume_id == other.volume_id
    {
        return true;
    }
    if let (Some(one), Some(other)) = (&one.iscsi, &other.iscsi)
        && one.iqn == other.iqn
        && !both_read(one.read_only, other.read_only)
    {
        return true;
    }
    if let (Some(one), Some(other)) = (&one.rbd, &other.rbd) {
        return one.monitors.iter().any(|monitor| other.monitors.contains(monitor))
            && one.pool == other.pool
            && one.image == other.image
            && !both_read(one.read_only, other.read_only);
    }
    false
}

impl Filter for Restrictions {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        for volume in disks(&self.pod) {
            if view.node.pods.iter().any(|placed| disks(placed).any(|other| conflict(volume, other))) {
                return Some(Rejection::resolvable(NAME, DISK_CONFLICT));
            }
        }
        let uses = |pods: &[Arc<PlacedPod>]| {
            let claims = pods.iter().flat_map(|pod| pod.claims.iter().filter(|used| !used.is_ephemeral));
            claims.filter(|used| self.exclusive.contains(&used.key)).count()
        };
        (self.in_use + uses(view.added) > uses(view.removed)).then(|| Rejection::resolvable(NAME, CLAIM_IN_USE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn disks_conflict_unless_both_read() {
        let volume = |source: serde_json::Value| -> Volume {
            let mut volume = json!({"name": "v"});
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            serde_json::from_value(volume).unwrap()
        };
        let disk =
            |name: &str, read_only: bool| volume(json!({"gcePersistentDisk": {"pdName": name, "readOnly": read_only}}));
        let block = |id: &str| volume(json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": true}}));
        let rbd =
            |monitor: &str, image: &str| volume(json!({"rbd": {"monitors": [monitor], "image": image, "pool": "p"}}));
        for (one, other, conflicts) in [
            (disk("a", false), disk("a", true), true),
            (disk("a", true), disk("a", true), false),
            (disk("a", false), disk("b", false), false),
            (block("x"), block("x"), true),
            (block("x"), disk("x", false), false),
            (rbd("m", "i"), rbd("m", "i"), true),
            (rbd("m", "i"), rbd("m", "j"), false),
            (rbd("m", "i"), rbd("o", "i"), false),
        ] {
            assert_eq!(conflict(&one, &other), conflicts, "{one:?} {other:?}");
        }
    }
}
