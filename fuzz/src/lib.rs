//! Shared by the fuzz targets: kinds for bodies, and the object to patch.
//!
//! In: bytes of a fuzzer. Out: nothing, or a panic if a decoder violates its contract. The first byte of most inputs chooses a
//! kind, so that one target covers many schemas.

use knarr_api::schema::{NodeRef, builtin};
use serde_json::{Value, json};

/// Kinds with unusual fields: maps, unions, raw extensions, quantities, recursive schemas.
pub const KINDS: [(&str, &str, &str); 8] = [
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("", "v1", "Secret"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("resource.k8s.io", "v1", "ResourceSlice"),
];

/// Splits an input into its kind and the rest.
pub fn choose(input: &[u8]) -> Option<((&'static str, &'static str, &'static str), &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((KINDS[usize::from(*first) % KINDS.len()], rest))
}

pub fn node(kind: (&str, &str, &str)) -> NodeRef<'static> {
    builtin().kind(kind.0, kind.1, kind.2).expect("every kind above has a schema")
}

/// An object to patch.
pub fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}, "finalizers": ["x/y"]},
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                 "env": [{"name": "A", "value": "1"}], "resources": {"requests": {"cpu": "100m"}}},
                {"name": "d", "image": "j"},
            ],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    })
}
