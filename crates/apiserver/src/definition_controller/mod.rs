//! The controller of CustomResourceDefinitions: accepts their names, serves their kinds and deletes their objects.

mod names;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use knarr_rules::apiextensions::custom_resource_definition::FINALIZER;
use knarr_rules::common::conditions::set_condition;
use knarr_store::{Entry, Error, Range};
use serde_json::{Value, json};

use crate::custom::{CustomType, definition};
use crate::kinds::{Kinds, Resource, path_of};
use crate::persist::managed_fields;
use crate::resource_changes::ResourceChanges;
use crate::selection;
use crate::state::ApiServer;
use crate::stored;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// The delay before a failed reconciliation is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Serves the stored definitions. Called once before the first request, so that no kind is missing after a restart.
pub fn load(server: &ApiServer) {
    let mut served_definitions = ServedDefinitions::default();
    served_definitions.serve(server, &definitions(server));
}

/// Watches definitions and reconciles them until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    let Some(resource) = server.backend.kinds.load().resource(GROUP, "v1", PLURAL).cloned() else { return };
    let mut served_definitions = ServedDefinitions::default();
    let Some(mut changes) = ResourceChanges::open(&server, resource.range(""), PLURAL).await else { return };
    loop {
        let is_done = reconcile(&server, &resource, &mut served_definitions).await;
        if !changes.next((!is_done).then_some(RETRY_DELAY)).await {
            return;
        }
    }
}

/// Reconciles all definitions; false if something remains to be done.
async fn reconcile(server: &ApiServer, resource: &Resource, served_definitions: &mut ServedDefinitions) -> bool {
    let entries = definitions(server);
    let parsed: Vec<(Arc<Entry>, Arc<Value>)> =
        entries.iter().filter_map(|entry| Some((entry.clone(), selection::parsed(entry, true).ok()?))).collect();
    let mut is_done = true;
    for (entry, current) in &parsed {
        let group = current.text(&["spec", "group"]);
        let others: Vec<&Value> =
            parsed.iter().map(|(_, other)| &**other).filter(|other| other.text(&["spec", "group"]) == group).collect();
        let mut desired = (**current).clone();
        let now = time::seconds(jiff::Timestamp::now());
        names::reconcile_status(&mut desired, &others, &now);
        let deleting = desired.has(&["metadata", "deletionTimestamp"]);
        let finalizes = desired.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == FINALIZER);
        if deleting && finalizes {
            is_done &= delete_objects(server, &mut desired, &now).await;
        }
        is_done &= write(server, resource, entry, &desired).await;
    }
    if served_definitions.serve(server, &definitions(server)) {
        crate::api_services::publish(server).await;
    }
    is_done
}

async fn write(server: &ApiServer, resource: &Resource, entry: &Entry, desired: &Value) -> bool {
    let finalizers = desired.items(&["metadata", "finalizers"]);
    if desired.has(&["metadata", "deletionTimestamp"]) && finalizers.is_empty() {
        return matches!(
            server.backend.store.delete(&entry.key, entry.revision).await,
            Ok(_) | Err(Error::Conflict { current: None, .. })
        );
    }
    if stored::encode(resource, desired) == entry.value() {
        return true;
    }
    let Ok(before) = stored::parse(entry) else { return false };
    let mut desired = desired.clone();
    managed_fields::record_status(resource, &before, &mut desired, jiff::Timestamp::now());
    let value = stored::encode(resource, &desired);
    match server.backend.store.update(&entry.key, value, entry.revision, None).await {
        Ok(_) => true,
        // Changed by another writer; the watch triggers the next reconciliation.
        Err(Error::Conflict { .. }) => true,
        Err(error) => {
            tracing::warn!(%error, key = %entry.key, "cannot update a custom resource definition");
            false
        }
    }
}

