//! The simulated scheduler and kubelet: binds pods, reports their status and ends those that are deleted.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Cluster, name_of, text};

/// The node of pods that ask for none.
const NODE: &str = "node-1";

type Decide = Box<dyn Fn(&Value) -> Outcome>;

/// What becomes of a pod that has just started, or that was in the outcome that is reported.
#[derive(Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Nothing is reported.
    Pending,
    Running,
    Ready,
    Succeeded,
    /// Its container exits with this code.
    Failed(i32),
}

/// Decides what becomes of each pod.
pub struct Kubelet {
    decide: Decide,
    /// Whether deleted pods end.
    ends_deleted: bool,
    binds: bool,
}

impl Kubelet {
    /// All pods become ready.
    pub fn ready() -> Self {
        Self::deciding(|_| Outcome::Ready)
    }

    /// There is neither a scheduler nor a kubelet.
    pub fn absent() -> Self {
        Self { decide: Box::new(|_| Outcome::Pending), ends_deleted: false, binds: false }
    }

    pub fn deciding(decide: impl Fn(&Value) -> Outcome + 'static) -> Self {
        Self { decide: Box::new(decide), ends_deleted: true, binds: true }
    }

    /// The status to report, if it is not reported yet.
    pub fn status(&self, pod: &Value, now: Timestamp) -> Option<Value> {
        let outcome = (self.decide)(pod);
        let phase = text(&pod["status"]["phase"]);
        let is_finished = matches!(phase, "Succeeded" | "Failed");
        let is_ready = super::condition(pod, "Ready")["status"] == "True";
        let is_reported = match outcome {
            Outcome::Pending => true,
            Outcome::Running => phase == "Running" && !is_ready,
            Outcome::Ready => phase == "Running" && is_ready,
            Outcome::Succeeded | Outcome::Failed(_) => false,
        };
        (!is_finished && !is_reported).then(|| status(pod, outcome, now))
    }
}

fn status(pod: &Value, outcome: Outcome, now: Timestamp) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let phase = match outcome {
        Outcome::Pending => "Pending",
        Outcome::Running | Outcome::Ready => "Running",
        Outcome::Succeeded => "Succeeded",
        Outcome::Failed(_) => "Failed",
    };
    let code = if let Outcome::Failed(code) = outcome { code } else { 0 };
    let state = match phase {
        "Running" => json!({"running": {"startedAt": time}}),
        _ => json!({"terminated": {"exitCode": code, "finishedAt": time, "startedAt": time}}),
    };
    let is_ready = outcome == Outcome::Ready;
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let statuses: Vec<Value> = containers
        .iter()
        .map(|container| {
            json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": is_ready,
            "restartCount": 0, "state": state})
        })
        .collect();
    let condition = |kind: &str| json!({"type": kind, "status": if is_ready { "True" } else { "False" }, "lastTransitionTime": time});
    let address = address(pod);
    json!({"phase": phase, "startTime": time, "podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.1",
        "containerStatuses": statuses, "conditions": [condition("ContainersReady"), condition("Ready")]})
}

/// An address that follows from the pod's UID.
fn address(pod: &Value) -> String {
    let digits =
        text(&pod["metadata"]["uid"]).bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("10.244.{}.{}", digits >> 8, digits & 0xff)
}

/// Does what the scheduler and the kubelets would do now.
pub async fn sync(cluster: &Cluster) {
    let (code, list) = cluster.request("GET", "/api/v1/pods", "application/json", &Value::Null).await;
    assert_eq!(code, 200, "{list}");
    for pod in list["items"].as_array().into_iter().flatten() {
        sync_pod(cluster, pod).await;
    }
}

async fn sync_pod(cluster: &Cluster, pod: &Value) {
    let (binds, ends) = {
        let kubelet = cluster.kubelet.borrow();
        (kubelet.binds, kubelet.ends_deleted)
    };
    let at = format!("{}/{}", super::path("Pod", text(&pod["metadata"]["namespace"])), name_of(pod));
    let is_deleted = pod["metadata"]["deletionTimestamp"].is_string();
    let is_bound = pod["spec"]["nodeName"].is_string();
    let (method, at, media_type, body) = if is_deleted && ends {
        let uid = &pod["metadata"]["uid"];
        ("DELETE", at, "application/json", json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}))
    } else if !is_bound && !is_deleted && binds && pod["spec"]["schedulingGates"].is_null() {
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": wanted_node(pod)});
        let binding =
            json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name_of(pod)}, "target": target});
        ("POST", format!("{at}/binding"), "application/json", binding)
    } else if is_bound && let Some(status) = cluster.status_of(pod) {
        let patch = json!({"metadata": {"uid": pod["metadata"]["uid"]}, "status": status});
        ("PATCH", format!("{at}/status"), "application/merge-patch+json", patch)
    } else {
        return;
    };
    let (code, response) = cluster.request(method, &at, media_type, &body).await;
    // It may be gone by now, or another in its place.
    assert!(code < 300 || matches!(code, 404 | 409), "{code} {response} for {method} {at}");
}

/// The node that a pod of a DaemonSet must run on, or any.
fn wanted_node(pod: &Value) -> &str {
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    pod.pointer(&format!("{required}/matchFields/0/values/0")).and_then(Value::as_str).unwrap_or(NODE)
}
