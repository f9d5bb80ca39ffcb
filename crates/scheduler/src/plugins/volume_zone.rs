//! VolumeZone: a volume with a zone or region label is used from there.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::cluster::Cluster;
use crate::cluster::labels::{REGION, ZONE};
use crate::cluster::pod::PodState;
use crate::cluster::storage::{Storage, class_of_claim, volume_name};
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "VolumeZone";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// The labels of a volume's location.
pub const LABELS: [&str; 4] = [OLD_ZONE, OLD_REGION, ZONE, REGION];

pub struct VolumeZone;

/// A label that nodes must have with one of the values.
struct Place {
    key: &'static str,
    values: BTreeSet<String>,
}

struct Places(Vec<Place>);

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        match places(pod, &cluster.storage) {
            Ok(places) if places.is_empty() => Prepared::Nothing,
            Ok(places) => Prepared::Filter(Box::new(Places(places))),
            Err(reason) => Prepared::Reject(Rejection::unresolvable(NAME, reason)),
        }
    }
}

fn places(pod: &PodState, storage: &Storage) -> Result<Vec<Place>, String> {
    let mut places = Vec::new();
    for used in pod.claims.iter().filter(|used| !used.is_ephemeral) {
        let not_found = || format!("persistentvolumeclaim \"{}\" not found", used.name);
        let claim = storage.claim(&used.key).ok_or_else(not_found)?;
        let Some(name) = volume_name(claim) else {
            let class_name = class_of_claim(claim);
            if class_name.is_empty() {
                return Err("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
            }
            let not_found = || format!("storageclass.storage.k8s.io \"{class_name}\" not found");
            let class = storage.class(class_name).ok_or_else(not_found)?;
            match class.volume_binding_mode.as_deref() {
                None => return Err(format!("VolumeBindingMode not set for StorageClass \"{class_name}\"")),
                // Its volume will be provisioned or chosen where the pod goes.
                Some("WaitForFirstConsumer") => continue,
                Some(_) => return Err("PersistentVolume had no name".to_owned()),
            }
        };
        let volume = storage.volume(name).ok_or_else(|| format!("persistentvolume \"{name}\" not found"))?;
        places.extend(places_of(volume));
    }
    Ok(places)
}

fn places_of(volume: &PersistentVolume) -> Vec<Place> {
    let labels = volume.metadata.labels.as_ref();
    let found = LABELS.iter().filter_map(|key| Some((*key, labels?.get(*key)?)));
    found
        .map(|(key, value)| {
            // A volume in several zones lists them.
            let values = value.split("__").map(|value| value.trim().to_owned()).collect();
            Place { key, values }
        })
        .collect()
}

fn current_label(key: &str) -> &str {
    match key {
        OLD_ZONE => ZONE,
        OLD_REGION => REGION,
        other => other,
    }
}

impl Filter for Places {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let labels = view.node.labels();
        if !LABELS.iter().any(|key| labels.contains_key(*key)) {
            return None;
        }
        let fits = |place: &Place| {
            let own = labels.get(place.key).or_else(|| labels.get(current_label(place.key)));
            own.is_some_and(|own| place.values.contains(own))
        };
        (!self.0.iter().all(fits)).then(|| Rejection::unresolvable(NAME, "node(s) had no available volume zone"))
    }
}
