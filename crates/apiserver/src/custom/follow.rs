//! Keeps the served kinds in step with the definitions that are stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::catalogue::Catalogue;
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use knarr_store::{Entry, Error, Notice, Range};
use serde_json::{Value, json};

use super::{CustomType, FINALIZER, definition, names};
use crate::kinds::{Kinds, Resource, path_of};
use crate::persist::{managed_fields, selection, stored};
use crate::state::ApiServer;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// When something could not be written, it is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// Serves what is defined already. Called once before the first request, so that no kind is missing after a restart.
pub fn load(server: &ApiServer) {
    let mut seen = Seen::default();
    seen.serve(server, &definitions(server));
}

/// Follows definitions until the server stops: settles their names, serves their kinds, and clears away what they leave.
pub async fn follow(server: Arc<ApiServer>) {
    let Some(resource) = server.kinds.load().resource(GROUP, "v1", PLURAL).cloned() else { return };
    let prefix = resource.range("");
    let mut stopping = server.stopping.clone();
    let mut seen = Seen::default();
    loop {
        let revision = server.store.revision();
        let mut watch = match server.store.watch(&prefix, revision) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(%error, "cannot follow custom resource definitions");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        loop {
            let settled = reconcile(&server, &resource, &mut seen).await;
            tokio::select! {
                notice = watch.next() => match notice {
                    Some(Notice::Events(_) | Notice::Progress(_)) => {}
                    Some(Notice::Compacted) => break,
                    None => return,
                },
                () = tokio::time::sleep(RETRY), if !settled => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }
}

/// One step towards what the definitions ask for; false when something remains to be done.
async fn reconcile(server: &ApiServer, resource: &Resource, seen: &mut Seen) -> bool {
    let entries = definitions(server);
    let parsed: Vec<(Arc<Entry>, Arc<Value>)> =
        entries.iter().filter_map(|entry| Some((entry.clone(), selection::parsed(entry, true).ok()?))).collect();
    let mut settled = true;
    for (entry, current) in &parsed {
        let group = current.text(&["spec", "group"]);
        let others: Vec<&Value> =
            parsed.iter().map(|(_, other)| &**other).filter(|other| other.text(&["spec", "group"]) == group).collect();
        let mut wanted = (**current).clone();
        let now = time::seconds(jiff::Timestamp::now());
        names::settle(&mut wanted, &others, &now);
        let deleting = wanted.has(&["metadata", "deletionTimestamp"]);
        let finalizes = wanted.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == FINALIZER);
        if deleting && finalizes {
            settled &= clear(server, &mut wanted, &now).await;
        }
        settled &= write(server, resource, entry, &wanted).await;
    }
    if seen.serve(server, &definitions(server)) {
        crate::api_services::publish(server).await;
    }
    settled
}

async fn write(server: &ApiServer, resource: &Resource, entry: &Entry, wanted: &Value) -> bool {
    let finalizers = wanted.items(&["metadata", "finalizers"]);
    if wanted.has(&["metadata", "deletionTimestamp"]) && finalizers.is_empty() {
        return matches!(
            server.store.delete(&entry.key, entry.revision).await,
            Ok(_) | Err(Error::Conflict { current: None, .. })
        );
    }
    if stored::encode(resource, wanted) == entry.value {
        return true;
    }
    let Ok(before) = stored::parse(entry) else { return false };
    let mut wanted = wanted.clone();
    managed_fields::record_status(resource, &before, &mut wanted, jiff::Timestamp::now());
    let value = stored::encode(resource, &wanted);
    match server.store.update(&entry.key, value, entry.revision, None).await {
        Ok(_) => true,
        // Somebody else wrote it; the watch brings the news.
        Err(Error::Conflict { .. }) => true,
        Err(error) => {
            tracing::warn!(%error, key = %entry.key, "cannot settle a custom resource definition");
            false
        }
    }
}

/// Deletes the objects of a definition that goes; takes its finalizer away when none is left.
async fn clear(server: &ApiServer, definition: &mut Value, now: &str) -> bool {
    let prefix = format!(
        "/registry/{}/{}/",
        definition.text(&["spec", "group"]),
        definition.text(&["status", "acceptedNames", "plural"])
    );
    let Ok(page) = server.store.peek_range(&Range { prefix: &prefix, ..Range::default() }) else { return false };
    let mut remaining = 0;
    for entry in &page.entries {
        let Ok(mut object) = stored::parse(entry) else { continue };
        if object.items(&["metadata", "finalizers"]).is_empty() {
            if server.store.delete(&entry.key, entry.revision).await.is_err() {
                remaining += 1;
            }
            continue;
        }
        remaining += 1;
        if !object.has(&["metadata", "deletionTimestamp"]) {
            object.set(&["metadata", "deletionTimestamp"], now);
            object.set(&["metadata", "deletionGracePeriodSeconds"], 0);
            mark(server, entry, &object).await;
        }
    }
    if remaining > 0 {
        let condition = json!({
            "type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress",
            "message": "CustomResource deletion is in progress",
        });
        names::set_condition(definition, condition, now);
        return false;
    }
    let condition = json!({
        "type": "Terminating", "status": "False", "reason": "InstanceDeletionCompleted",
        "message": "removed all instances",
    });
    names::set_condition(definition, condition, now);
    let kept: Vec<Value> =
        definition.items(&["metadata", "finalizers"]).iter().filter(|own| **own != FINALIZER).cloned().collect();
    definition.set(&["metadata", "finalizers"], kept);
    true
}

/// Stores an object as being deleted, so that whoever holds a finalizer acts.
async fn mark(server: &ApiServer, entry: &Entry, object: &Value) {
    let kinds = server.kinds.load_full();
    let api_version = object.text(&["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let owner = kinds.all().find(|resource| {
        let kind = &resource.kind;
        kind.custom && kind.group == group && kind.version == version && kind.kind == object.text(&["kind"])
    });
    let Some(resource) = owner else { return };
    // When another writer is faster, the next round finds the object again.
    let _ = server.store.update(&entry.key, stored::encode(resource, object), entry.revision, None).await;
}

fn definitions(server: &ApiServer) -> Vec<Arc<Entry>> {
    let kinds = server.kinds.load();
    let Some(resource) = kinds.resource(GROUP, "v1", PLURAL) else { return Vec::new() };
    match server.store.peek_range(&Range { prefix: &resource.range(""), ..Range::default() }) {
        Ok(page) => page.entries,
        Err(error) => {
            tracing::error!(%error, "cannot read custom resource definitions");
            Vec::new()
        }
    }
}

/// What is served, so that only what changes is made anew.
#[derive(Default)]
struct Seen {
    /// By name: generation, the revision it was first seen at, and what it brings.
    definitions: HashMap<Arc<str>, Served>,
}

struct Served {
    revision: u64,
    shape: Value,
    since: u64,
    kinds: Vec<(Arc<knarr_api::catalogue::Kind>, Arc<CustomType>)>,
}

impl Seen {
    /// Serves what the definitions ask for; true when that changed.
    fn serve(&mut self, server: &ApiServer, entries: &[Arc<Entry>]) -> bool {
        let mut changed = false;
        let mut next = HashMap::with_capacity(entries.len());
        for entry in entries {
            let served = match self.definitions.remove(&entry.key) {
                Some(served) if served.revision == entry.revision => served,
                before => {
                    let Ok(object) = selection::parsed(entry, true) else { continue };
                    // Only these parts decide what is served.
                    let shape = json!([object["spec"], object["status"]["acceptedNames"], conditions(&object)]);
                    match before {
                        Some(served) if served.shape == shape => Served { revision: entry.revision, ..served },
                        before => {
                            changed = true;
                            let same_spec = before.as_ref().filter(|served| served.shape[0] == shape[0]);
                            let since = same_spec.map_or(entry.revision, |served| served.since);
                            let kinds = definition::kinds_of(&object, since);
                            Served { revision: entry.revision, shape, since, kinds }
                        }
                    }
                }
            };
            next.insert(entry.key.clone(), served);
        }
        changed |= !self.definitions.is_empty();
        self.definitions = next;
        if changed {
            let defined = self.definitions.values().flat_map(|served| served.kinds.iter().cloned());
            let all = defined.chain(server.discovery.provided.kinds());
            let catalogue = Catalogue::with_custom(all.clone().map(|(kind, _)| kind));
            let custom: HashMap<String, Arc<CustomType>> =
                all.map(|(kind, custom)| (path_of(&kind.group, &kind.version, &kind.plural), custom)).collect();
            let descriptions = server.kinds.load().descriptions.clone();
            server.kinds.store(Arc::new(Kinds::new(catalogue, &custom, descriptions)));
        }
        changed
    }
}

fn conditions(object: &Value) -> Value {
    let conditions = object.items(&["status", "conditions"]).iter();
    conditions.map(|condition| json!([condition["type"], condition["status"]])).collect()
}
