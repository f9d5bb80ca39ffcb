//! Distributes endpoints over slices with as few writes as possible.
//!
//! Slices hold endpoints of one address family and one list of ports. Endpoints that are still desired stay in their slice;
//! new ones go first into slices that change anyway, then into one with just enough room, then into new slices.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// One endpoint, its family and ports.
#[derive(Clone, Debug)]
pub(super) struct Desired {
    pub family: &'static str,
    /// Shared by endpoints with equal ports: a Service may have thousands of both.
    pub ports: Arc<[EndpointPort]>,
    pub endpoint: Endpoint,
}

/// The owner of the slices.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    pub namespace: String,
    /// The service's name.
    pub name: String,
    pub owner: OwnerReference,
    pub labels: BTreeMap<String, String>,
    /// Annotations that slices must have, if any.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Annotations of written slices; if only they differ, nothing is written.
    pub written_annotations: BTreeMap<String, String>,
    pub is_leaving: bool,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
}

/// With `placeholder`, a family without endpoints keeps one empty slice, so that consumers know it was processed.
pub(super) fn plan(
    parent: &Parent,
    families: &[&'static str],
    desired: Vec<Desired>,
    existing: &[Arc<EndpointSlice>],
    max: usize,
    placeholder: bool,
) -> Changes {
    let mut changes = Changes::default();
    let (retained, foreign): (Vec<_>, Vec<_>) =
        existing.iter().cloned().partition(|slice| families.contains(&slice.address_type.as_str()));
    changes.delete.extend(foreign);
    for family in families {
        let pending = desired.iter().filter(|each| each.family == *family);
        let present: Vec<_> = retained.iter().filter(|slice| slice.address_type == *family).cloned().collect();
        let part = plan_family(parent, family, pending, &present, max, placeholder);
        changes.create.extend(part.create);
        changes.update.extend(part.update);
        changes.delete.extend(part.delete);
    }
    if parent.is_leaving {
        changes.create.clear();
    }
    for slice in changes.create.iter_mut().chain(&mut changes.update) {
        let annotations = slice.metadata.annotations.get_or_insert_default();
        annotations.remove(crate::common::service_pods::TRIGGER_TIME);
        annotations.extend(parent.written_annotations.clone());
    }
    changes
}

type Ports = Vec<(String, i32, String, String)>;

/// The identity of an endpoint: addresses, name and target.
pub(super) type Identity = (Vec<String>, String, String, String);

fn plan_family<'a>(
    parent: &Parent,
    family: &'static str,
    desired: impl Iterator<Item = &'a Desired>,
    existing: &[Arc<EndpointSlice>],
    max: usize,
    placeholder: bool,
) -> Changes {
    // Ports are compared once for each list of them, and not for each endpoint.
    let mut by_list: BTreeMap<*const EndpointPort, (Arc<[EndpointPort]>, BTreeMap<Identity, Endpoint>)> =
        BTreeMap::new();
    for each in desired {
        let list = by_list.entry(each.ports.as_ptr()).or_insert_with(|| (each.ports.clone(), BTreeMap::new()));
        list.1.insert(identity(&each.endpoint), each.endpoint.clone());
    }
    let mut pending: BTreeMap<Ports, (Arc<[EndpointPort]>, BTreeMap<Identity, Endpoint>)> = BTreeMap::new();
    for (ports, endpoints) in by_list.into_values() {
        let entry = pending.entry(ports_key(&ports)).or_insert_with(|| (ports, BTreeMap::new()));
        entry.1.extend(endpoints);
    }
    let mut changes = Changes::default();
    let mut present: BTreeMap<Ports, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let owned = slice.metadata.owner_references.iter().flatten().any(|owner| owner.uid == parent.owner.uid);
        if owned {
            present.entry(ports_key(slice.ports.as_deref().unwrap_or_default())).or_default().push(slice.clone());
        } else {
            changes.delete.push(slice.clone());
        }
    }
    for (key, (ports, endpoints)) in pending {
        let slices = present.remove(&key).unwrap_or_default();
        let part = plan_ports(parent, family, &ports, endpoints, &slices, max);
        changes.create.extend(part.create);
        changes.update.extend(part.update);
        changes.delete.extend(part.delete);
    }
    changes.delete.extend(present.into_values().flatten());
    if placeholder && changes.create.is_empty() && changes.delete.len() == existing.len() {
        keep_placeholder(parent, family, &mut changes);
    }
    reuse_deleted(parent, &mut changes);
    changes
}

