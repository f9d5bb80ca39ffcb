//! Nodes that are not ready, or that take no pods.

use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::evidence::Evidence;

pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let node = &evidence.object;
    let mut findings: Vec<Finding> = unready(node).into_iter().chain(pressed(node)).collect();
    findings.extend(closed(node));
    findings
}

fn unready(node: &Value) -> Option<Finding> {
    let name = node.text(&["metadata", "name"]);
    let Some(ready) = crate::condition(node, "Ready") else {
        return Some(Finding::new(
            "its kubelet has never reported",
            vec!["status.conditions holds no Ready".to_owned()],
            format!("start Knarr on {name}: `knarr token create --print-join-command` prints how it joins"),
        ));
    };
    let (status, message) = (ready.text(&["status"]), ready.text(&["message"]));
    let told = vec![format!("Ready is {status} ({}): {message}", ready.text(&["reason"]))];
    match status {
        "True" => None,
        "Unknown" => Some(Finding::new(
            "its kubelet has stopped reporting",
            told,
            format!(
                "see that the machine {name} is up, that Knarr runs on it (`systemctl status knarr`), and that it reaches the API server"
            ),
        )),
        _ if message.contains("network plugin") || message.contains("cni") => Some(Finding::new(
            "its pod network is not set up",
            told,
            "see the network's log on the node; with --network none, install a network plugin",
        )),
        _ if message.contains("runtime") => Some(Finding::new(
            "its container runtime does not answer",
            told,
            "see the runtime's log on the node: /var/lib/knarr/containerd/containerd.log",
        )),
        _ => Some(Finding::new("it says it is not ready", told, "mend what the message names")),
    }
}

fn pressed(node: &Value) -> Vec<Finding> {
    let pressures = [
        ("MemoryPressure", "memory", "end pods, or set requests so that fewer are put here"),
        ("DiskPressure", "disk space", "remove files or images; --eviction-hard says when this begins"),
        ("PIDPressure", "process numbers", "end what makes so many processes"),
    ];
    let is_true = |kind: &str| crate::condition(node, kind).filter(|condition| condition.text(&["status"]) == "True");
    let found = pressures.iter().filter_map(|(kind, what, fix)| {
        let condition = is_true(kind)?;
        let told = vec![format!("{kind}: {}", condition.text(&["message"]))];
        Some(Finding::new(format!("it runs out of {what}"), told, *fix))
    });
    found.collect()
}

fn closed(node: &Value) -> Option<Finding> {
    let name = node.text(&["metadata", "name"]);
    (node.flag(&["spec", "unschedulable"]) == Some(true)).then(|| {
        Finding::new(
            "it takes no new pods, as somebody asked",
            vec!["spec.unschedulable is true".to_owned()],
            format!("`kubectl uncordon {name}`"),
        )
    })
}
