//! Aggregated discovery documents in their encoded form.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use knarr_api::catalogue::Catalogue;
use knarr_api::status::Status;
use knarr_api::{discovery, protobuf};
use parking_lot::Mutex;
use serde_json::Value;

use crate::response::served_bytes;
use crate::route::accept::{self, Encoding};

/// Encoded documents of the current catalogue.
#[derive(Default)]
pub struct Cache(Mutex<Option<(Catalogue, HashMap<String, Encoded>)>>);

/// A document with its entity tag.
#[derive(Clone)]
pub struct Encoded {
    pub bytes: Bytes,
    pub etag: Arc<str>,
}

impl Cache {
    /// The document of a name, encoded unless it is in the cache.
    pub fn get(
        &self,
        catalogue: &Catalogue,
        name: &str,
        encoding: Encoding,
        document: &Value,
    ) -> Result<Encoded, Status> {
        let mut cache = self.0.lock();
        let documents = match &mut *cache {
            Some((own, documents)) if own.same(catalogue) => documents,
            other => &mut other.insert((catalogue.clone(), HashMap::new())).1,
        };
        if let Some(cached) = documents.get(name) {
            return Ok(cached.clone());
        }
        let json = served_bytes(document, &accept::Format::JSON);
        let etag = discovery::etag(&json).into();
        let bytes = match encoding {
            Encoding::Protobuf => protobuf::encode(document).map_err(|error| Status::internal(error.to_string()))?,
            _ => json,
        };
        let made = Encoded { etag, bytes: bytes.into() };
        documents.insert(name.to_owned(), made.clone());
        Ok(made)
    }
}
