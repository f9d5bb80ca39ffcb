//! The cells of a pod in a table.

use jiff::Timestamp;
use knarr_api::value::{Read, has_condition};
use serde_json::{Value, json};

use crate::common::columns::{self, field, text, wide};
use crate::common::resources::is_sidecar;
use crate::kind::Column;

const SPEC: &str = "io.k8s.api.core.v1.PodSpec";
const STATUS: &str = "io.k8s.api.core.v1.PodStatus";

/// The columns of pods.
pub const COLUMNS: &[Column] = &[
    columns::NAME,
    text("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
    text("Status", "string", "The aggregate status of the containers in this pod."),
    text(
        "Restarts",
        "string",
        "The number of times the containers in this pod have been restarted and when the last container in this pod \
         has restarted.",
    ),
    columns::AGE,
    wide(field("IP", "string", STATUS, "podIP")),
    wide(field("Node", "string", SPEC, "nodeName")),
    wide(field("Nominated Node", "string", STATUS, "nominatedNodeName")),
    wide(field("Readiness Gates", "string", SPEC, "readinessGates")),
];

/// Returns the cells of a pod.
pub fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts != 0 => format!("{} ({} ago)", summary.restarts, columns::since(at, now)),
        _ => summary.restarts.to_string(),
    };
    let or_none = |text: &str| Value::from(if text.is_empty() { "<none>" } else { text });
    vec![
        columns::name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        columns::age(pod, now),
        or_none(pod.items(&["status", "podIPs"]).first().map(|ip| ip.text(&["ip"])).unwrap_or_default()),
        or_none(pod.text(&["spec", "nodeName"])),
        or_none(pod.text(&["status", "nominatedNodeName"])),
        readiness_gates(pod).into(),
    ]
}

/// Returns the row condition of a completed pod.
pub fn row_conditions(pod: &Value) -> Option<Value> {
    let phase = pod.text(&["status", "phase"]);
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]))
}

