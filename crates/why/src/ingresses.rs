//! Ingresses: whether a controller serves them, and whether their backends work.

use knarr_api::value::Read;
use serde_json::Value;

use crate::evidence::Evidence;
use crate::{Finding, near_name};

/// How many backends are examined.
const MAX_BACKENDS: usize = 50;

/// Diagnoses an Ingress.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let ingress = &evidence.object;
    if let Some(finding) = unserved(evidence, ingress) {
        return vec![finding];
    }
    let mut findings: Vec<Finding> = backends(ingress)
        .into_iter()
        .take(MAX_BACKENDS)
        .filter_map(|backend| broken(evidence, ingress, backend))
        .collect();
    findings.extend(certificates(evidence, ingress));
    findings.dedup();
    findings
}

fn unserved(evidence: &Evidence, ingress: &Value) -> Option<Finding> {
    if !evidence.lists.contains_key("ingressclasses") {
        return None;
    }
    let classes = evidence.all("ingressclasses");
    let class = ingress.text(&["spec", "ingressClassName"]);
    let annotated = ingress.text(&["metadata", "annotations", "kubernetes.io/ingress.class"]);
    // Controllers may serve an annotated class without an IngressClass.
    if classes.is_empty() && annotated.is_empty() {
        return Some(Finding::new(
            "there is no ingress controller",
            vec!["no IngressClass exists".to_owned()],
            "install an ingress controller, or start the nodes without --disable ingress",
        ));
    }
    if class.is_empty() && annotated.is_empty() {
        let is_default = |one: &Value| {
            one.text(&["metadata", "annotations", "ingressclass.kubernetes.io/is-default-class"]) == "true"
        };
        return (!classes.iter().any(is_default)).then(|| {
            Finding::new(
                "it names no ingress class, and none is the default",
                vec!["spec.ingressClassName is empty".to_owned()],
                "set spec.ingressClassName to one of `kubectl get ingressclass`",
            )
        });
    }
    let is_known = classes.iter().any(|one| one.text(&["metadata", "name"]) == class);
    (!class.is_empty() && !is_known).then(|| {
        let near = near_name(class, classes.iter()).map(|near| format!("; there is {near}")).unwrap_or_default();
        Finding::new(
            format!("its ingress class {class} does not exist"),
            vec![format!("no IngressClass {class}{near}")],
            "set spec.ingressClassName to one of `kubectl get ingressclass`",
        )
    })
}

fn backends(ingress: &Value) -> Vec<&Value> {
    let rules = ingress.items(&["spec", "rules"]).iter();
    let of_paths = rules.flat_map(|rule| rule.items(&["http", "paths"])).map(|path| path.at(&["backend", "service"]));
    let default = ingress.at(&["spec", "defaultBackend", "service"]);
    of_paths.chain([default]).filter(|backend| !backend.is_null()).collect()
}

fn broken(evidence: &Evidence, ingress: &Value, backend: &Value) -> Option<Finding> {
    let (namespace, name) = (ingress.text(&["metadata", "namespace"]), backend.text(&["name"]));
    if evidence.lacks("services", namespace, name) {
        let near = near_name(name, evidence.within("services", namespace));
        let near = near.map(|near| format!("; there is {near}")).unwrap_or_default();
        return Some(Finding::new(
            format!("it routes to the Service {name}, which does not exist"),
            vec![format!("no Service {namespace}/{name}{near}")],
            "create the Service, or fix its name in the ingress",
        ));
    }
    let service = evidence.find("services", namespace, name)?;
    let (port, number) = (backend.text(&["port", "name"]), backend.integer(&["port", "number"]));
    let ports = service.items(&["spec", "ports"]);
    let has_port = ports
        .iter()
        .any(|own| if port.is_empty() { own.integer(&["port"]) == number } else { own.text(&["name"]) == port });
    if !has_port {
        let requested = if port.is_empty() { number.unwrap_or_default().to_string() } else { port.to_owned() };
        let own: Vec<String> = ports
            .iter()
            .map(|own| format!("{} {}", own.integer(&["port"]).unwrap_or_default(), own.text(&["name"])))
            .collect();
        return Some(Finding::new(
            format!("it routes to port {requested} of the Service {name}, which has no such port"),
            vec![format!("the ports of {name} are {}", own.join(", ").trim_end())],
            "use one of these ports in the ingress",
        ));
    }
    crate::services::explain(evidence, service).into_iter().next().map(|finding| Finding {
        cause: format!("its Service {name} has no working backend: {}", finding.cause),
        ..finding
    })
}

fn certificates(evidence: &Evidence, ingress: &Value) -> Option<Finding> {
    let namespace = ingress.text(&["metadata", "namespace"]);
    let secrets = ingress.items(&["spec", "tls"]).iter().map(|tls| tls.text(&["secretName"]));
    let missing = secrets.into_iter().find(|name| !name.is_empty() && evidence.lacks("secrets", namespace, name))?;
    Some(Finding::new(
        format!("its TLS certificate is in the Secret {missing}, which does not exist"),
        vec![format!("no Secret {namespace}/{missing}")],
        "create it with `kubectl create secret tls`",
    ))
}