/// Deletes the objects of a terminating definition; removes its finalizer once none is left.
async fn delete_objects(server: &ApiServer, definition: &mut Value, now: &str) -> bool {
    let prefix = format!(
        "/registry/{}/{}/",
        definition.text(&["spec", "group"]),
        definition.text(&["status", "acceptedNames", "plural"])
    );
    let Ok(page) = server.backend.store.peek_range(&Range { prefix: &prefix, ..Range::default() }) else {
        return false;
    };
    let mut remaining = 0;
    for entry in &page.entries {
        let Ok(mut object) = stored::parse(entry) else { continue };
        if object.items(&["metadata", "finalizers"]).is_empty() {
            if server.backend.store.delete(&entry.key, entry.revision).await.is_err() {
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
        set_condition(definition, condition, now);
        return false;
    }
    let condition = json!({
        "type": "Terminating", "status": "False", "reason": "InstanceDeletionCompleted",
        "message": "removed all instances",
    });
    set_condition(definition, condition, now);
    let finalizers: Vec<Value> =
        definition.items(&["metadata", "finalizers"]).iter().filter(|own| **own != FINALIZER).cloned().collect();
    definition.set(&["metadata", "finalizers"], finalizers);
    true
}

/// Stores an object as terminating, so that the owners of its finalizers act.
async fn mark(server: &ApiServer, entry: &Entry, object: &Value) {
    let kinds = server.backend.kinds.load_full();
    let api_version = object.text(&["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let owner = kinds.all().find(|resource| {
        let kind = &resource.kind;
        kind.custom && kind.group == group && kind.version == version && kind.kind == object.text(&["kind"])
    });
    let Some(resource) = owner else { return };
    // On a conflict, the next reconciliation finds the object again.
    let _ = server.backend.store.update(&entry.key, stored::encode(resource, object), entry.revision, None).await;
}

fn definitions(server: &ApiServer) -> Vec<Arc<Entry>> {
    let kinds = server.backend.kinds.load();
    let Some(resource) = kinds.resource(GROUP, "v1", PLURAL) else { return Vec::new() };
    match server.backend.store.peek_range(&Range { prefix: &resource.range(""), ..Range::default() }) {
        Ok(page) => page.entries,
        Err(error) => {
            tracing::error!(%error, "cannot read custom resource definitions");
            Vec::new()
        }
    }
}

/// The served definitions, so that only changed ones are compiled again.
#[derive(Default)]
struct ServedDefinitions {
    /// By name: generation, the first revision with it, and the compiled kinds.
    definitions: HashMap<Arc<str>, Served>,
}

struct Served {
    revision: u64,
    shape: Value,
    since: u64,
    kinds: Vec<(Arc<knarr_api::catalogue::Kind>, Arc<CustomType>)>,
}

impl ServedDefinitions {
    /// Serves the kinds of all definitions; true if they changed.
    fn serve(&mut self, server: &ApiServer, entries: &[Arc<Entry>]) -> bool {
        let mut changed = false;
        let mut next = HashMap::with_capacity(entries.len());
        for entry in entries {
            let served = match self.definitions.remove(&entry.key) {
                Some(served) if served.revision == entry.revision => served,
                before => {
                    let Ok(object) = selection::parsed(entry, true) else { continue };
                    // Only these fields decide what is served.
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
            let catalogue = server.backend.behaviour.built_in.with_custom(all.clone().map(|(kind, _)| kind));
            let custom: HashMap<String, Arc<CustomType>> =
                all.map(|(kind, custom)| (path_of(&kind.group, &kind.version, &kind.plural), custom)).collect();
            let descriptions = server.backend.kinds.load().descriptions.clone();
            server.backend.kinds.store(Arc::new(Kinds::new(catalogue, &custom, descriptions)));
        }
        changed
    }
}

fn conditions(object: &Value) -> Value {
    let conditions = object.items(&["status", "conditions"]).iter();
    conditions.map(|condition| json!([condition["type"], condition["status"]])).collect()
}
