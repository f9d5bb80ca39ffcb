//! Discovery documents, from which clients learn the served kinds.
//!
//! The older form is a tree of small documents ([`api_versions`], [`group_list`], [`group`], [`resource_list`]); the newer one
//! lists everything at `/api` and `/apis` ([`aggregated_core`], [`aggregated_groups`]). All are built from the
//! catalogue as JSON values; the protobuf encoder handles them like any object.

mod aggregated;
mod legacy;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

use crate::catalogue::{Kind, Verb};

pub use aggregated::{aggregated_core, aggregated_groups};
pub use legacy::{api_versions, group, group_list, resource_list};

/// The entity tag of a document, quotes included.
pub fn etag(document: &[u8]) -> String {
    let mut tag = String::with_capacity(130);
    tag.push('"');
    for byte in Sha512::digest(document) {
        tag.push_str(&format!("{byte:02X}"));
    }
    tag.push('"');
    tag
}

/// The hash with which clients detect a change of the storage version.
fn storage_version_hash(kind: &Kind) -> Option<String> {
    let storage = kind.storage.as_ref()?;
    let stored = [storage.group.as_str(), &storage.version, &kind.kind].join("/");
    Some(STANDARD.encode(&Sha256::digest(stored)[..8]))
}

/// Custom kinds list their verbs in another order.
fn verbs(kind: &Kind) -> Vec<&'static str> {
    const CUSTOM: [Verb; 8] = [
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Create,
        Verb::Update,
        Verb::Watch,
    ];
    if !kind.custom {
        return kind.verbs.iter().map(Verb::name).collect();
    }
    CUSTOM.into_iter().filter(|verb| kind.verbs.contains(*verb)).map(Verb::name).collect()
}
