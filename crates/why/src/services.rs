//! Services: whether they have a working backend.

use knarr_api::value::{Read, has_condition};
use serde_json::Value;

use crate::evidence::{Evidence, quote};
use crate::nearest::nearest;
use crate::traffic::{differing, isolated, selects, wrong_port};
use crate::{Finding, full_name};

/// The maximum number of pods listed.
const MAX_LISTED_PODS: usize = 3;

/// Diagnoses a Service.
pub fn explain(evidence: &Evidence, service: &Value) -> Vec<Finding> {
    if service.text(&["spec", "type"]) == "ExternalName" || !evidence.lists.contains_key("pods") {
        return Vec::new();
    }
    let mut findings = unaddressed(evidence, service).into_iter().collect::<Vec<_>>();
    let selector = service.fields(&["spec", "selector"]).filter(|selector| !selector.is_empty());
    let Some(_) = selector else {
        findings.extend(without_selector(evidence, service));
        return findings;
    };
    let namespace = service.text(&["metadata", "namespace"]);
    let pods: Vec<&Value> = evidence.within("pods", namespace).filter(|pod| selects(service, pod)).collect();
    if pods.is_empty() {
        findings.push(selects_none(evidence, service));
        return findings;
    }
    if let Some(finding) = pods.iter().find_map(|pod| wrong_port(pod, service)) {
        findings.push(finding);
        return findings;
    }
    let (ready, unready): (Vec<&Value>, Vec<&Value>) = pods.iter().partition(|pod| has_condition(pod, "Ready"));
    if ready.is_empty() {
        findings.push(none_ready(&unready));
        findings.extend(unready.first().into_iter().flat_map(|pod| crate::pod(evidence, pod)));
        return findings;
    }
    findings.extend(ready.iter().find_map(|pod| isolated(evidence, pod)));
    findings
}

fn none_ready(pods: &[&Value]) -> Finding {
    let named = pods.iter().take(MAX_LISTED_PODS).map(|pod| {
        let status = pod.text(&["status", "phase"]);
        format!("pod {} is {status} and not ready", full_name(pod))
    });
    let mut observed: Vec<String> = named.collect();
    if pods.len() > MAX_LISTED_PODS {
        observed.push(format!("and {} more", pods.len() - MAX_LISTED_PODS));
    }
    let cause = match pods.len() {
        1 => "its only pod is not ready".to_owned(),
        count => format!("none of its {count} pods is ready"),
    };
    Finding::new(cause, observed, "see the next findings, about the first of them")
}

/// A load balancer without an address.
fn unaddressed(evidence: &Evidence, service: &Value) -> Option<Finding> {
    let is_pending = service.text(&["spec", "type"]) == "LoadBalancer"
        && service.items(&["status", "loadBalancer", "ingress"]).is_empty();
    is_pending.then(|| {
        let mut observed = vec!["spec.type is LoadBalancer, and status.loadBalancer is empty".to_owned()];
        let refusal = evidence.event(service, &["NoAddress"]);
        observed.extend(refusal.map(quote));
        let fix = match refusal {
            Some(_) => "start the server with --load-balancer-pool and unused addresses, or use a NodePort",
            None => "wait; if the server has --disable load-balancer, install another load balancer, or use a NodePort",
        };
        Finding::new("it waits for an external address", observed, fix)
    })
}

/// A Service without a selector, whose endpoints are managed by something else.
fn without_selector(evidence: &Evidence, service: &Value) -> Option<Finding> {
    if !evidence.lists.contains_key("endpointslices") {
        return None;
    }
    let (namespace, name) = (service.text(&["metadata", "namespace"]), service.text(&["metadata", "name"]));
    let has_some = evidence.within("endpointslices", namespace).any(|slice| {
        slice.text(&["metadata", "labels", "kubernetes.io/service-name"]) == name
            && !slice.items(&["endpoints"]).is_empty()
    });
    (!has_some).then(|| {
        Finding::new(
            "it has neither a selector nor endpoints",
            vec!["spec.selector is empty, and no EndpointSlice names it".to_owned()],
            "give it a selector, or create an EndpointSlice for it",
        )
    })
}

fn selects_none(evidence: &Evidence, service: &Value) -> Finding {
    let selector: Vec<String> = service
        .fields(&["spec", "selector"])
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let mut observed = vec![format!("no pod of its namespace has {}", selector.join(","))];
    let mut fix = "fix spec.selector, or start the pods it should select".to_owned();
    if let Some((pod, key, expected, has)) = nearly_selected(evidence, service) {
        observed.push(format!("the pod {} has {key}={has}", pod.text(&["metadata", "name"])));
        fix = format!("set {key} in spec.selector to {has}, or give the pods the label {key}={expected}");
    }
    Finding::new("its selector matches no pod", observed, fix)
}

/// A pod that differs in one label only, with a value similar to the expected one.
fn nearly_selected<'a>(evidence: &'a Evidence, service: &'a Value) -> Option<(&'a Value, &'a str, &'a str, &'a str)> {
    let selector = service.fields(&["spec", "selector"])?;
    evidence.within("pods", service.text(&["metadata", "namespace"])).find_map(|pod| {
        let [(key, expected)] = differing(selector, pod)[..] else { return None };
        let (expected, has) = (expected.as_str()?, pod.text(&["metadata", "labels", key]));
        let is_near = selector.len() > 1 || nearest(expected, std::iter::once(has)).is_some();
        (is_near && !has.is_empty()).then_some((pod, key.as_str(), expected, has))
    })
}
