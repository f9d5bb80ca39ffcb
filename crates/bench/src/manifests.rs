//! Paths and manifests of the objects that the benchmark creates: as large as those of real clusters.

use bytes::Bytes;
use serde_json::{Value, json};

/// The namespace of the benchmark.
pub const NAMESPACE: &str = "bench";

/// The path of the pods.
pub fn pods() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// The path of the config maps.
pub fn config_maps() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

/// The namespace.
pub fn namespace() -> Bytes {
    bytes(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))
}

/// The path of the service accounts.
pub fn accounts() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts")
}

/// Pods need a service account, and no controller runs here that would create it.
pub fn account() -> Bytes {
    bytes(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}))
}

/// A pod.
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
            "schedulerName": "none", "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "registry.example/app:1.0", "command": ["sleep", "3600"], "env": environment,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "readinessProbe": {"exec": {"command": ["true"]}},
            }],
        },
    }))
}

/// A config map.
pub fn config_map(name: &str) -> Bytes {
    bytes(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "bench"}}, "data": {"content": "y".repeat(512)},
    }))
}

fn bytes(object: &Value) -> Bytes {
    Bytes::from(object.to_string())
}
