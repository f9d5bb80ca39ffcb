//! Services and the workloads that own pods, as far as they define which pods are alike: pods without their own spread
//! constraints are spread by them.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use knarr_client::owner::controller_of;

use super::labels::Labels;
use super::storage::object_key;

#[derive(Default)]
pub struct Workloads {
    /// Services with a selector, by namespace and name.
    services: HashMap<String, HashMap<String, Arc<Service>>>,
    replica_sets: HashMap<String, Arc<ReplicaSet>>,
    stateful_sets: HashMap<String, Arc<StatefulSet>>,
    replication_controllers: HashMap<String, Arc<ReplicationController>>,
}

fn service_selector(service: &Service) -> Option<&Labels> {
    service.spec.as_ref().and_then(|spec| spec.selector.as_ref())
}

impl Workloads {
    /// The selector of similar pods: combined from the services that select the pod and the workload that owns it.
    /// `None` when there is neither.
    pub fn selector_of(&self, pod: &Pod) -> Option<LabelSelector> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut selector = LabelSelector::default();
        for service in self.services.get(namespace).into_iter().flat_map(HashMap::values) {
            if let Some(required) = service_selector(service)
                && has_all(pod.metadata.labels.as_ref(), required)
            {
                selector.match_labels.get_or_insert_default().extend(required.clone());
            }
        }
        if let Some(owner) = controller_of(&pod.metadata) {
            let key = format!("{namespace}/{}", owner.name);
            match (owner.api_version.as_str(), owner.kind.as_str()) {
                ("v1", "ReplicationController") => {
                    let controller = self.replication_controllers.get(&key);
                    let required = controller.and_then(|found| found.spec.as_ref()?.selector.clone());
                    selector.match_labels.get_or_insert_default().extend(required.unwrap_or_default());
                }
                ("apps/v1", "ReplicaSet") => {
                    narrow(
                        &mut selector,
                        self.replica_sets.get(&key).and_then(|set| Some(&set.spec.as_ref()?.selector)),
                    );
                }
                ("apps/v1", "StatefulSet") => {
                    let set = self.stateful_sets.get(&key);
                    narrow(&mut selector, set.and_then(|set| Some(&set.spec.as_ref()?.selector)));
                }
                _ => {}
            }
        }
        let is_empty = selector.match_labels.as_ref().is_none_or(Labels::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
        (!is_empty).then_some(selector)
    }

    pub fn set_service(&mut self, old: Option<&Arc<Service>>, new: Option<&Arc<Service>>) {
        let place = |metadata: &ObjectMeta| {
            (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
        };
        if let Some(old) = old {
            let (namespace, name) = place(&old.metadata);
            if let Some(services) = self.services.get_mut(&namespace) {
                services.remove(&name);
                if services.is_empty() {
                    self.services.remove(&namespace);
                }
            }
        }
        if let Some(new) = new.filter(|new| service_selector(new).is_some()) {
            let (namespace, name) = place(&new.metadata);
            self.services.entry(namespace).or_default().insert(name, Arc::clone(new));
        }
    }

    pub fn set_replica_set(&mut self, old: Option<&Arc<ReplicaSet>>, new: Option<&Arc<ReplicaSet>>) {
        replace(&mut self.replica_sets, old.map(|old| &old.metadata), new, |new| &new.metadata);
    }

    pub fn set_stateful_set(&mut self, old: Option<&Arc<StatefulSet>>, new: Option<&Arc<StatefulSet>>) {
        replace(&mut self.stateful_sets, old.map(|old| &old.metadata), new, |new| &new.metadata);
    }

    pub fn set_replication_controller(
        &mut self,
        old: Option<&Arc<ReplicationController>>,
        new: Option<&Arc<ReplicationController>>,
    ) {
        replace(&mut self.replication_controllers, old.map(|old| &old.metadata), new, |new| &new.metadata);
    }
}

fn replace<K>(
    all: &mut HashMap<String, Arc<K>>,
    old: Option<&ObjectMeta>,
    new: Option<&Arc<K>>,
    metadata: fn(&K) -> &ObjectMeta,
) {
    match (old, new) {
        (_, Some(new)) => {
            all.insert(object_key(metadata(new)), Arc::clone(new));
        }
        (Some(old), None) => {
            all.remove(&object_key(old));
        }
        (None, None) => {}
    }
}

fn has_all(labels: Option<&Labels>, required: &Labels) -> bool {
    required.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

fn narrow(selector: &mut LabelSelector, by: Option<&LabelSelector>) {
    let Some(by) = by else { return };
    for (key, value) in by.match_labels.iter().flatten() {
        let labels = selector.match_labels.get_or_insert_default();
        match labels.get(key) {
            None => {
                labels.insert(key.clone(), value.clone());
            }
            Some(own) if own == value => {}
            Some(_) => selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: key.clone(),
                operator: "In".to_owned(),
                values: Some(vec![value.clone()]),
            }),
        }
    }
    selector.match_expressions.get_or_insert_default().extend(by.match_expressions.iter().flatten().cloned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn services_and_owners_define_similar_pods() {
        let mut workloads = Workloads::default();
        workloads.set_service(
            None,
            Some(&object(json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"selector": {"app": "a"}}}))),
        );
        workloads.set_replica_set(
            None,
            Some(&object(json!({"metadata": {"namespace": "n", "name": "r"}, "spec": {"selector":
                {"matchLabels": {"hash": "1"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}}}))),
        );
        let pod = |namespace: &str, labels: Value, owner: Value| -> Arc<Pod> {
            object(json!({"metadata": {"namespace": namespace, "labels": labels, "ownerReferences": owner}}))
        };
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
        let labels = |selector: &LabelSelector| selector.match_labels.clone().unwrap_or_default().len();
        let expressions = |selector: &LabelSelector| selector.match_expressions.clone().unwrap_or_default().len();
        for (pod, expected) in [
            (pod("n", json!({"app": "a"}), json!([])), Some((1, 0))),
            (pod("n", json!({"app": "a"}), owner.clone()), Some((2, 1))),
            (pod("n", json!({"app": "b"}), owner), Some((1, 1))),
            (pod("other", json!({"app": "a"}), json!([])), None),
        ] {
            let found = workloads.selector_of(&pod);
            assert_eq!(found.map(|found| (labels(&found), expressions(&found))), expected, "{pod:?}");
        }
    }
}
