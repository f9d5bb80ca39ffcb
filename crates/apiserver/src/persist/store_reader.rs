//! Reads of other objects for admission and authorization, from the memory of the store.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::FutureExt;
use knarr_api::status::Status;
use knarr_store::{Notice, Range, Store, Watch};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::store_error;
use crate::kinds::{Kinds, Resource};
use crate::object_reader::ObjectReader;
use crate::selection;
use crate::selection::projection::Projection;
use crate::stored;

const LABELS: Projection = Projection::Fields(&[("metadata", Projection::Fields(&[("labels", Projection::All)]))]);

/// An `ObjectReader` on the store.
pub struct StoreReader {
    store: Arc<dyn Store>,
    kinds: Arc<ArcSwap<Kinds>>,
    /// A watch for each resource whose version was requested, to notice its changes.
    versions: Mutex<Vec<Version>>,
}

struct Version {
    group: String,
    resource: String,
    watch: Box<dyn Watch>,
    number: u64,
}

impl StoreReader {
    pub fn new(store: Arc<dyn Store>, kinds: Arc<ArcSwap<Kinds>>) -> StoreReader {
        StoreReader { store, kinds, versions: Mutex::default() }
    }

    fn resource(&self, group: &str, resource: &str) -> Option<Arc<Resource>> {
        self.kinds.load().stored(group, resource).cloned()
    }
}

/// Few objects of kinds that are compiled when one changes are parsed again then: cached, they would only take memory.
const MIN_CACHED_COMPILED: usize = 500;

/// Whether the parsed objects of a read of `length` objects are cached. Kinds with many or large objects are parsed each time, to
/// save memory.
fn caches(resource: &Resource, length: usize) -> bool {
    let (group, plural) = (resource.kind.group.as_str(), resource.kind.plural.as_str());
    let is_large = matches!(
        plural,
        "pods"
            | "events"
            | "secrets"
            | "configmaps"
            | "endpointslices"
            | "endpoints"
            | "replicasets"
            | "nodes"
            | "services"
    );
    let is_compiled =
        matches!(group, "rbac.authorization.k8s.io" | "flowcontrol.apiserver.k8s.io" | "apiregistration.k8s.io");
    resource.custom.is_none() && !is_large && (!is_compiled || length >= MIN_CACHED_COMPILED)
}

impl ObjectReader for StoreReader {
    fn read(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, Status> {
        let Some(resource) = self.resource(group, resource) else { return Ok(None) };
        let entry = self.store.peek(&resource.key(namespace, name));
        entry.map(|entry| selection::parsed(&entry, caches(&resource, 1))).transpose()
    }

    fn read_labels(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Map<String, Value>>, Status> {
        let Some(resource) = self.resource(group, resource) else { return Ok(None) };
        let Some(entry) = self.store.peek(&resource.key(namespace, name)) else { return Ok(None) };
        // What this parser refuses may be nested deeply, or is an error that the other one describes.
        let mut object = LABELS.read(&entry.value()).or_else(|_| stored::parse(&entry))?;
        match object["metadata"]["labels"].take() {
            Value::Object(labels) => Ok(Some(labels)),
            _ => Ok(Some(Map::new())),
        }
    }

    fn read_all(&self, group: &str, resource: &str, namespace: &str) -> Result<Vec<Arc<Value>>, Status> {
        let Some(resource) = self.resource(group, resource) else { return Ok(Vec::new()) };
        let prefix = resource.range(namespace);
        let page = self.store.peek_range(&Range { prefix: &prefix, ..Range::default() }).map_err(store_error)?;
        let keep = caches(&resource, page.entries.len());
        page.entries.iter().map(|entry| selection::parsed(entry, keep)).collect()
    }

    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let resource = self.resource(group, resource)?;
        let entry = self.store.peek(&resource.key(namespace, name))?;
        selection::parsed(&entry, caches(&resource, 1)).ok()
    }

    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let Some(resource) = self.resource(group, resource) else { return Vec::new() };
        let prefix = resource.range(namespace);
        match self.store.peek_range(&Range { prefix: &prefix, ..Range::default() }) {
            Ok(page) => {
                let keep = caches(&resource, page.entries.len());
                page.entries.iter().filter_map(|entry| selection::parsed(entry, keep).ok()).collect()
            }
            Err(error) => {
                tracing::error!(%error, %prefix, "cannot list for admission");
                Vec::new()
            }
        }
    }

    fn version(&self, group: &str, resource: &str) -> u64 {
        let mut versions = self.versions.lock();
        // Called for every request, for a dozen resources in all.
        let known = versions.iter().position(|version| version.resource == resource && version.group == group);
        let at = match known {
            Some(at) => at,
            None => {
                let Some(found) = self.resource(group, resource) else { return 0 };
                let number = self.store.revision();
                match self.store.watch(&found.range(""), number) {
                    Ok(watch) => {
                        let (group, resource) = (group.to_owned(), resource.to_owned());
                        versions.push(Version { group, resource, watch, number });
                    }
                    // Without a watch every revision counts as a change.
                    Err(_) => return number,
                }
                versions.len() - 1
            }
        };
        let version = &mut versions[at];
        loop {
            match version.watch.next().now_or_never() {
                Some(Some(Notice::Events(events))) => {
                    version.number = events.last().map_or(version.number, |event| event.revision);
                }
                Some(Some(Notice::Progress(_))) => {}
                Some(Some(Notice::Compacted) | None) => {
                    versions.swap_remove(at);
                    return self.store.revision();
                }
                None => return version.number,
            }
        }
    }
}
