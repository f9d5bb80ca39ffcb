//! Reads what kube-apiserver wrote into a shared etcd: built-in kinds in protobuf, custom resources as JSON with its fields
//! in another order. Both become the stored form of this server ([`stored`]) as soon as they are read.
//!
//! kube-apiserver reads JSON as well as protobuf, so nothing needs to be converted for it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use knarr_api::catalogue::{Catalogue, GroupVersionKind};
use knarr_api::protobuf::{self, MAGIC, ProtobufError};
use knarr_store::Decode;
use serde_json::Value;

use super::former_definition;
use crate::decode;
use crate::kinds::{Kinds, Resource, no_descriptions};
use crate::stored;

/// How a built-in object of this server starts.
const OWN_START: &[u8] = b"{\"kind\":";

/// For one release, kube-apiserver stores kinds in a version that it no longer serves by default. The fields are the same in the
/// version that it does serve.
const FORMER_VERSIONS: [(&str, &str); 1] =
    [("admissionregistration.k8s.io/v1beta1", "admissionregistration.k8s.io/v1")];

/// Converts values of kube-apiserver; those of this server are passed on as they are.
pub fn decoder() -> Decode {
    // Built for the first value that needs it.
    let kinds: OnceLock<Kinds> = OnceLock::new();
    Arc::new(move |key, value| {
        if !is_foreign(&value) {
            return Bytes::from(value);
        }
        let kinds = kinds.get_or_init(|| Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions()));
        convert(kinds, &value).unwrap_or_else(|error| {
            tracing::warn!(key, error, "cannot read an object that another server stored");
            Bytes::from(value)
        })
    })
}

fn is_foreign(value: &[u8]) -> bool {
    value.starts_with(&MAGIC)
        || value.starts_with(former_definition::START)
        || (value.starts_with(b"{") && !value.starts_with(OWN_START) && !is_in_order(value))
}

/// Whether a custom resource starts with its version, kind and metadata.
fn is_in_order(value: &[u8]) -> bool {
    let after = |rest: &'_ [u8], start: &[u8]| -> Option<usize> {
        let text = rest.strip_prefix(start)?;
        // Neither versions nor kinds contain quotes.
        Some(start.len() + text.iter().position(|byte| *byte == b'"')?)
    };
    let Some(version) = after(value, b"{\"apiVersion\":\"") else { return false };
    let Some(kind) = after(&value[version..], b"\",\"kind\":\"") else { return false };
    value[version + kind..].starts_with(b"\",\"metadata\":{")
}

fn convert(kinds: &Kinds, value: &[u8]) -> Result<Bytes, String> {
    let mut object = if value.starts_with(&MAGIC) {
        decode_protobuf(value).map_err(|error| error.to_string())?
    } else {
        stored::read(value).map_err(|error| error.to_string())?
    };
    if object.get("apiVersion").is_some_and(|version| version == former_definition::FORMER_VERSION) {
        former_definition::convert(&mut object);
    }
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (mut version, kind) = (text("apiVersion"), text("kind"));
    if resource(kinds, &version, &kind).is_none()
        && let Some((_, served)) = FORMER_VERSIONS.iter().find(|(former, _)| *former == version)
    {
        version = (*served).to_owned();
        object["apiVersion"] = version.as_str().into();
    }
    if version.is_empty() || kind.is_empty() {
        // A record of another kind, such as one of this server's own.
        return Ok(Bytes::copy_from_slice(value));
    }
    match resource(kinds, &version, &kind) {
        Some(resource) => {
            let own = stored::stored_api_version(resource);
            stored::convert_between(resource, &mut object, &version, &own);
            // kube-apiserver sets defaults whenever it reads, also those of fields that its strategies clear.
            // An object that is there is kept, whatever its defaults are.
            let _ = decode::set_defaults(resource, &mut object);
            Ok(stored::encode(resource, &object))
        }
        None => Ok(stored::encode_custom(&version, &kind, &object)),
    }
}

fn decode_protobuf(value: &[u8]) -> Result<Value, ProtobufError> {
    let decoded = protobuf::decode(value, None);
    if let Err(ProtobufError::UnknownKind { version, .. }) = &decoded
        && let Some((_, served)) = FORMER_VERSIONS.iter().find(|(former, _)| former == version)
    {
        return protobuf::decode_in(served, value);
    }
    decoded
}

