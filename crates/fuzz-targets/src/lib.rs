//! The fuzz targets: every parser of outside input as a function of bytes that must not panic. The binaries in `fuzz/` run them
//! with a fuzzer; the test `corpora_replay` runs them on all inputs that were worth keeping, findings included.
//!
//! In: bytes. Out: nothing, or a panic if a parser violates its contract. The first byte of some inputs chooses a kind, so that
//! one target covers many schemas.

// Parts of the binary, which is no library.
#[cfg(feature = "outside")]
#[path = "../../knarr/src/helm/access.rs"]
mod access;
#[cfg(feature = "outside")]
mod outside;
#[cfg(feature = "outside")]
#[path = "../../knarr/src/helm/release.rs"]
mod release;
#[cfg(feature = "outside")]
#[path = "../../knarr/src/servers/seal.rs"]
mod seal;
mod seeds;
#[cfg(feature = "outside")]
#[path = "../../knarr/src/helm/spec.rs"]
mod spec;
#[cfg(feature = "server")]
mod tokens;

pub use seeds::seeds;

use std::borrow::Cow;
#[cfg(feature = "node")]
use std::io::Write;

use knarr_api::apply::{self, SingleVersion, Tracker};
use knarr_api::cel::{Program, Type};
use knarr_api::patch::{self, JsonPatch};
use knarr_api::quantity::{Quantity, canonical};
use knarr_api::schema::{NodeRef, builtin};
use knarr_api::selector::{FieldSelector, LabelSelector};
use knarr_api::{decode, protobuf as wire};
use serde_json::{Value, json};

/// A target with its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("apply_patch", apply_patch),
    #[cfg(feature = "server")]
    ("authentication_configuration", tokens::authentication_configuration),
    ("cel", cel),
    ("certificate", certificate),
    #[cfg(feature = "node")]
    ("certificate_request", certificate_request),
    #[cfg(feature = "node")]
    ("cni", cni),
    #[cfg(feature = "outside")]
    ("command_line", outside::command_line),
    #[cfg(feature = "outside")]
    ("component_configuration", outside::component_configuration),
    #[cfg(feature = "node")]
    ("container_log", container_log),
    #[cfg(feature = "outside")]
    ("csi_message", outside::csi_message),
    #[cfg(feature = "node")]
    ("dns", dns),
    ("etcd_database", etcd_database),
    ("field_selector", field_selector),
    #[cfg(feature = "outside")]
    ("helm_chart", outside::helm_chart),
    #[cfg(feature = "node")]
    ("ingress_answer", ingress_answer),
    #[cfg(feature = "node")]
    ("ingress_chunks", ingress_chunks),
    #[cfg(feature = "node")]
    ("ingress_request", ingress_request),
    #[cfg(feature = "server")]
    ("issuer_document", tokens::issuer_document),
    ("json", json),
    ("json_patch", json_patch),
    #[cfg(feature = "server")]
    ("kms_value", tokens::kms_value),
    ("label_selector", label_selector),
    #[cfg(feature = "node")]
    ("manifest", manifest),
    ("merge_patch", merge_patch),
    ("protobuf", protobuf),
    #[cfg(feature = "server")]
    ("proxied_page", proxied_page),
    ("quantity", quantity),
    #[cfg(feature = "outside")]
    ("registry_request", outside::registry_request),
    #[cfg(feature = "outside")]
    ("sealed_bundle", outside::sealed_bundle),
    #[cfg(feature = "server")]
    ("service_account_token", tokens::service_account_token),
    ("store_image", store_image),
    ("store_log", store_log),
    ("store_records", store_records),
    ("strategic_patch", strategic_patch),
    #[cfg(feature = "server")]
    ("token_file", tokens::token_file),
    #[cfg(feature = "outside")]
    ("tunnel", outside::tunnel),
    #[cfg(feature = "outside")]
    ("unix_connection", outside::unix_connection),
    #[cfg(feature = "server")]
    ("web_token", tokens::web_token),
    ("yaml", yaml),
];

