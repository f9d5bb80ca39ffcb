//! OpenAPI documents, built on request and cached in compressed form until the catalogue changes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use knarr_api::catalogue::Catalogue;
use knarr_api::discovery::etag;
use knarr_api::openapi::{self, Additions, CustomSchema, Source};
use parking_lot::Mutex;

use crate::aggregate::Remotes;
use crate::aggregate::discovery::merge_openapi_index;
use crate::kinds::Kinds;

/// Compressed documents of the current catalogue.
#[derive(Default)]
pub struct Cache(Mutex<Option<CachedDocuments>>);

struct CachedDocuments {
    catalogue: Catalogue,
    /// Of the aggregated servers.
    generation: u64,
    documents: HashMap<String, CompressedDocument>,
}

impl CachedDocuments {
    fn are_of(&self, kinds: &Kinds, remotes: &Remotes) -> bool {
        self.catalogue.same(&kinds.catalogue) && self.generation == remotes.generation
    }
}

/// A compressed document with its entity tag.
#[derive(Clone)]
pub struct CompressedDocument {
    pub bytes: Bytes,
    pub etag: Arc<str>,
}

impl CompressedDocument {
    pub fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        if let Err(error) = GzDecoder::new(&self.bytes[..]).read_to_end(&mut plain) {
            tracing::error!(%error, "cannot decompress an OpenAPI document");
        }
        plain
    }
}

impl Cache {
    /// The document at a path, built unless it is in the cache; `None` if there is no such document.
    pub fn get(&self, kinds: &Kinds, remotes: &Remotes, path: &str, protobuf: bool) -> Option<CompressedDocument> {
        let name = format!("{path} {protobuf}");
        if let Some(cached) = &*self.0.lock()
            && cached.are_of(kinds, remotes)
            && let Some(compressed) = cached.documents.get(&name)
        {
            return Some(compressed.clone());
        }
        let compressed = pack(&make(kinds, remotes, path, protobuf)?);
        let mut cache = self.0.lock();
        let cached = match &mut *cache {
            Some(cached) if cached.are_of(kinds, remotes) => cached,
            other => other.insert(CachedDocuments {
                catalogue: kinds.catalogue.clone(),
                generation: remotes.generation,
                documents: HashMap::new(),
            }),
        };
        Some(cached.documents.entry(name).or_insert(compressed).clone())
    }

    /// The index with the documents of aggregated servers. This server's own index has a hash of each document, so it is cached.
    pub fn merged_index(&self, kinds: &Kinds, remotes: &Remotes) -> CompressedDocument {
        let own = self.get(kinds, remotes, "v3", false).map(|own| own.plain()).unwrap_or_default();
        let mut index = serde_json::from_slice(&own).unwrap_or_default();
        merge_openapi_index(&mut index, remotes);
        pack(index.to_string().as_bytes())
    }
}

fn make(kinds: &Kinds, remotes: &Remotes, path: &str, protobuf: bool) -> Option<Vec<u8>> {
    let describe = (kinds.descriptions)();
    let resources: Vec<_> = kinds.all().collect();
    let custom: Vec<CustomSchema<'_>> = resources
        .iter()
        .filter_map(|resource| Some(CustomSchema::new(&resource.kind, &resource.custom.as_ref()?.open_api)))
        .collect();
    let source = Source { catalogue: &kinds.catalogue, custom: &custom, describe: &*describe };
    match (path, protobuf) {
        ("v2", false) => Some(openapi::v2_json(&source, &Additions::merge(&source, remotes.openapi_parts()))),
        ("v2", true) => Some(openapi::v2_protobuf(&source, &Additions::merge(&source, remotes.openapi_parts()))),
        ("v3", _) => serde_json::to_vec(&openapi::v3_index(&source)).ok(),
        (path, false) => openapi::v3_json(&source, path.strip_prefix("v3/")?),
        (path, true) => openapi::v3_protobuf(&source, path.strip_prefix("v3/")?),
    }
}

fn pack(document: &[u8]) -> CompressedDocument {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let compressed = encoder.write_all(document).and_then(|()| encoder.finish()).unwrap_or_default();
    CompressedDocument { bytes: compressed.into(), etag: etag(document).into() }
}
