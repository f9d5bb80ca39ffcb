//! Nodes that are not ready, under pressure, or cordoned.

use knarr_api::value::{Read, condition};
use serde_json::Value;

use crate::Finding;
use crate::evidence::Evidence;

/// Diagnoses a Node.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let node = &evidence.object;
    let mut findings: Vec<Finding> = unready(node).into_iter().chain(under_pressure(node)).collect();
    findings.extend(cordoned(node));
    findings
}

fn unready(node: &Value) -> Option<Finding> {
    let name = node.text(&["metadata", "name"]);
    let Some(ready) = condition(node, "Ready") else {
        return Some(Finding::new(
            "its kubelet has never reported",
            vec!["status.conditions has no Ready condition".to_owned()],
            format!("start Knarr on {name}: `knarr token create --print-join-command` prints the command"),
        ));
    };
    let (status, message) = (ready.text(&["status"]), ready.text(&["message"]));
    let observed = vec![format!("Ready is {status} ({}): {message}", ready.text(&["reason"]))];
    match status {
        "True" => None,
        "Unknown" => Some(Finding::new(
            "its kubelet has stopped reporting",
            observed,
            format!(
                "check that the host {name} is up, that Knarr runs on it (`systemctl status knarr`), and that it can reach the API server"
            ),
        )),
        _ if message.contains("network plugin") || message.contains("cni") => Some(Finding::new(
            "its pod network is not set up",
            observed,
            "see the network's log on the node; with --network none, install a network plugin",
        )),
        _ if message.contains("runtime") => Some(Finding::new(
            "its container runtime does not respond",
            observed,
            "see the runtime's log on the node: /var/lib/knarr/containerd/containerd.log",
        )),
        _ => Some(Finding::new("its kubelet reports that it is not ready", observed, "fix what the message names")),
    }
}

fn under_pressure(node: &Value) -> Vec<Finding> {
    let pressures = [
        (
            "MemoryPressure",
            "memory",
            "scale down workloads that are not needed, or set memory requests so that fewer pods are scheduled here",
        ),
        (
            "DiskPressure",
            "disk space",
            "free disk space on the node, or make the disk larger; --eviction-hard sets the threshold",
        ),
        ("PIDPressure", "process IDs", "find the pods that start so many processes, and limit or fix them"),
    ];
    let is_true = |kind: &str| condition(node, kind).filter(|condition| condition.text(&["status"]) == "True");
    let found = pressures.iter().filter_map(|(kind, resource, fix)| {
        let condition = is_true(kind)?;
        let observed = vec![format!("{kind}: {}", condition.text(&["message"]))];
        Some(Finding::new(format!("it is running out of {resource}"), observed, *fix))
    });
    found.collect()
}

fn cordoned(node: &Value) -> Option<Finding> {
    let name = node.text(&["metadata", "name"]);
    (node.flag(&["spec", "unschedulable"]) == Some(true)).then(|| {
        Finding::new(
            "it is cordoned: no new pods are scheduled to it",
            vec!["spec.unschedulable is true".to_owned()],
            format!("when its maintenance is finished: `kubectl uncordon {name}`"),
        )
    })
}