/// Kinds with unusual fields: maps, unions, raw extensions, quantities, recursive schemas.
const KINDS: [(&str, &str, &str); 8] = [
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
fn choose(input: &[u8]) -> Option<((&'static str, &'static str, &'static str), &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((KINDS[usize::from(*first) % KINDS.len()], rest))
}

fn node(kind: (&str, &str, &str)) -> NodeRef<'static> {
    builtin().kind(kind.0, kind.1, kind.2).expect("every kind above has a schema")
}

/// An object to patch.
fn pod() -> Value {
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

/// An apply configuration, applied by one manager, then by another, then forced; and recorded ownership of any shape.
pub fn apply_patch(input: &[u8]) {
    let kind = ("", "v1", "Pod");
    if let Ok(fields) = serde_json::from_slice(input)
        && let Ok(set) = apply::decode_fields(&fields)
    {
        let written = apply::encode_fields(&set);
        assert_eq!(apply::decode_fields(&written).map(|set| apply::encode_fields(&set)), Ok(written));
    }
    let Ok(read) = decode::yaml(input, node(kind)) else { return };
    let tracker = Tracker {
        node: node(kind),
        api_version: "v1",
        kind: "Pod",
        subresource: "",
        ignored: None,
        versions: &SingleVersion,
        now: "2026-01-01T00:00:00Z",
    };
    let mut live = pod();
    tracker.update(None, &mut live, "first");
    for (manager, force) in [("second", false), ("third", true), ("second", true)] {
        if let Ok(applied) = tracker.apply(Some(&live), &read.value, manager, force) {
            live = applied;
        }
    }
}

/// A CEL expression: compiled, and evaluated within a cost limit.
pub fn cel(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let variables = [("self".to_owned(), Type::Dyn), ("oldSelf".to_owned(), Type::Dyn)];
    let Ok(program) = Program::compile(input, &variables) else { return };
    let pod = pod();
    let bound = vec![
        ("self", knarr_api::cel::Value::of_json(&pod, None)),
        ("oldSelf", knarr_api::cel::Value::of_json(&pod["spec"], None)),
    ];
    let _ = program.evaluate(bound, 100_000);
}

/// A client certificate in DER: whom it stands for.
pub fn certificate(input: &[u8]) {
    let is_node = knarr_identity::is_node_certificate(input);
    let Ok(identity) = knarr_identity::of_certificate(input) else { return };
    assert!(!identity.name.is_empty());
    assert!(is_node || !identity.groups.iter().any(|group| group.eq_ignore_ascii_case("system:nodes")));
}

/// A certificate request in DER.
#[cfg(feature = "node")]
pub fn certificate_request(input: &[u8]) {
    knarr_controllers::certificates::fuzz_request(input);
}

/// CNI requests of a container runtime.
#[cfg(feature = "node")]
pub fn cni(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    knarr_network::cni::fuzzing::request(input);
}

/// A container's log file.
#[cfg(feature = "node")]
pub fn container_log(input: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if file.write_all(input).is_ok() {
        knarr_kubelet::fuzzing::log(file.path());
    }
}

/// DNS messages of clients and of upstream servers.
#[cfg(feature = "node")]
pub fn dns(input: &[u8]) {
    knarr_dns::fuzzing::message(input);
}

/// A database of etcd, which is imported.
pub fn etcd_database(input: &[u8]) {
    knarr_store::fuzzing::database(input);
}

/// A field selector.
pub fn field_selector(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    if let Ok(selector) = FieldSelector::parse(input) {
        let _ = selector.matches_with(|field| field.to_owned().into());
    }
}

/// Responses of pods behind the ingress.
#[cfg(feature = "node")]
pub fn ingress_answer(input: &[u8]) {
    knarr_ingress::fuzzing::response(input);
}

/// Chunked bodies that pass through the ingress.
#[cfg(feature = "node")]
pub fn ingress_chunks(input: &[u8]) {
    knarr_ingress::fuzzing::chunks(input);
}

/// Requests of ingress clients.
#[cfg(feature = "node")]
pub fn ingress_request(input: &[u8]) {
    knarr_ingress::fuzzing::request(input);
}

/// A body in JSON, decoded by the schema of a kind: decoding and encoding round-trip.
pub fn json(input: &[u8]) {
    let Some((kind, body)) = choose(input) else { return };
    let _ = decode::type_meta(body);
    let _ = decode::untyped_json(body);
    let Ok(read) = decode::json(body, node(kind)) else { return };
    let mut value = read.value;
    decode::normalize(&mut value, node(kind));
    let text = serde_json::to_vec(&value).expect("what was read can be written");
    let mut again = decode::json(&text, node(kind)).expect("what was written can be read").value;
    decode::normalize(&mut again, node(kind));
    assert_eq!(value, again);
}

/// A JSON patch, decoded and applied.
pub fn json_patch(input: &[u8]) {
    if let Ok(patch) = JsonPatch::read(input) {
        let _ = patch.apply(&mut pod());
    }
}

/// A label selector.
pub fn label_selector(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    if let Ok(selector) = LabelSelector::parse(input) {
        let _ = selector.matches(pod()["metadata"]["labels"].as_object());
    }
}

/// Manifests of static pods.
#[cfg(feature = "node")]
pub fn manifest(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    knarr_kubelet::fuzzing::manifest(input);
}

/// A merge patch, decoded and applied.
pub fn merge_patch(input: &[u8]) {
    if let Ok(read) = patch::read_merge_patch(input) {
        let mut object = pod();
        patch::merge(&mut object, read.value);
        let _ = decode::value(&object, node(("", "v1", "Pod")));
    }
}

/// A body in Kubernetes' protobuf: decoding and encoding round-trip.
pub fn protobuf(input: &[u8]) {
    let Ok(value) = wire::decode(input, None) else { return };
    let Ok(bytes) = wire::encode(&value) else { return };
    let again = wire::decode(&bytes, None).expect("what was written can be read");
    let bytes_again = wire::encode(&again).expect("what was read can be written");
    assert_eq!(bytes, bytes_again);
}

/// Pages of pods and services that are read through the API server.
#[cfg(feature = "server")]
pub fn proxied_page(input: &[u8]) {
    knarr_apiserver::subresource::connect::fuzzing::page(input);
}

/// Quantities: the canonical form has the same value, and arithmetic does not fail.
pub fn quantity(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let Ok(quantity) = Quantity::parse(input) else { return };
    // Larger ones than anybody may write can be read: sums of those that are written.
    let Ok(text) = canonical(input).map(Cow::into_owned) else { return };
    let again = Quantity::parse(&text).expect("a canonical form can be read");
    assert_eq!(canonical(&text).as_deref(), Ok(text.as_str()));
    let _ = (quantity.value(), quantity.milli_value(), quantity.as_i64(), quantity.as_f64());
    let mut sum = quantity.clone();
    sum.add(&again);
    sum.subtract(&again);
    sum.add(&again);
    sum.round_up(0);
}

/// The store's snapshot on disk.
pub fn store_image(input: &[u8]) {
    knarr_store::fuzzing::image(input);
}

/// The store's log on disk.
pub fn store_log(input: &[u8]) {
    knarr_store::fuzzing::log(input);
}

/// The store's records on disk.
pub fn store_records(input: &[u8]) {
    knarr_store::fuzzing::records(input);
}

/// A strategic merge patch, decoded and applied.
pub fn strategic_patch(input: &[u8]) {
    let kind = ("", "v1", "Pod");
    if let Ok(read) = patch::read_merge_patch(input)
        && let Ok(object) = patch::strategic_merge(pod(), read.value, node(kind))
    {
        let _ = decode::value(&object, node(kind));
    }
}

/// A body in YAML, decoded by the schema of a kind.
pub fn yaml(input: &[u8]) {
    let Some((kind, body)) = choose(input) else { return };
    let _ = decode::untyped_yaml(body);
    if let Ok(read) = decode::yaml(body, node(kind)) {
        serde_json::to_vec(&read.value).expect("what was read can be written");
    }
}