fn keep_placeholder(parent: &Parent, family: &'static str, changes: &mut Changes) {
    let empty = new_slice(parent, family, &[]);
    let is_it = |slice: &EndpointSlice| {
        slice.endpoints.as_ref().is_none_or(Vec::is_empty)
            && slice.ports.as_ref().is_none_or(Vec::is_empty)
            && slice.metadata.labels == empty.metadata.labels
            && slice.metadata.owner_references == empty.metadata.owner_references
    };
    match changes.delete.as_slice() {
        [only] if is_it(only) => changes.delete.clear(),
        _ => changes.create.push(empty),
    }
}

/// A slice to be deleted is reused for one to be created: one write instead of two, and consumers always see one.
fn reuse_deleted(parent: &Parent, changes: &mut Changes) {
    let owned = |slice: &EndpointSlice| {
        slice.metadata.owner_references.iter().flatten().any(|owner| owner.uid == parent.owner.uid)
    };
    let mut retained = Vec::new();
    for old in std::mem::take(&mut changes.delete) {
        match changes.create.pop() {
            Some(new) if owned(&old) && old.address_type == new.address_type => {
                let mut metadata = old.metadata.clone();
                metadata.labels = new.metadata.labels.clone();
                changes.update.push(EndpointSlice { metadata, ..new });
            }
            unused => {
                changes.create.extend(unused);
                retained.push(old);
            }
        }
    }
    changes.delete = retained;
}

fn plan_ports(
    parent: &Parent,
    family: &'static str,
    ports: &[EndpointPort],
    mut pending: BTreeMap<Identity, Endpoint>,
    existing: &[Arc<EndpointSlice>],
    max: usize,
) -> Changes {
    let mut changes = Changes::default();
    let mut unchanged: Vec<Arc<EndpointSlice>> = Vec::new();
    for slice in existing {
        let before = slice.endpoints.as_deref().unwrap_or_default();
        let retained: Vec<Endpoint> =
            before.iter().filter_map(|endpoint| pending.remove(&identity(endpoint))).collect();
        let same_endpoints =
            retained.len() == before.len() && retained.iter().zip(before).all(|(new, old)| same(new, old));
        let same_labels = slice.metadata.labels.as_ref() == Some(&parent.labels);
        let same_annotations = parent
            .annotations
            .as_ref()
            .is_none_or(|pending| slice.metadata.annotations.clone().unwrap_or_default() == *pending);
        if same_endpoints && same_labels && same_annotations {
            unchanged.push(slice.clone());
        } else if retained.is_empty() {
            changes.delete.push(slice.clone());
        } else {
            changes.update.push(changed(parent, slice, retained));
        }
    }
    let mut rest: Vec<Endpoint> = pending.into_values().collect();
    changes.update.sort_by_key(|slice| std::cmp::Reverse(size(slice)));
    for slice in &mut changes.update {
        fill(slice, &mut rest, max);
    }
    while !rest.is_empty() {
        match closest_fit(&unchanged, rest.len(), max) {
            Some(at) => {
                let slice = unchanged.remove(at);
                let mut filled = changed(parent, &slice, slice.endpoints.clone().unwrap_or_default());
                fill(&mut filled, &mut rest, max);
                changes.update.push(filled);
            }
            None => {
                let mut slice = new_slice(parent, family, ports);
                fill(&mut slice, &mut rest, max);
                changes.create.push(slice);
            }
        }
    }
    changes
}

/// The unchanged slice that the rest fits into with the least free room.
fn closest_fit(slices: &[Arc<EndpointSlice>], rest: usize, max: usize) -> Option<usize> {
    if rest >= max {
        return None;
    }
    let fitting = slices.iter().enumerate().filter(|(_, slice)| size(slice) + rest <= max);
    fitting.max_by_key(|(_, slice)| size(slice)).map(|(at, _)| at)
}

fn size(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

fn fill(slice: &mut EndpointSlice, rest: &mut Vec<Endpoint>, max: usize) {
    let endpoints = slice.endpoints.get_or_insert_default();
    let room = max.saturating_sub(endpoints.len()).min(rest.len());
    endpoints.extend(rest.drain(..room));
}

fn changed(parent: &Parent, slice: &EndpointSlice, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let mut slice = slice.clone();
    slice.endpoints = Some(endpoints);
    slice.metadata.labels = Some(parent.labels.clone());
    if let Some(annotations) = &parent.annotations {
        slice.metadata.annotations = Some(annotations.clone());
    }
    slice
}

fn new_slice(parent: &Parent, family: &str, ports: &[EndpointPort]) -> EndpointSlice {
    EndpointSlice {
        address_type: family.to_owned(),
        endpoints: None,
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", parent.name)),
            namespace: Some(parent.namespace.clone()),
            labels: Some(parent.labels.clone()),
            annotations: parent.annotations.clone(),
            owner_references: Some(vec![parent.owner.clone()]),
            ..ObjectMeta::default()
        },
        ports: (!ports.is_empty()).then(|| ports.to_vec()),
    }
}

