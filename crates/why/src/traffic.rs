//! Ready pods, and whether they can be reached through a Service.

use knarr_api::selector::LabelSelector;
use knarr_api::value::Read;
use serde_json::{Map, Value};

use crate::Finding;
use crate::evidence::Evidence;

/// Diagnoses why a ready pod may not be reachable.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let services: Vec<&Value> =
        evidence.within("services", namespace).filter(|service| selects(service, pod)).collect();
    if services.is_empty() {
        return nearly_selecting(evidence, pod).into_iter().collect();
    }
    let mut findings: Vec<Finding> = services
        .iter()
        .filter_map(|service| wrong_port(pod, service).or_else(|| unpublished(evidence, pod, service)))
        .collect();
    findings.extend(isolated(evidence, pod));
    findings
}

/// Whether a Service selects a pod.
pub fn selects(service: &Value, pod: &Value) -> bool {
    service
        .fields(&["spec", "selector"])
        .is_some_and(|selector| !selector.is_empty() && differing(selector, pod).is_empty())
}

/// The labels that a selector requires and a pod does not have.
pub fn differing<'a>(selector: &'a Map<String, Value>, pod: &Value) -> Vec<(&'a String, &'a Value)> {
    selector.iter().filter(|(key, value)| pod.at(&["metadata", "labels"]).get(*key) != Some(*value)).collect()
}

/// A Service without pods whose selector differs from the pod in one label only.
fn nearly_selecting(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let (namespace, pod_name) = (pod.text(&["metadata", "namespace"]), pod.text(&["metadata", "name"]));
    let labels = pod.fields(&["metadata", "labels"])?;
    evidence.within("services", namespace).find_map(|service| {
        let selector = service.fields(&["spec", "selector"])?;
        let [(key, expected)] = differing(selector, pod)[..] else { return None };
        let has = labels.get(key).and_then(Value::as_str);
        let name = service.text(&["metadata", "name"]);
        let expected = expected.as_str().unwrap_or_default();
        // A single label that differs says nothing: most Services are for other pods. The name says for which.
        let is_named_alike = pod_name.starts_with(name) || labels.values().any(|value| value == name);
        let is_meant = selector.len() > 1 || is_named_alike;
        let has_pods = || evidence.within("pods", namespace).any(|other| selects(service, other));
        (is_meant && !has_pods()).then(|| {
            Finding::new(
                format!("the Service {name} does not select it"),
                vec![format!(
                    "{name} selects {key}={expected}, the pod has {}",
                    has.map_or_else(|| format!("no label {key}"), |has| format!("{key}={has}"))
                )],
                format!(
                    "give the pods (in their template) the label {key}={expected}, or change the Service's selector"
                ),
            )
        })
    })
}

/// A port of a Service that the pod does not have.
pub fn wrong_port(pod: &Value, service: &Value) -> Option<Finding> {
    let name = service.text(&["metadata", "name"]);
    let declared: Vec<&Value> =
        pod.items(&["spec", "containers"]).iter().flat_map(|container| container.items(&["ports"])).collect();
    for port in service.items(&["spec", "ports"]) {
        let target = port.at(&["targetPort"]);
        if let Some(target_name) = target.as_str()
            && !declared.iter().any(|own| own.text(&["name"]) == target_name)
        {
            return Some(Finding::new(
                format!("the Service {name} routes to the port {target_name:?}, which no container of the pod has"),
                vec![format!(
                    "spec.ports of {name} has targetPort {target_name}; the pod declares {}",
                    names(&declared)
                )],
                "give the container's port this name, or use its number in targetPort",
            ));
        }
        let number = target.as_i64().or_else(|| port.integer(&["port"]));
        if let Some(number) = number.filter(|_| target.as_str().is_none())
            && !declared.is_empty()
            && !declared.iter().any(|own| own.integer(&["containerPort"]) == Some(number))
        {
            return Some(Finding::new(
                format!("the Service {name} routes to port {number}, which the pod does not declare"),
                vec![format!("targetPort is {number}; the pod's containers declare {}", names(&declared))],
                "set targetPort to the port the program listens on",
            ));
        }
    }
    None
}

fn names(ports: &[&Value]) -> String {
    let all: Vec<String> = ports
        .iter()
        .map(|port| {
            format!("{} {}", port.integer(&["containerPort"]).unwrap_or_default(), port.text(&["name"]))
                .trim_end()
                .to_owned()
        })
        .collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

fn unpublished(evidence: &Evidence, pod: &Value, service: &Value) -> Option<Finding> {
    let (namespace, name) = (service.text(&["metadata", "namespace"]), service.text(&["metadata", "name"]));
    if !evidence.lists.contains_key("endpointslices") {
        return None;
    }
    let slices = evidence
        .within("endpointslices", namespace)
        .filter(|slice| slice.text(&["metadata", "labels", "kubernetes.io/service-name"]) == name);
    let own = pod.text(&["metadata", "name"]);
    let published = slices.into_iter().flat_map(|slice| slice.items(&["endpoints"])).any(|endpoint| {
        endpoint.text(&["targetRef", "name"]) == own && endpoint.flag(&["conditions", "ready"]) != Some(false)
    });
    (!published).then(|| {
        Finding::new(
            format!("the Service {name} selects it, but it is not among its endpoints"),
            vec![format!("no EndpointSlice of {name} names the pod as ready")],
            "check that the endpoint slice controller runs; if the pod has just become ready, check again",
        )
    })
}

/// A network policy that allows no ingress.
pub fn isolated(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let covers = |policy: &&Value| {
        let types = policy.items(&["spec", "policyTypes"]);
        let about_ingress = types.is_empty() || types.iter().any(|one| one.as_str() == Some("Ingress"));
        let selector = LabelSelector::from_object(policy.at(&["spec", "podSelector"]));
        about_ingress && selector.is_ok_and(|selector| selector.matches(pod.fields(&["metadata", "labels"])))
    };
    let covering: Vec<&Value> = evidence.within("networkpolicies", namespace).filter(covers).collect();
    let closed = !covering.is_empty() && covering.iter().all(|policy| policy.items(&["spec", "ingress"]).is_empty());
    let names: Vec<&str> = covering.iter().map(|policy| policy.text(&["metadata", "name"])).collect();
    closed.then(|| {
        Finding::new(
            format!("the network policy {} allows no traffic to it", names.join(", ")),
            vec![format!("{} selects the pod and allows no ingress", names.join(", "))],
            "add an ingress rule for the clients that may reach it",
        )
    })
}
