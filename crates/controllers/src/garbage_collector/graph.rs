//! The graph of owners and dependents, by uid.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::plan::{FOREGROUND, ORPHAN};
use crate::common::discovery::Kind;

/// An object as last observed.
#[derive(Clone)]
pub(super) struct Object {
    pub kind: Arc<Kind>,
    identity: Arc<Identity>,
}

/// What the collector reads of an object. There is one for each object of the cluster, so it is small.
struct Identity {
    uid: Arc<str>,
    name: Box<str>,
    namespace: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    owners: Box<[OwnerReference]>,
    finalizers: Box<[String]>,
    is_being_deleted: bool,
}

impl Object {
    pub fn new(kind: Arc<Kind>, meta: &ObjectMeta) -> Self {
        let identity = Identity {
            uid: meta.uid.as_deref().unwrap_or("").into(),
            name: meta.name.as_deref().unwrap_or("").into(),
            namespace: meta.namespace.as_deref().map(Box::from),
            resource_version: meta.resource_version.as_deref().map(Box::from),
            owners: meta.owner_references.as_deref().unwrap_or_default().into(),
            finalizers: meta.finalizers.as_deref().unwrap_or_default().into(),
            is_being_deleted: meta.deletion_timestamp.is_some(),
        };
        Self { kind, identity: Arc::new(identity) }
    }

    pub fn uid(&self) -> &str {
        &self.identity.uid
    }

    pub fn name(&self) -> &str {
        &self.identity.name
    }

    pub fn namespace(&self) -> &str {
        self.identity.namespace.as_deref().unwrap_or("")
    }

    pub fn resource_version(&self) -> Option<String> {
        self.identity.resource_version.as_deref().map(str::to_owned)
    }

    pub fn owners(&self) -> &[OwnerReference] {
        &self.identity.owners
    }

    pub fn finalizers(&self) -> &[String] {
        &self.identity.finalizers
    }

    pub fn is_being_deleted(&self) -> bool {
        self.identity.is_being_deleted
    }

    pub fn is_deleting_dependents(&self) -> bool {
        self.is_being_deleted() && self.finalizers().iter().any(|finalizer| finalizer == FOREGROUND)
    }

    pub fn is_orphaning(&self) -> bool {
        self.is_being_deleted() && self.finalizers().iter().any(|finalizer| finalizer == ORPHAN)
    }

    /// Whether a reference from that namespace matches this object's identity, not only its uid.
    pub fn is_meant_by(&self, reference: &OwnerReference, from: &str) -> bool {
        let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
        self.kind.resource.group == group
            && self.kind.resource.kind == reference.kind
            && self.name() == reference.name
            && (self.namespace().is_empty() || self.namespace() == from)
    }

    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.kind.resource.api_version.clone()),
            kind: Some(self.kind.resource.kind.clone()),
            name: Some(self.name().to_owned()),
            namespace: self.identity.namespace.as_deref().map(str::to_owned),
            uid: Some(self.uid().to_owned()),
            ..ObjectReference::default()
        }
    }
}

#[derive(Default)]
pub(super) struct Graph {
    objects: HashMap<Arc<str>, Object>,
    dependents: HashMap<String, Dependents>,
}

/// The dependents of an object.
#[derive(Default)]
struct Dependents {
    /// By uid, whether the dependent blocks its owner's deletion.
    all: HashMap<Arc<str>, bool>,
    /// Number of blocking dependents: counted, since an owner of thousands is checked each time one of them is deleted.
    blocking: usize,
    /// Dependents that came when the owner was already in foreground deletion: they are synced when another one is deleted.
    late: Vec<String>,
}

impl Dependents {
    fn insert(&mut self, uid: Arc<str>, blocks: bool) {
        let before = self.all.insert(uid, blocks);
        self.blocking = self.blocking + usize::from(blocks) - usize::from(before == Some(true));
    }

    fn remove(&mut self, uid: &str) {
        self.blocking -= usize::from(self.all.remove(uid) == Some(true));
    }
}

