//! The objects that a diagnosis is based on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::Value;

/// An object, and the objects around it by the plural name of their kind. A list that could not be read is absent, which
/// is not the same as empty: no conclusion is drawn from it.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The object to diagnose.
    pub object: Value,
    /// The time of the diagnosis.
    pub now: Timestamp,
    /// All objects of the cluster by kind.
    pub lists: BTreeMap<String, Vec<Value>>,
    /// The kinds of which only a part was listed.
    pub incomplete: BTreeSet<String>,
    /// The last log lines of terminated containers, by namespace, pod and container.
    pub logs: BTreeMap<(String, String, String), Vec<String>>,
}

/// The kinds that are used, with the path that lists them in all namespaces.
const NEEDED: &[(&str, &str)] = &[
    ("pods", "/api/v1/pods"),
    ("nodes", "/api/v1/nodes"),
    ("events", "/api/v1/events"),
    ("services", "/api/v1/services"),
    ("configmaps", "/api/v1/configmaps"),
    ("secrets", "/api/v1/secrets"),
    ("serviceaccounts", "/api/v1/serviceaccounts"),
    ("resourcequotas", "/api/v1/resourcequotas"),
    ("persistentvolumeclaims", "/api/v1/persistentvolumeclaims"),
    ("persistentvolumes", "/api/v1/persistentvolumes"),
    ("replicasets", "/apis/apps/v1/replicasets"),
    ("jobs", "/apis/batch/v1/jobs"),
    ("storageclasses", "/apis/storage.k8s.io/v1/storageclasses"),
    ("csidrivers", "/apis/storage.k8s.io/v1/csidrivers"),
    ("csinodes", "/apis/storage.k8s.io/v1/csinodes"),
    ("csistoragecapacities", "/apis/storage.k8s.io/v1/csistoragecapacities"),
    ("endpointslices", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("networkpolicies", "/apis/networking.k8s.io/v1/networkpolicies"),
    ("ingressclasses", "/apis/networking.k8s.io/v1/ingressclasses"),
];

/// The kinds whose objects are in no namespace.
const CLUSTER_SCOPED: [&str; 6] =
    ["nodes", "persistentvolumes", "storageclasses", "csidrivers", "csinodes", "ingressclasses"];

/// The kinds of which objects in other namespaces matter, too: pods share nodes, and drivers publish capacities in
/// namespaces of their own.
const SHARED: [&str; 2] = ["pods", "csistoragecapacities"];

impl Evidence {
    /// The kinds to list, with the path that lists them in all namespaces.
    pub fn needed() -> &'static [(&'static str, &'static str)] {
        NEEDED
    }

    /// The paths to list a kind for a diagnosis in one namespace, or in all if it is empty. A user may be allowed to read
    /// only the first, which is enough for most diagnoses.
    pub fn paths(plural: &str, everywhere: &str, namespace: &str) -> Vec<String> {
        let Some((root, _)) = everywhere.rsplit_once('/').filter(|_| !namespace.is_empty()) else {
            return vec![everywhere.to_owned()];
        };
        if CLUSTER_SCOPED.contains(&plural) {
            return vec![everywhere.to_owned()];
        }
        let mut paths = vec![format!("{root}/namespaces/{namespace}/{plural}")];
        if SHARED.contains(&plural) {
            paths.push(everywhere.to_owned());
        }
        paths
    }

    /// Joins what the [paths](Evidence::paths) of one kind list: the namespace, and what is in others.
    pub fn join(own: Vec<Value>, everywhere: Vec<Value>, namespace: &str) -> Vec<Value> {
        let is_other = |object: &Value| object.text(&["metadata", "namespace"]) != namespace;
        own.into_iter().chain(everywhere.into_iter().filter(is_other)).collect()
    }

    /// The kind of the object to diagnose.
    pub fn kind(&self) -> &str {
        self.object.text(&["kind"])
    }

    /// All known objects of a kind.
    pub(crate) fn all(&self, plural: &str) -> &[Value] {
        self.lists.get(plural).map_or(&[], Vec::as_slice)
    }

    /// The objects of a kind in a namespace.
    pub(crate) fn within<'a>(&'a self, plural: &str, namespace: &'a str) -> impl Iterator<Item = &'a Value> {
        self.all(plural).iter().filter(move |object| object.text(&["metadata", "namespace"]) == namespace)
    }

    pub(crate) fn find(&self, plural: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.all(plural).iter().find(|object| {
            object.text(&["metadata", "namespace"]) == namespace && object.text(&["metadata", "name"]) == name
        })
    }

    /// Whether an object certainly does not exist: its kind was listed whole, without it.
    pub(crate) fn lacks(&self, plural: &str, namespace: &str, name: &str) -> bool {
        self.lists.contains_key(plural)
            && !self.incomplete.contains(plural)
            && self.find(plural, namespace, name).is_none()
    }

    /// The last log lines of a container.
    pub(crate) fn log(&self, pod: &Value, container: &str) -> &[String] {
        let key = (pod.text(&["metadata", "namespace"]), pod.text(&["metadata", "name"]), container);
        let key = (key.0.to_owned(), key.1.to_owned(), key.2.to_owned());
        self.logs.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The newest event with one of these reasons about an object.
    pub(crate) fn event(&self, about: &Value, reasons: &[&str]) -> Option<&Value> {
        self.events(about, reasons).pop()
    }

    /// Events with one of these reasons about an object, oldest first.
    pub(crate) fn events(&self, about: &Value, reasons: &[&str]) -> Vec<&Value> {
        let uid = about.text(&["metadata", "uid"]);
        let name = about.text(&["metadata", "name"]);
        let namespace = about.text(&["metadata", "namespace"]);
        let concerns = |event: &&Value| {
            let involved = event.at(&["involvedObject"]);
            event.text(&["metadata", "namespace"]) == namespace
                && involved.text(&["name"]) == name
                && (uid.is_empty() || involved.text(&["uid"]) == uid)
                && reasons.contains(&event.text(&["reason"]))
        };
        let mut found: Vec<&Value> = self.all("events").iter().filter(concerns).collect();
        found.sort_by_key(|event| last_seen(event));
        found
    }
}

fn last_seen(event: &Value) -> &str {
    let times =
        [event.text(&["lastTimestamp"]), event.text(&["series", "lastObservedTime"]), event.text(&["eventTime"])];
    times.into_iter().find(|time| !time.is_empty()).unwrap_or_default()
}

/// An event as a line of evidence.
pub(crate) fn quote(event: &Value) -> String {
    let message = event.text(&["message"]);
    let message = if message.is_empty() { event.text(&["note"]) } else { message };
    format!("event {}: {message}", event.text(&["reason"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diagnosis_in_a_namespace_reads_that_namespace() {
        for (plural, everywhere, namespace, expected) in [
            ("pods", "/api/v1/pods", "", vec!["/api/v1/pods"]),
            ("pods", "/api/v1/pods", "shop", vec!["/api/v1/namespaces/shop/pods", "/api/v1/pods"]),
            ("nodes", "/api/v1/nodes", "shop", vec!["/api/v1/nodes"]),
            ("jobs", "/apis/batch/v1/jobs", "shop", vec!["/apis/batch/v1/namespaces/shop/jobs"]),
        ] {
            assert_eq!(Evidence::paths(plural, everywhere, namespace), expected);
        }
    }

    #[test]
    fn what_two_lists_have_counts_once() {
        let pod = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let joined = Evidence::join(vec![pod("shop", "a")], vec![pod("shop", "a"), pod("other", "b")], "shop");
        assert_eq!(joined, [pod("shop", "a"), pod("other", "b")]);
    }
}
