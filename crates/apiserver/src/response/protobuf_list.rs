//! Lists as protobuf. Their length comes before their items, so that large lists are encoded twice: once to know it, and
//! once to send it.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use knarr_api::catalogue::GroupVersionKind;
use knarr_api::protobuf;
use knarr_api::status::Status;
use knarr_store::Entry;
use serde_json::Value;

use super::list::{Items, SMALL_LIST};
use super::produced::Produced;
use super::{Body, encoder_pool, with_type};
use crate::route::accept::{PROTOBUF, Shape};

/// Encoded items of the first pass are kept up to this size.
const MAX_KEPT: usize = 2 * 1024 * 1024;
/// How many items are encoded at once: a few milliseconds' work.
const BATCH: usize = 128;
const CHUNK_SIZE: usize = 64 * 1024;

/// An item of the list: encoded, or to be encoded again.
enum Item {
    Encoded(Vec<u8>),
    Entry(Arc<Entry>),
}

/// A response with the list.
pub async fn response(items: Items, entries: Vec<Arc<Entry>>, metadata: &Value) -> Result<Response<Body>, Status> {
    let encoder = Arc::new(Encoder::new(items));
    let is_small = entries.iter().map(|entry| entry.value_len()).sum::<usize>() <= SMALL_LIST;
    let (mut lengths, mut encoded, mut kept) = (Vec::with_capacity(entries.len()), Vec::new(), 0);
    for batch in entries.chunks(BATCH) {
        let items = if is_small {
            encoder.encode_all(batch)?
        } else {
            let (encoder, batch) = (encoder.clone(), batch.to_vec());
            let encoding = encoder_pool::run(move || encoder.encode_all(&batch));
            encoding.await.map_err(|_| Status::internal("the encoder failed"))??
        };
        for (bytes, entry) in items.into_iter().zip(batch) {
            lengths.push(bytes.len());
            kept += bytes.len();
            encoded.push(if kept <= MAX_KEPT { Item::Encoded(bytes) } else { Item::Entry(entry.clone()) });
        }
    }
    drop(entries);
    let (kind, api_version) = encoder.items.list_kind();
    let head =
        protobuf::list_prefix(&api_version, &kind, metadata, lengths.iter().copied()).map_err(Status::internal)?;
    let items: usize = lengths.iter().map(|length| protobuf::list_item_prefix(*length).len() + length).sum();
    let length = head.len() + items + protobuf::list_suffix().len();
    let chunks = ProtobufChunks { encoder, lengths: lengths.into_iter(), items: encoded.into_iter(), head: Some(head) };
    let body = if is_small {
        let mut whole = Vec::with_capacity(length);
        for chunk in chunks {
            whole.extend_from_slice(&chunk?);
        }
        Body::full(whole)
    } else {
        Body::Produced(Produced::start(chunks, Some(length)).await?)
    };
    Ok(with_type(200, PROTOBUF, body))
}

struct Encoder {
    items: Items,
    kind: GroupVersionKind,
}

impl Encoder {
    fn new(items: Items) -> Encoder {
        let kind = match items.format.shape {
            Shape::Whole | Shape::Table => items.resource.kind.group_version_kind(),
            Shape::Partial | Shape::PartialList => {
                GroupVersionKind::new(&format!("meta.k8s.io/{}", items.format.meta_version), "PartialObjectMetadata")
            }
        };
        Encoder { items, kind }
    }

    fn encode(&self, entry: &Entry) -> Result<Vec<u8>, Status> {
        protobuf::encode_message(&self.kind, &self.items.value(entry)?).map_err(Status::internal)
    }

    fn encode_all(&self, entries: &[Arc<Entry>]) -> Result<Vec<Vec<u8>>, Status> {
        entries.iter().map(|entry| self.encode(entry)).collect()
    }
}

struct ProtobufChunks {
    encoder: Arc<Encoder>,
    lengths: std::vec::IntoIter<usize>,
    items: std::vec::IntoIter<Item>,
    /// The bytes before the next items; `None` after the end.
    head: Option<Vec<u8>>,
}

impl Iterator for ProtobufChunks {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Result<Bytes, Status>> {
        let mut chunk = self.head.take()?;
        for (item, length) in self.items.by_ref().zip(self.lengths.by_ref()) {
            let bytes = match item {
                Item::Encoded(bytes) => bytes,
                Item::Entry(entry) => match self.encoder.encode(&entry) {
                    Ok(bytes) => bytes,
                    Err(status) => return Some(Err(status)),
                },
            };
            debug_assert_eq!(bytes.len(), length, "an entry never changes");
            chunk.extend_from_slice(&protobuf::list_item_prefix(bytes.len()));
            chunk.extend_from_slice(&bytes);
            if chunk.len() >= CHUNK_SIZE {
                self.head = Some(Vec::new());
                return Some(Ok(chunk.into()));
            }
        }
        chunk.extend_from_slice(protobuf::list_suffix());
        Some(Ok(chunk.into()))
    }
}
