//! PodNodeSelector: pods get the node selector of their namespace, and may use no labels outside its list.

use std::collections::BTreeMap;

use async_trait::async_trait;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::{Read, Write as _};
use serde_json::{Map, Value};

use super::enabled::unversioned;
use super::{Plugin, Write};
use crate::object_reader::ObjectReader;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// Selectors by namespace, and the default of the cluster.
#[derive(Clone, Debug, Default)]
pub struct PodNodeSelector(BTreeMap<String, String>);

impl PodNodeSelector {
    /// Reads `{podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b, namespace: c=d}}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document = unversioned(text)?;
        let selectors = document.fields(&["podNodeSelectorPluginConfig"]).into_iter().flatten();
        let read = |(name, selector): (&String, &Value)| Some((name.clone(), selector.as_str()?.to_owned()));
        Ok(PodNodeSelector(selectors.filter_map(read).collect()))
    }

    fn of_namespace(&self, write: &Write<'_>, objects: &dyn ObjectReader) -> Result<Labels, Status> {
        let Some(namespace) = objects.read("", "namespaces", "", write.namespace)? else {
            return Err(Status::not_found(GroupResource { group: "", name: "namespaces" }, write.namespace));
        };
        let annotation = namespace.at(&["metadata", "annotations", ANNOTATION]).as_str();
        let selector = annotation.or_else(|| self.0.get(DEFAULT).map(String::as_str)).unwrap_or_default();
        parse_labels(selector).map_err(Status::internal)
    }

    fn check(&self, write: &Write<'_>, own: &Labels) -> Result<(), Status> {
        let pod = node_selector(write.object);
        if own.iter().any(|(key, value)| pod.get(key).is_some_and(|other| other != value)) {
            return Err(write.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        let allowed = self.0.get(write.namespace).map(String::as_str).unwrap_or_default();
        let allowed = parse_labels(allowed).map_err(Status::internal)?;
        if !allowed.is_empty() && !pod.iter().all(|(key, value)| allowed.get(key) == Some(value)) {
            return Err(write.forbidden("pod node label selector labels conflict with its namespace whitelist"));
        }
        Ok(())
    }
}

fn node_selector(pod: &Value) -> Labels {
    let labels = pod.fields(&["spec", "nodeSelector"]).into_iter().flatten();
    labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

/// Reads `a=b,c=d`.
fn parse_labels(selector: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    for pair in selector.split(',').filter(|_| !selector.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else { return Err(format!("invalid selector: [{pair}]")) };
        let (key, value) = (key.trim(), value.trim());
        let problems = [knarr_api::names::qualified_name(key), knarr_api::names::label_value(value)].concat();
        if let Some(problem) = problems.first() {
            return Err(problem.clone());
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    Ok(labels)
}

#[async_trait]
impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates("", "pods")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let own = self.of_namespace(write, objects)?;
        // A conflict is found before the pod is changed.
        let pod = node_selector(write.object);
        if own.iter().any(|(key, value)| pod.get(key).is_some_and(|other| other != value)) {
            return Err(write.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        if !own.is_empty() {
            let merged: Map<String, Value> =
                own.iter().chain(&pod).map(|(key, value)| (key.clone(), value.as_str().into())).collect();
            write.object.set(&["spec", "nodeSelector"], merged);
        }
        self.check(write, &own)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let own = self.of_namespace(write, objects)?;
        self.check(write, &own)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operation;
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn pods_get_the_selector_of_their_namespace() {
        let plugin = PodNodeSelector::parse(
            "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: 'zone=a', listed: 'zone=a,disk=fast'}",
        )
        .unwrap();
        let namespace = |name: &str, annotations: Value| {
            ("", "namespaces", json!({"metadata": {"name": name, "annotations": annotations}}))
        };
        let objects = Fixed::new(vec![
            namespace("plain", json!({})),
            namespace("own", json!({ANNOTATION: "team=x"})),
            namespace("broken", json!({ANNOTATION: "team"})),
            namespace("listed", json!({})),
        ]);
        const CONFLICT: &str = "pods \"p\" is forbidden: pod node label selector conflicts with its namespace node label \
                                selector";
        const LISTED: &str =
            "pods \"p\" is forbidden: pod node label selector labels conflict with its namespace whitelist";
        for (namespace, selector, expected) in [
            ("plain", json!({}), Ok(json!({"zone": "a"}))),
            ("plain", json!({"disk": "slow"}), Ok(json!({"zone": "a", "disk": "slow"}))),
            ("plain", json!({"zone": "b"}), Err(CONFLICT)),
            ("own", json!({}), Ok(json!({"team": "x"}))),
            ("listed", json!({"disk": "fast"}), Ok(json!({"zone": "a", "disk": "fast"}))),
            ("listed", json!({"disk": "slow"}), Err(LISTED)),
            ("broken", json!({}), Err("Internal error occurred: invalid selector: [team]")),
        ] {
            let pod = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
                             "spec": {"nodeSelector": selector}});
            let outcome = run(&plugin, Operation::Create, ("", "pods"), pod, None, &objects).await;
            let outcome = outcome.map(|pod| pod["spec"]["nodeSelector"].clone());
            assert_eq!(outcome, expected.map_err(str::to_owned), "{namespace}");
        }
    }
}