fn ports_key(ports: &[EndpointPort]) -> Ports {
    let mut key: Ports = ports
        .iter()
        .map(|port| {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            (text(&port.name), port.port.unwrap_or(0), text(&port.protocol), text(&port.app_protocol))
        })
        .collect();
    key.sort();
    key
}

pub(super) fn identity(endpoint: &Endpoint) -> Identity {
    let mut addresses = endpoint.addresses.clone();
    addresses.sort();
    let target = endpoint.target_ref.as_ref();
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    (
        addresses,
        text(endpoint.hostname.as_ref()),
        text(target.and_then(|target| target.namespace.as_ref())),
        text(target.and_then(|target| target.name.as_ref())),
    )
}

fn same(new: &Endpoint, old: &Endpoint) -> bool {
    let target = |endpoint: &Endpoint| {
        endpoint.target_ref.clone().map(|mut target| {
            target.resource_version = None;
            target
        })
    };
    new.node_name == old.node_name
        && new.zone == old.zone
        && new.conditions == old.conditions
        && new.hints == old.hints
        && target(new) == target(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent() -> Parent {
        Parent {
            namespace: "ns".into(),
            name: "s".into(),
            owner: OwnerReference { uid: "u".into(), ..OwnerReference::default() },
            labels: [("kubernetes.io/service-name".to_owned(), "s".to_owned())].into(),
            annotations: None,
            written_annotations: BTreeMap::new(),
            is_leaving: false,
        }
    }

    fn pending(range: std::ops::Range<u32>) -> Vec<Desired> {
        let port = EndpointPort { port: Some(80), ..EndpointPort::default() };
        range
            .map(|n| Desired {
                family: "IPv4",
                ports: [port.clone()].into(),
                endpoint: Endpoint { addresses: vec![format!("10.0.0.{n:03}")], ..Endpoint::default() },
            })
            .collect()
    }

    fn stored(slices: Vec<EndpointSlice>) -> Vec<Arc<EndpointSlice>> {
        let named = slices.into_iter().enumerate().map(|(n, mut slice)| {
            slice.metadata.name = Some(format!("s-{n}"));
            Arc::new(slice)
        });
        named.collect()
    }

    fn counts(changes: &Changes) -> (usize, usize, usize) {
        (changes.create.len(), changes.update.len(), changes.delete.len())
    }

    #[test]
    fn endpoints_fill_slices() {
        let first = plan(&parent(), &["IPv4"], pending(0..25), &[], 10, true);
        assert_eq!(first.create.iter().map(size).collect::<Vec<_>>(), [10, 10, 5]);
        let existing = stored(first.create);
        assert_eq!(counts(&plan(&parent(), &["IPv4"], pending(0..25), &existing, 10, true)), (0, 0, 0));
        let more = plan(&parent(), &["IPv4"], pending(0..28), &existing, 10, true);
        assert_eq!(counts(&more), (0, 1, 0), "the slice with room is filled");
        let moved = plan(&parent(), &["IPv4"], pending(2..27), &existing, 10, true);
        assert_eq!(counts(&moved), (0, 1, 0), "new ones take the places of old ones");
        let fewer = plan(&parent(), &["IPv4"], pending(0..20), &existing, 10, true);
        assert_eq!(counts(&fewer), (0, 0, 1));
    }

    #[test]
    fn a_family_without_endpoints_keeps_an_empty_slice() {
        let none = plan(&parent(), &["IPv4"], Vec::new(), &[], 10, true);
        assert_eq!(counts(&none), (1, 0, 0));
        assert!(none.create[0].endpoints.is_none() && none.create[0].ports.is_none());
        let existing = stored(none.create);
        assert_eq!(counts(&plan(&parent(), &["IPv4"], Vec::new(), &existing, 10, true)), (0, 0, 0));
        let filled = plan(&parent(), &["IPv4"], pending(0..1), &existing, 10, true);
        assert_eq!(counts(&filled), (0, 1, 0), "the empty slice is reused");
        let gone = plan(&parent(), &["IPv6"], Vec::new(), &existing, 10, true);
        assert_eq!(counts(&gone), (1, 0, 1), "slices of a family no longer served go");
    }

    #[test]
    fn foreign_slices_and_those_of_a_deleted_service_are_removed() {
        let mut other = plan(&parent(), &["IPv4"], pending(0..3), &[], 10, true).create;
        other[0].metadata.owner_references = None;
        let replaced = plan(&parent(), &["IPv4"], pending(0..3), &stored(other), 10, true);
        assert_eq!(counts(&replaced), (1, 0, 1));
        let leaving = Parent { is_leaving: true, ..parent() };
        assert_eq!(counts(&plan(&leaving, &["IPv4"], pending(0..3), &[], 10, true)), (0, 0, 0));
    }
}
