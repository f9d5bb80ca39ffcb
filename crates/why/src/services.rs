//! Services: whether anybody answers behind them.

use knarr_api::value::Read;
use serde_json::Value;

use crate::evidence::{Evidence, quote};
use crate::nearest::nearest;
use crate::traffic::{differing, isolated, selects, wrong_port};
use crate::{Finding, full_name, is_ready};

/// How many pods are named one by one.
const NAMED: usize = 3;

pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let service = &evidence.object;
    if service.text(&["spec", "type"]) == "ExternalName" || !evidence.lists.contains_key("pods") {
        return Vec::new();
    }
    let mut findings = unaddressed(evidence, service).into_iter().collect::<Vec<_>>();
    let selector = service.fields(&["spec", "selector"]).filter(|selector| !selector.is_empty());
    let Some(_) = selector else {
        findings.extend(by_hand(evidence, service));
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
    let (ready, unready): (Vec<&Value>, Vec<&Value>) = pods.iter().partition(|pod| is_ready(pod));
    if ready.is_empty() {
        findings.push(none_ready(&unready));
        findings.extend(unready.first().into_iter().flat_map(|pod| crate::pod(evidence, pod)));
        return findings;
    }
    findings.extend(ready.iter().find_map(|pod| isolated(evidence, pod)));
    findings
}

fn none_ready(pods: &[&Value]) -> Finding {
    let named = pods.iter().take(NAMED).map(|pod| {
        let status = pod.text(&["status", "phase"]);
        format!("pod {} is {status} and not ready", full_name(pod))
    });
    let mut told: Vec<String> = named.collect();
    if pods.len() > NAMED {
        told.push(format!("and {} more", pods.len() - NAMED));
    }
    let cause = match pods.len() {
        1 => "its only pod is not ready".to_owned(),
        count => format!("none of its {count} pods is ready"),
    };
    Finding::new(cause, told, "see what follows about the first of them")
}

/// A load balancer that nobody gave an address.
fn unaddressed(evidence: &Evidence, service: &Value) -> Option<Finding> {
    let is_pending = service.text(&["spec", "type"]) == "LoadBalancer"
        && service.items(&["status", "loadBalancer", "ingress"]).is_empty();
    is_pending.then(|| {
        let mut told = vec!["spec.type is LoadBalancer, and status.loadBalancer is empty".to_owned()];
        told.extend(evidence.event(service, &["NoAddress"]).map(quote));
        Finding::new(
            "it waits for an address from outside",
            told,
            "start the server with --load-balancer-pool and addresses that are free, or use a NodePort",
        )
    })
}

/// Without a selector somebody else writes its endpoints.
fn by_hand(evidence: &Evidence, service: &Value) -> Option<Finding> {
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
            "it selects no pods, and nobody has given it endpoints",
            vec!["spec.selector is empty, and no EndpointSlice names it".to_owned()],
            "give it a selector, or make an EndpointSlice for it",
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
    let mut told = vec![format!("no pod of its namespace has {}", selector.join(","))];
    let mut fix = "mend spec.selector, or start the pods it is for".to_owned();
    if let Some((pod, key, wanted, has)) = almost(evidence, service) {
        told.push(format!("the pod {} has {key}={has}", pod.text(&["metadata", "name"])));
        fix = format!("set {key} in spec.selector to {has}, or give the pods the label {key}={wanted}");
    }
    Finding::new("its selector matches no pod", told, fix)
}

/// A pod that differs in one label only, whose value is nearly the wanted one.
fn almost<'a>(evidence: &'a Evidence, service: &'a Value) -> Option<(&'a Value, &'a str, &'a str, &'a str)> {
    let selector = service.fields(&["spec", "selector"])?;
    evidence.within("pods", service.text(&["metadata", "namespace"])).find_map(|pod| {
        let [(key, wanted)] = differing(selector, pod)[..] else { return None };
        let (wanted, has) = (wanted.as_str()?, pod.text(&["metadata", "labels", key]));
        let is_near = selector.len() > 1 && !has.is_empty() || nearest(wanted, std::iter::once(has)).is_some();
        is_near.then_some((pod, key.as_str(), wanted, has))
    })
}