/// Objects to sync after a change.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Work {
    pub deletions: Vec<String>,
    pub orphanings: Vec<String>,
}

impl Graph {
    /// The object, and whether it owns anything.
    pub fn get(&self, uid: &str) -> Option<(Object, bool)> {
        let object = self.objects.get(uid)?.clone();
        Some((object, self.dependents.contains_key(uid)))
    }

    pub fn dependents(&self, uid: &str) -> Vec<Object> {
        self.uids_of_dependents(uid).filter_map(|uid| self.objects.get(uid).cloned()).collect()
    }

    /// Dependents that block their owner's deletion.
    pub fn blocking_dependents(&self, uid: &str) -> Vec<String> {
        if !self.is_blocked(uid) {
            return Vec::new();
        }
        let all = self.dependents.get(uid).into_iter().flat_map(|dependents| &dependents.all);
        all.filter(|(_, blocks)| **blocks).map(|(uid, _)| uid.to_string()).collect()
    }

    pub fn has_deleting_dependent(&self, uid: &str) -> bool {
        self.uids_of_dependents(uid).any(|uid| self.objects.get(uid).is_some_and(Object::is_deleting_dependents))
    }

    fn uids_of_dependents(&self, uid: &str) -> impl Iterator<Item = &Arc<str>> {
        self.dependents.get(uid).into_iter().flat_map(|dependents| dependents.all.keys())
    }

    fn is_blocked(&self, uid: &str) -> bool {
        self.dependents.get(uid).is_some_and(|dependents| dependents.blocking > 0)
    }

    /// An owner in foreground deletion without blocking dependents.
    fn may_finish(&self, uid: &str) -> bool {
        self.objects.get(uid).is_some_and(Object::is_deleting_dependents) && !self.is_blocked(uid)
    }

    pub fn put(&mut self, object: Object) -> Work {
        let uid = object.identity.uid.clone();
        let old = self.objects.insert(uid.clone(), object.clone());
        let mut work = Work::default();
        if old.as_ref().is_none_or(|old| old.owners() != object.owners()) {
            for lost in old.as_ref().map(Object::owners).unwrap_or_default() {
                self.unlink(&lost.uid, &uid);
            }
            for gained in object.owners() {
                let blocks = gained.block_owner_deletion == Some(true);
                let is_late =
                    blocks && self.objects.get(gained.uid.as_str()).is_some_and(Object::is_deleting_dependents);
                let dependents = self.dependents.entry(gained.uid.clone()).or_default();
                dependents.insert(uid.clone(), blocks);
                if is_late {
                    dependents.late.push(uid.to_string());
                }
            }
            if !object.owners().iter().all(|owner| self.is_present(owner, object.namespace())) {
                work.deletions.push(uid.to_string());
            }
            for former in old.as_ref().map(Object::owners).unwrap_or_default() {
                self.go_on_with(&former.uid, &mut work);
            }
        }
        if object.is_orphaning() && old.as_ref().is_none_or(|old| !old.is_orphaning()) {
            work.orphanings.push(uid.to_string());
        }
        if object.is_deleting_dependents() {
            let starts = old.as_ref().is_none_or(|old| !old.is_deleting_dependents());
            if starts {
                work.deletions.extend(self.uids_of_dependents(&uid).map(|uid| uid.to_string()));
            }
            if starts || !self.is_blocked(&uid) {
                work.deletions.push(uid.to_string());
            }
        }
        work
    }

    fn is_present(&self, reference: &OwnerReference, from: &str) -> bool {
        self.objects.get(reference.uid.as_str()).is_some_and(|owner| owner.is_meant_by(reference, from))
    }

    /// A dependent that may have blocked its owner is gone: the owner may be deleted, or late dependents are next.
    fn go_on_with(&mut self, owner: &str, work: &mut Work) {
        if self.may_finish(owner) {
            work.deletions.push(owner.to_owned());
        } else if let Some(rest) = self.dependents.get_mut(owner) {
            work.deletions.append(&mut rest.late);
        }
    }