fn readiness_gates(pod: &Value) -> String {
    let gates = pod.items(&["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| has_condition(pod, gate.text(&["conditionType"]))).count();
    format!("{open}/{}", gates.len())
}

struct Summary<'a> {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<&'a str>,
}

impl<'a> Summary<'a> {
    fn of(pod: &'a Value) -> Summary<'a> {
        let status = pod.at(&["status"]);
        let mut reason = match status.text(&["reason"]) {
            "" => status.text(&["phase"]).to_owned(),
            reason => reason.to_owned(),
        };
        let is_gated = |c: &Value| c.text(&["type"]) == "PodScheduled" && c.text(&["reason"]) == "SchedulingGated";
        if status.items(&["conditions"]).iter().any(is_gated) {
            reason = "SchedulingGated".to_owned();
        }
        let sidecars = pod.items(&["spec", "initContainers"]).iter().filter(|c| is_sidecar(c)).count();
        let mut summary = Summary {
            ready: 0,
            total: pod.items(&["spec", "containers"]).len() + sidecars,
            reason,
            restarts: 0,
            last_restart: None,
        };
        let initializing = summary.read_init_containers(pod);
        if !initializing || has_condition(pod, "Initialized") {
            summary.read_containers(pod);
        }
        let is_deleted = pod.has(&["metadata", "deletionTimestamp"]);
        let has_ended = matches!(status.text(&["phase"]), "Succeeded" | "Failed");
        if is_deleted && status.text(&["reason"]) == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if is_deleted && !has_ended {
            summary.reason = "Terminating".to_owned();
        }
        summary
    }

    /// Returns whether the pod is still initializing.
    fn read_init_containers(&mut self, pod: &'a Value) -> bool {
        let specs = pod.items(&["spec", "initContainers"]);
        for (i, status) in pod.items(&["status", "initContainerStatuses"]).iter().enumerate() {
            self.count_restarts(status);
            let name = status.text(&["name"]);
            let sidecar = specs.iter().any(|c| c.text(&["name"]) == name && is_sidecar(c));
            let terminated = status.at(&["state", "terminated"]);
            if !terminated.is_null() && terminated.integer(&["exitCode"]).unwrap_or_default() == 0 {
                continue;
            }
            if sidecar && status.flag(&["started"]) == Some(true) {
                self.ready += usize::from(status.flag(&["ready"]) == Some(true));
                continue;
            }
            let waiting = status.text(&["state", "waiting", "reason"]);
            self.reason = if !terminated.is_null() {
                format!("Init:{}", termination_reason(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{}", specs.len())
            };
            return true;
        }
        false
    }

    fn read_containers(&mut self, pod: &'a Value) {
        let status = pod.at(&["status"]);
        (self.restarts, self.last_restart) = (0, None);
        let specs = pod.items(&["spec", "initContainers"]);
        for init in status.items(&["initContainerStatuses"]) {
            let name = init.text(&["name"]);
            if specs.iter().any(|c| c.text(&["name"]) == name && is_sidecar(c)) {
                self.count_restarts(init);
            }
        }
        let (mut running, mut error) = (false, None);
        for container in status.items(&["containerStatuses"]).iter().rev() {
            self.count_restarts(container);
            let waiting = container.text(&["state", "waiting", "reason"]);
            let terminated = container.at(&["state", "terminated"]);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if !terminated.is_null() {
                self.reason = termination_reason(terminated);
                if terminated.integer(&["exitCode"]).unwrap_or_default() != 0 {
                    error = Some(self.reason.clone());
                }
            } else if container.flag(&["ready"]) == Some(true) && container.has(&["state", "running"]) {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && has_condition(pod, "Ready") {
                self.reason = "Running".to_owned();
            } else if let Some(error) = error {
                self.reason = error;
            } else if running {
                self.reason = "NotReady".to_owned();
            }
        }
    }

    fn count_restarts(&mut self, status: &'a Value) {
        self.restarts += status.integer(&["restartCount"]).unwrap_or_default();
        let finished = status.text(&["lastState", "terminated", "finishedAt"]);
        if !finished.is_empty() && self.last_restart.is_none_or(|last| last < finished) {
            self.last_restart = Some(finished);
        }
    }
}

fn termination_reason(terminated: &Value) -> String {
    match (terminated.text(&["reason"]), terminated.integer(&["signal"]).unwrap_or_default()) {
        ("", 0) => format!("ExitCode:{}", terminated.integer(&["exitCode"]).unwrap_or_default()),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::time;

    #[test]
    fn rows_show_the_state_of_a_pod() {
        let now = time::parse("2026-01-01T00:10:00Z").unwrap();
        let running = json!({"name": "c", "ready": true, "restartCount": 0, "state": {"running": {}}});
        let crashed = json!({"name": "c", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"finishedAt": "2026-01-01T00:08:00Z"}}});
        for (mut pod, ready, status, restarts) in [
            (json!({"status": {"phase": "Pending"}}), "0/1", "Pending", "0"),
            (json!({"status": {"phase": "Running", "containerStatuses": [running]}}), "1/1", "Running", "0"),
            (
                json!({"status": {"phase": "Running", "containerStatuses": [crashed]}}),
                "0/1",
                "CrashLoopBackOff",
                "3 (2m ago)",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"}}),
                "0/1",
                "Terminating",
                "0",
            ),
            (
                json!({"spec": {"initContainers": [{"name": "i"}, {"name": "j"}]}, "status": {"phase": "Pending",
                    "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}}),
                "0/1",
                "Init:0/2",
                "0",
            ),
        ] {
            pod["spec"]["containers"] = json!([{"name": "c"}]);
            let cells = cells(&pod, now);
            assert_eq!(cells[1..4], [json!(ready), json!(status), json!(restarts)]);
            assert_eq!(cells.len(), COLUMNS.len());
        }
    }
}
