//! The objects that are made: as large as those of real clusters.

use bytes::Bytes;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "bench";

pub fn pods() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

pub fn config_maps() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

pub fn namespace() -> Bytes {
    bytes(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))
}

pub fn accounts() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts")
}

/// Pods need it, and no controller runs here that would make it.
pub fn account() -> Bytes {
    bytes(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}))
}

pub fn pod(name: &str) -> Bytes {
    let environment = json!([
        {"name": "LOG_LEVEL", "value": "info"},
        {"name": "REGION", "value": "north"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]);
    bytes(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "bench", "pod": name},
            "annotations": {"example.com/purpose": "an annotation of the usual length, such as tools leave on pods"},
        },
        "spec": {
            "schedulerName": "nobody", "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "registry.example/app:1.0", "command": ["sleep", "3600"], "env": environment,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "readinessProbe": {"exec": {"command": ["true"]}},
            }],
        },
    }))
}

pub fn config_map(name: &str) -> Bytes {
    bytes(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "bench"}}, "data": {"content": "y".repeat(512)},
    }))
}

fn bytes(object: &Value) -> Bytes {
    Bytes::from(object.to_string())
}
