//! NodeVolumeLimits: a node attaches no more volumes of a driver than its limit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::CSINode;
use knarr_client::csi_migration;

use crate::cluster::Cluster;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::cluster::storage::{Storage, class_of_claim, volume_name};
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "NodeVolumeLimits";

pub struct VolumeLimits;

struct Limits {
    pod: Arc<PodState>,
    attaching: HashSet<Attachable>,
}

/// A volume that has to be attached.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Attachable {
    driver: String,
    handle: String,
}

impl Plugin for VolumeLimits {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        if pod.claims.is_empty() && inline(pod).next().is_none() {
            return Prepared::Nothing;
        }
        let mut attaching = HashSet::new();
        attachables(pod, &cluster.storage, &mut attaching);
        Prepared::Filter(Box::new(Limits { pod: Arc::clone(pod), attaching }))
    }
}

fn attachables(pod: &PlacedPod, storage: &Storage, found: &mut HashSet<Attachable>) {
    found.extend(pod.claims.iter().filter_map(|used| attachable(&used.key, storage)));
    found.extend(inline(pod));
}

/// Volumes that the pod names itself, of in-tree types that drivers replaced.
fn inline(pod: &PlacedPod) -> impl Iterator<Item = Attachable> {
    pod.disks.iter().filter_map(|volume| of_source(&csi_migration::translate_inline(volume, pod.namespace())?))
}

fn of_source(volume: &PersistentVolume) -> Option<Attachable> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(Attachable { driver: source.driver.clone(), handle: source.volume_handle.clone() })
}

/// The volume of a driver, whether it is described as such or by an in-tree type that the driver replaced.
fn of_volume(volume: &PersistentVolume) -> Option<Attachable> {
    of_source(volume).or_else(|| of_source(&csi_migration::translate(volume)?))
}

/// The volume that a claim will attach. An unbound claim counts as one volume of its class's driver.
fn attachable(key: &str, storage: &Storage) -> Option<Attachable> {
    let claim = storage.claim(key)?;
    if let Some(volume) = volume_name(claim).and_then(|name| storage.volume(name)) {
        return of_volume(volume);
    }
    let provisioner = storage.class(class_of_claim(claim))?.provisioner.as_str();
    let driver = csi_migration::driver_of_provisioner(provisioner).unwrap_or(provisioner).to_owned();
    Some(Attachable { driver, handle: format!("not bound yet: {key}") })
}

/// Whether the node's limit of some driver grew.
pub fn is_raised(old: &CSINode, new: &CSINode) -> bool {
    let count = |node: &CSINode, name: &str| {
        let driver = node.spec.drivers.iter().find(|driver| driver.name == name);
        driver.and_then(|driver| driver.allocatable.as_ref()?.count).unwrap_or(0)
    };
    new.spec.drivers.iter().any(|driver| count(new, &driver.name) > count(old, &driver.name))
}

fn limits(node: Option<&Arc<CSINode>>) -> HashMap<&str, i64> {
    let drivers = node.into_iter().flat_map(|node| &node.spec.drivers);
    drivers
        .filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((driver.name.as_str(), i64::from(count)))
        })
        .collect()
}

impl Filter for Limits {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let storage = &view.cluster.storage;
        if let Some(missing) = self.pod.claims.iter().find(|used| storage.claim(&used.key).is_none()) {
            let reason =
                format!("looking up PVC {}: persistentvolumeclaim \"{}\" not found", missing.key, missing.name);
            return Some(Rejection::unresolvable(NAME, reason));
        }
        if self.attaching.is_empty() {
            return None;
        }
        let limits = limits(storage.csi_node(view.node.name()));
        if limits.is_empty() {
            return None;
        }
        let mut attached = HashSet::new();
        for pod in &view.node.pods {
            attachables(pod, storage, &mut attached);
        }
        for attachment in storage.attachments(view.node.name()) {
            let volume = attachment.spec.source.persistent_volume_name.as_ref().and_then(|name| storage.volume(name));
            attached.extend(volume.and_then(|volume| of_volume(volume)));
        }
        let exceeds = self.attaching.iter().filter(|attaching| !attached.contains(attaching)).any(|attaching| {
            let of_driver = |all: &HashSet<Attachable>, new: bool| {
                all.iter().filter(|one| one.driver == attaching.driver && !(new && attached.contains(one))).count()
            };
            let count = of_driver(&attached, false) + of_driver(&self.attaching, true);
            limits.get(attaching.driver.as_str()).is_some_and(|limit| i64::try_from(count).unwrap_or(i64::MAX) > *limit)
        });
        exceeds.then(|| Rejection::resolvable(NAME, "node(s) exceed max volume count"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn replaced_in_tree_volumes_count_as_their_drivers() {
        let mut storage = Storage::default();
        let mut add = |name: &str, spec: serde_json::Value| {
            let volume = json!({"metadata": {"name": name}, "spec": spec});
            storage.set_volume(None, Some(&Arc::new(serde_json::from_value(volume).unwrap())));
            let claim = json!({"metadata": {"namespace": "n", "name": name}, "spec": {"volumeName": name}});
            storage.set_claim(None, Some(&Arc::new(serde_json::from_value(claim).unwrap())));
        };
        add("csi", json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}));
        add("old", json!({"awsElasticBlockStore": {"volumeID": "aws://zone/vol-1"}}));
        let class = json!({"metadata": {"name": "gp2"}, "provisioner": "kubernetes.io/aws-ebs"});
        storage.set_class(None, Some(&Arc::new(serde_json::from_value(class).unwrap())));
        let claim = json!({"metadata": {"namespace": "n", "name": "new"}, "spec": {"storageClassName": "gp2"}});
        storage.set_claim(None, Some(&Arc::new(serde_json::from_value(claim).unwrap())));
        assert!(attachable("n/csi", &storage) == attachable("n/old", &storage), "the same volume");
        assert_eq!(attachable("n/new", &storage).unwrap().driver, "ebs.csi.aws.com");
        let pod: k8s_openapi::api::core::v1::Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "n"}, "spec": {"containers": [], "volumes": [
            {"name": "a", "awsElasticBlockStore": {"volumeID": "vol-2"}}, {"name": "b", "emptyDir": {}}]}}))
            .unwrap();
        let found: Vec<String> =
            inline(&PlacedPod::new(&pod, None)).map(|own| format!("{}^{}", own.driver, own.handle)).collect();
        assert_eq!(found, ["ebs.csi.aws.com^vol-2"]);
    }
}
