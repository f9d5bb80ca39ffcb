//! Volumes of CSI drivers that cannot be attached or mounted.

use knarr_api::value::{Read, condition};
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};

/// Diagnoses an event about a volume of a pod that is on its node.
pub fn explain(evidence: &Evidence, pod: &Value, event: &Value) -> Option<Finding> {
    let message = event.text(&["message"]);
    // The first is the message of Kubernetes before v1.36.4.
    if message.contains("Multi-Attach error") || message.contains("Waiting for detach for volume") {
        return Some(multi_attach(evidence, pod, event));
    }
    if message.contains("not found in the list of registered CSI drivers") {
        return Some(no_driver(evidence, pod, event));
    }
    if let Some((_, driver)) = message.split_once("timed out waiting for external-attacher of ") {
        let driver = driver.split_whitespace().next().unwrap_or_default();
        return Some(Finding::new(
            format!("the CSI driver {driver} does not attach its volume"),
            vec![quote(event)],
            format!("check that the controller of {driver}, with its external-attacher, runs"),
        ));
    }
    if message.contains("AttachVolume.Attach failed") {
        let cause = "a volume cannot be attached to its node";
        return Some(Finding::new(cause, vec![quote(event)], "fix what the driver's message names"));
    }
    let is_full = ["No space left on device", "no space left on device", "ResourceExhausted"];
    is_full.iter().any(|text| message.contains(text)).then(|| {
        let node = pod.text(&["spec", "nodeName"]);
        Finding::new(
            format!("the disk of its volume on {node} is full"),
            vec![quote(event)],
            format!("make the disk of {node} larger, or delete claims on it whose data is no longer needed"),
        )
    })
}

/// The volume is for one node, and another one has it.
fn multi_attach(evidence: &Evidence, pod: &Value, event: &Value) -> Finding {
    let (namespace, node) = (pod.text(&["metadata", "namespace"]), pod.text(&["spec", "nodeName"]));
    let claims: Vec<&str> = claims_of(pod).collect();
    let holders = evidence.within("pods", namespace).filter(|other| {
        let on = other.text(&["spec", "nodeName"]);
        !on.is_empty() && on != node && claims_of(other).any(|claim| claims.contains(&claim))
    });
    let mut observed = vec![quote(event)];
    let mut lost = None;
    for holder in holders {
        let (name, on) = (holder.text(&["metadata", "name"]), holder.text(&["spec", "nodeName"]));
        let ready = evidence.find("nodes", "", on).and_then(|node| condition(node, "Ready"));
        let is_lost = evidence.lacks("nodes", "", on) || ready.is_some_and(|ready| ready.text(&["status"]) != "True");
        observed.push(format!("the pod {name} uses it on {on}{}", if is_lost { ", which is not ready" } else { "" }));
        if is_lost {
            lost = Some(on);
        }
    }
    let fix = match lost {
        Some(lost) => format!(
            "the volume moves 6 minutes after the pods on {lost} are deleted; if you are certain that {lost} is switched off, \
             `kubectl taint node {lost} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute` moves it at once"
        ),
        None => "a ReadWriteOnce volume is for one node at a time: wait until the other pod stops, or run one replica with the strategy \
                 Recreate, or use a class with ReadWriteMany"
            .to_owned(),
    };
    Finding::new("its volume is attached to another node", observed, fix)
}

fn claims_of(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod.items(&["spec", "volumes"]).iter();
    volumes.map(|volume| volume.text(&["persistentVolumeClaim", "claimName"])).filter(|name| !name.is_empty())
}

fn no_driver(evidence: &Evidence, pod: &Value, event: &Value) -> Finding {
    let node = pod.text(&["spec", "nodeName"]);
    let message = event.text(&["message"]);
    let driver = message.split_once("driver name ").and_then(|(_, rest)| rest.split_whitespace().next());
    let driver = driver.unwrap_or("of its volume");
    let mut observed = vec![quote(event)];
    let elsewhere = nodes_with(evidence, driver);
    if !elsewhere.is_empty() {
        observed.push(format!("nodes with the driver: {}", elsewhere.join(", ")));
    }
    Finding::new(
        format!("the CSI driver {driver} does not run on {node}"),
        observed,
        format!("check that the driver's DaemonSet has a running pod on {node}, or install the driver"),
    )
}

/// The nodes that a driver is registered on.
pub fn nodes_with<'a>(evidence: &'a Evidence, driver: &str) -> Vec<&'a str> {
    let has = |node: &&Value| node.items(&["spec", "drivers"]).iter().any(|own| own.text(&["name"]) == driver);
    evidence.all("csinodes").iter().filter(has).map(|node| node.text(&["metadata", "name"])).collect()
}