    pub fn remove(&mut self, uid: &str) -> Work {
        let mut work = Work::default();
        let Some(object) = self.objects.remove(uid) else { return work };
        for owner in object.owners() {
            self.unlink(&owner.uid, uid);
            self.go_on_with(&owner.uid, &mut work);
        }
        work.deletions.extend(self.uids_of_dependents(uid).map(|uid| uid.to_string()));
        work
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.all.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ApiResource;
    use serde_json::{Value, json};

    fn object(uid: &str, owners: &[&str], extra: Value) -> Object {
        let owners: Vec<Value> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "blockOwnerDeletion": true}))
            .collect();
        let mut metadata = json!({"name": uid, "namespace": "ns", "uid": uid, "ownerReferences": owners});
        for (key, value) in extra.as_object().cloned().unwrap_or_default() {
            metadata[key] = value;
        }
        let resource = ApiResource {
            group: String::new(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
        };
        let kind = Arc::new(Kind { resource, namespaced: true, verbs: Vec::new(), has_scale: false });
        Object::new(kind, &serde_json::from_value(metadata).unwrap())
    }

    fn deleting(finalizer: &str) -> Value {
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer]})
    }

    #[test]
    fn dependents_are_queued_when_their_owner_is_deleted() {
        let mut graph = Graph::default();
        assert_eq!(graph.put(object("owner", &[], json!({}))), Work::default());
        assert_eq!(graph.put(object("child", &["owner"], json!({}))), Work::default(), "its owner is there");
        assert_eq!(graph.put(object("lost", &["nobody"], json!({}))).deletions, ["lost"]);
        assert_eq!(graph.remove("owner").deletions, ["child"]);
        graph.remove("child");
        graph.remove("lost");
        assert!(graph.dependents.is_empty() && graph.objects.is_empty(), "nothing is kept for what is gone");
    }

    #[test]
    fn foreground_deletion_queues_dependents_and_then_the_owner() {
        let mut graph = Graph::default();
        graph.put(object("owner", &[], json!({})));
        graph.put(object("child", &["owner"], json!({})));
        let mut work = graph.put(object("owner", &[], deleting(FOREGROUND))).deletions;
        work.sort();
        assert_eq!(work, ["child", "owner"]);
        assert_eq!(graph.blocking_dependents("owner"), ["child"]);
        assert_eq!(graph.put(object("late", &["owner"], json!({}))), Work::default(), "until another one goes");
        assert_eq!(graph.put(object("owner", &[], deleting(FOREGROUND))), Work::default(), "it waits already");
        assert_eq!(graph.remove("child").deletions, ["late"], "it is in the way");
        assert_eq!(graph.remove("late").deletions, ["owner"]);
        assert_eq!(graph.put(object("owner", &[], deleting(FOREGROUND))).deletions, ["owner"]);
        assert!(graph.blocking_dependents("owner").is_empty());
    }

    #[test]
    fn orphaning_is_queued_once() {
        let mut graph = Graph::default();
        graph.put(object("child", &["owner"], json!({})));
        assert_eq!(graph.put(object("owner", &[], deleting(ORPHAN))).orphanings, ["owner"]);
        assert_eq!(graph.dependents("owner").len(), 1);
        assert_eq!(graph.put(object("owner", &[], deleting(ORPHAN))), Work::default());
        assert_eq!(graph.put(object("child", &[], json!({}))), Work::default());
        assert!(graph.dependents("owner").is_empty());
    }

    #[test]
    fn a_reference_must_name_its_owner() {
        let owner = object("owner", &[], json!({}));
        let reference = object("child", &["owner"], json!({})).owners()[0].clone();
        assert!(owner.is_meant_by(&reference, "ns"));
        assert!(!owner.is_meant_by(&reference, "elsewhere"));
        assert!(!owner.is_meant_by(&OwnerReference { kind: "Secret".into(), ..reference }, "ns"));
    }
}
