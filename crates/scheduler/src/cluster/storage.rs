//! Volumes and claims, with the assumptions of decisions that the API does not show yet.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The node that a claim's volume is provisioned for.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The node with what a claim's data source names. Knarr's CSI controller sets it for volumes that belong to nodes.
const SOURCE_NODE: &str = "csi.knarr.io/source-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

#[derive(Default)]
pub struct Storage {
    claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    volumes: HashMap<String, Arc<PersistentVolume>>,
    volumes_by_class: HashMap<String, BTreeSet<String>>,
    classes: HashMap<String, Arc<StorageClass>>,
    csi_nodes: HashMap<String, Arc<CSINode>>,
    csi_drivers: HashMap<String, Arc<CSIDriver>>,
    capacities: HashMap<String, Arc<CSIStorageCapacity>>,
    attachments: HashMap<String, HashMap<String, Arc<VolumeAttachment>>>,
    /// Volumes that a decision reserved for a claim: the claim's key by volume.
    promised_volumes: HashMap<String, String>,
    /// Claims whose volume a decision has provisioned for a node: the node by claim.
    promised_nodes: HashMap<String, String>,
}

pub fn object_key(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a String> {
    metadata.annotations.as_ref().and_then(|annotations| annotations.get(key))
}

pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let given = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation(&claim.metadata, CLASS_ANNOTATION).map(String::as_str).or(given).unwrap_or_default()
}

pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    let given = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation(&volume.metadata, CLASS_ANNOTATION).map(String::as_str).or(given).unwrap_or_default()
}

/// The volume that a claim names, bound to it or not.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty())
}

/// The node that must provision the claim's volume, since its data source is there.
pub fn source_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, SOURCE_NODE).map(String::as_str)
}

/// Whether a claim and its volume refer to each other.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some() && annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

/// Whether a volume is reserved for this very claim, by a user or a controller.
pub fn is_for_claim(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return false };
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (reference.uid.as_deref().unwrap_or_default().is_empty() || reference.uid == claim.metadata.uid)
}

impl Storage {
    pub fn claim(&self, key: &str) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(key)
    }

    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.get(name)
    }

    pub fn class(&self, name: &str) -> Option<&Arc<StorageClass>> {
        self.classes.get(name)
    }

    pub fn csi_node(&self, node: &str) -> Option<&Arc<CSINode>> {
        self.csi_nodes.get(node)
    }

    pub fn csi_driver(&self, name: &str) -> Option<&Arc<CSIDriver>> {
        self.csi_drivers.get(name)
    }

    pub fn capacities(&self) -> impl Iterator<Item = &Arc<CSIStorageCapacity>> {
        self.capacities.values()
    }

    pub fn attachments(&self, node: &str) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        self.attachments.get(node).into_iter().flat_map(HashMap::values)
    }

    /// Volumes of a class that no decision has reserved, except for this claim.
    pub fn volumes_for(&self, class: &str, claim: &str) -> impl Iterator<Item = &Arc<PersistentVolume>> {
        let names = self.volumes_by_class.get(class).into_iter().flatten();
        names
            .filter(move |name| self.promised_volumes.get(*name).is_none_or(|own| own == claim))
            .filter_map(|name| self.volumes.get(name))
    }

    /// The node that a claim's volume is provisioned for, by the API or a decision.
    pub fn selected_node<'a>(&'a self, claim: &'a PersistentVolumeClaim) -> Option<&'a str> {
        let promised = self.promised_nodes.get(&object_key(&claim.metadata));
        promised.or_else(|| annotation(&claim.metadata, SELECTED_NODE)).map(String::as_str)
    }

    /// Reserves a volume for a claim until the API shows it or it is released.
    pub fn assume_volume(&mut self, volume: &str, claim: &str) {
        self.promised_volumes.insert(volume.to_owned(), claim.to_owned());
    }

    pub fn assume_node(&mut self, claim: &str, node: &str) {
        self.promised_nodes.insert(claim.to_owned(), node.to_owned());
    }

    /// Drops the assumptions for a claim: the API shows them, or they failed.
    pub fn drop_assumptions(&mut self, claim: &str) {
        self.promised_nodes.remove(claim);
        self.promised_volumes.retain(|_, own| own != claim);
    }

    pub fn set_claim(&mut self, old: Option<&Arc<PersistentVolumeClaim>>, new: Option<&Arc<PersistentVolumeClaim>>) {
        replace(&mut self.claims, old.map(|o| object_key(&o.metadata)), new, |o| object_key(&o.metadata));
    }

    pub fn set_volume(&mut self, old: Option<&Arc<PersistentVolume>>, new: Option<&Arc<PersistentVolume>>) {
        if let Some(old) = old {
            let class = class_of_volume(old);
            if let Some(names) = self.volumes_by_class.get_mut(class) {
                names.remove(old.metadata.name.as_deref().unwrap_or_default());
                if names.is_empty() {
                    self.volumes_by_class.remove(class);
                }
            }
        }
        if let Some(new) = new {
            let names = self.volumes_by_class.entry(class_of_volume(new).to_owned()).or_default();
            names.insert(new.metadata.name.clone().unwrap_or_default());
        }
        replace(&mut self.volumes, old.map(|o| object_key(&o.metadata)), new, |o| object_key(&o.metadata));
    }

    pub fn set_class(&mut self, old: Option<&Arc<StorageClass>>, new: Option<&Arc<StorageClass>>) {
        replace(&mut self.classes, old.map(|o| object_key(&o.metadata)), new, |o| object_key(&o.metadata));
    }

    pub fn set_csi_node(&mut self, old: Option<&Arc<CSINode>>, new: Option<&Arc<CSINode>>) {
        replace(&mut self.csi_nodes, old.map(|o| object_key(&o.metadata)), new, |o| object_key(&o.metadata));
    }

    pub fn set_csi_driver(&mut self, old: Option<&Arc<CSIDriver>>, new: Option<&Arc<CSIDriver>>) {
        replace(&mut self.csi_drivers, old.map(|o| object_key(&o.metadata)), new, |o| object_key(&o.metadata));
    }

    pub fn set_capacity(&mut self, old: Option<&Arc<CSIStorageCapacity>>, new: Option<&Arc<CSIStorageCapacity>>) {
        replace(&mut self.capacities, old.map(|o| object_key(&o.metadata)), new, |o| object_key(&o.metadata));
    }

    pub fn set_attachment(&mut self, old: Option<&Arc<VolumeAttachment>>, new: Option<&Arc<VolumeAttachment>>) {
        if let Some(old) = old
            && let Some(on_node) = self.attachments.get_mut(&old.spec.node_name)
        {
            on_node.remove(&object_key(&old.metadata));
            if on_node.is_empty() {
                self.attachments.remove(&old.spec.node_name);
            }
        }
        if let Some(new) = new {
            let on_node = self.attachments.entry(new.spec.node_name.clone()).or_default();
            on_node.insert(object_key(&new.metadata), Arc::clone(new));
        }
    }
}

fn replace<K>(all: &mut HashMap<String, Arc<K>>, old: Option<String>, new: Option<&Arc<K>>, key: fn(&K) -> String) {
    match (old, new) {
        (_, Some(new)) => {
            all.insert(key(new), Arc::clone(new));
        }
        (Some(old), None) => {
            all.remove(&old);
        }
        (None, None) => {}
    }
}