/// The built-in resource of a kind, in the version in which it is stored.
fn resource<'k>(kinds: &'k Kinds, version: &str, kind: &str) -> Option<&'k Arc<Resource>> {
    let named = GroupVersionKind::new(version, kind);
    let found = kinds.catalogue.kind(&named.group, &named.version, &named.kind)?;
    kinds.stored(&found.group, &found.plural)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(bytes: Vec<u8>) -> Value {
        let decoded = decoder()("/registry/some/key", bytes);
        assert!(decoded.starts_with(OWN_START), "{:?}", String::from_utf8_lossy(&decoded));
        serde_json::from_slice(&decoded).unwrap()
    }

    #[test]
    fn protobuf_becomes_the_stored_form() {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "data": {"key": "dmFsdWU="},
        });
        assert_eq!(read(protobuf::encode(&secret).unwrap()), secret);
    }

    /// What kube-apiserver leaves to its defaults is there for readers, and for the rules of updates.
    #[test]
    fn defaults_are_set() {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a", "namespace": "b"},
            "spec": {"accessModes": ["ReadWriteOnce"]},
        });
        assert_eq!(read(protobuf::encode(&claim).unwrap())["status"]["phase"], "Pending");
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a", "namespace": "b"},
            "spec": {"serviceName": "s", "template": {}, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]},
        });
        let claims = &read(protobuf::encode(&set).unwrap())["spec"]["volumeClaimTemplates"];
        assert_eq!((&claims[0]["kind"], &claims[0]["apiVersion"]), (&json!("PersistentVolumeClaim"), &json!("v1")));
    }

    /// For every built-in kind that is stored, an object that kube-apiserver stored is read under its stored version.
    #[test]
    fn every_stored_kind_is_read_from_protobuf() {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let mut count = 0;
        for resource in kinds.all().filter(|resource| resource.storage().is_some()) {
            let object = json!({
                "apiVersion": resource.kind.api_version(), "kind": resource.kind.kind, "metadata": {"name": "a"},
            });
            if !protobuf::supports(&resource.kind.group_version_kind()) {
                continue;
            }
            let bytes = protobuf::encode(&object).unwrap();
            let decoded = decoder()("/registry/some/key", bytes);
            let stored = kinds.stored(&resource.kind.group, &resource.kind.plural).unwrap();
            assert!(decoded.starts_with(stored.head()), "{} {}", resource.kind.group, resource.kind.plural);
            count += 1;
        }
        assert!(count >= 60, "{count}");
    }

    /// As kube-apiserver v1.36 stores it.
    #[test]
    fn kinds_in_a_version_that_is_no_longer_served_are_read() {
        let served = json!({
            "kind": "MutatingAdmissionPolicyBinding", "apiVersion": "admissionregistration.k8s.io/v1",
            "metadata": {"name": "a"}, "spec": {"policyName": "p"},
        });
        let kind = GroupVersionKind::new("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding");
        let message = protobuf::encode_message(&kind, &served).unwrap();
        let bytes = protobuf::wrap("admissionregistration.k8s.io/v1beta1", &kind.kind, &message);
        assert_eq!(read(bytes), served);
    }

    #[test]
    fn definitions_of_custom_resources_are_read_in_their_present_version() {
        let text = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"a.b.org"},"spec":{"group":"b.org","version":"v1","names":{"plural":"a","kind":"A"},"scope":"Cluster","validation":{"openAPIV3Schema":{"type":"object"}},"versions":[{"name":"v1","served":true,"storage":true}],"preserveUnknownFields":false}}"#;
        let definition = read(text.to_vec());
        assert_eq!(definition["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["type"], "object");
        assert_eq!(definition["spec"].get("version"), None);
    }

    #[test]
    fn custom_resources_are_brought_into_order() {
        let decoded = decoder()(
            "/registry/example.org/widgets/a",
            br#"{"apiVersion":"example.org/v1","color":"red","kind":"Widget","metadata":{"name":"a"},"size":1}"#
                .to_vec(),
        );
        let expected =
            r#"{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"a"},"color":"red","size":1}"#;
        assert_eq!(decoded, expected);
    }

    #[test]
    fn own_objects_records_and_damaged_values_pass_unchanged() {
        for value in [
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#.as_bytes(),
            br#"{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1}}"#,
            br#"{"authority":"a","server":"b"}"#,
            b"k8s\0\xff\xff",
            b"k8s:enc:aescbc:v1:key:...",
            b"{",
            b"",
        ] {
            assert_eq!(decoder()("/registry/a", value.to_vec()), value);
        }
    }
}
