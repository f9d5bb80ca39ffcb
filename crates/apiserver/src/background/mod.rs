//! Background tasks: compaction of history, repair of allocations, and watches that keep derived state up to date.

mod availability;
mod flow_control;
pub mod kubernetes_service;
mod policy_type_check;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use knarr_store::{Entry, Notice, Range, Retention};
use knarr_supervisor::Supervisor;
use serde_json::Value;

use crate::authorize::POD_FIELDS;
use crate::kinds::Resource;
use crate::persist::raw_json;
use crate::state::ApiServer;
use crate::stored;

/// How long watches can be resumed from old revisions.
const HISTORY_AGE: Duration = Duration::from_secs(5 * 60);
/// Beyond this size, history is compacted early.
const HISTORY_BYTES: usize = 256 * 1024 * 1024;
const RETENTION_INTERVAL: Duration = Duration::from_secs(10);
/// How long a version stays uncompressed in memory, at least.
const PACKING_INTERVAL: Duration = Duration::from_secs(2);
const REPAIR_INTERVAL: Duration = Duration::from_secs(3 * 60);

/// Names of components that health checks refer to.
pub const REPAIR: &str = "service-ip-repair";
pub const DEFINITIONS: &str = "custom-resource-definitions";
pub const AVAILABILITY: &str = "apiservice-availability";
pub const FAIRNESS: &str = "priority-and-fairness";
pub const TOKEN_USES: &str = "token-use-recorder";

/// Starts the background components, which return when the server stops.
pub fn run(server: &Arc<ApiServer>, supervisor: &Supervisor) {
    let start = |name: &'static str, run: fn(Arc<ApiServer>) -> BoxFuture<'static, ()>| {
        let server = server.clone();
        supervisor.restart(name, move || run(server.clone()));
    };
    start("store-compaction", |server| Box::pin(compact(server)));
    start("store-packing", |server| Box::pin(pack(server)));
    start(REPAIR, |server| Box::pin(repair(server)));
    start(DEFINITIONS, |server| Box::pin(crate::definition_controller::run(server)));
    start("policy-type-checks", |server| Box::pin(policy_type_check::run(server)));
    start(AVAILABILITY, |server| Box::pin(availability::run(server)));
    start(FAIRNESS, |server| Box::pin(flow_control::run(server)));
    start(TOKEN_USES, |server| Box::pin(crate::token_use_recorder::record_token_uses(server)));
    type Changed = fn(&ApiServer, Option<&Value>, Option<&Value>);
    let watched: [(&str, &str, Changed); 4] = [
        ("", "pods", |server, old, new| server.security.node_graph.pod_changed(old, new)),
        ("", "persistentvolumes", |server, old, new| server.security.node_graph.volume_changed(old, new)),
        ("storage.k8s.io", "volumeattachments", |server, old, new| {
            server.security.node_graph.attachment_changed(old, new)
        }),
        ("resource.k8s.io", "resourceslices", |server, old, new| server.security.node_graph.slice_changed(old, new)),
    ];
    for (group, plural, changed) in watched {
        let server = server.clone();
        supervisor.restart(format!("node-authorizer/{plural}"), move || watch(server.clone(), group, plural, changed));
    }
}

/// Compacts history that no watch may start from.
async fn compact(server: Arc<ApiServer>) {
    let mut retention = Retention::new(HISTORY_AGE, HISTORY_BYTES);
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(RETENTION_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        if let Some(revision) = retention.due(&*server.backend.store, Instant::now())
            && let Err(error) = server.backend.store.compact(revision).await
        {
            tracing::warn!(%error, revision, "cannot compact history");
        }
    }
}

/// Compresses in memory what most watches have read.
async fn pack(server: Arc<ApiServer>) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(PACKING_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        if let Err(error) = server.backend.store.pack().await {
            tracing::warn!(%error, "cannot compress versions of objects in memory");
        }
    }
}

/// Releases addresses and ports that interrupted writes left allocated.
async fn repair(server: Arc<ApiServer>) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(REPAIR_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        server.services.repair(jiff::Timestamp::now()).await;
    }
}

/// Calls `changed` for every object of a resource, and then for every change.
async fn watch(
    server: Arc<ApiServer>,
    group: &'static str,
    plural: &'static str,
    changed: fn(&ApiServer, Option<&Value>, Option<&Value>),
) {
    let Some(resource) = server.backend.kinds.load().stored(group, plural).cloned() else { return };
    let prefix = resource.range("");
    let mut stopping = server.backend.stopping.clone();
    loop {
        let mut watch = match server.backend.store.peek_range(&Range { prefix: &prefix, ..Range::default() }) {
            Ok(page) => {
                for entry in &page.entries {
                    if let Some(object) = relevant(&resource, entry) {
                        changed(&server, None, Some(&object));
                    }
                }
                match server.backend.store.watch(&prefix, page.revision) {
                    Ok(watch) => watch,
                    Err(error) => {
                        tracing::warn!(%error, plural, "cannot watch a resource");
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, plural, "cannot read a resource");
                return;
            }
        };
        loop {
            let notice = tokio::select! {
                notice = watch.next() => notice,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            match notice {
                Some(Notice::Events(events)) => {
                    for event in &events {
                        if let (Some(old), Some(new)) = (&event.previous, &event.current)
                            && has_same_uses(old, new)
                        {
                            continue;
                        }
                        let read =
                            |entry: &Option<Arc<Entry>>| entry.as_ref().and_then(|entry| relevant(&resource, entry));
                        let (old, new) = (read(&event.previous), read(&event.current));
                        if old.is_some() || new.is_some() {
                            changed(&server, old.as_ref(), new.as_ref());
                        }
                    }
                }
                Some(Notice::Progress(_)) => {}
                // The changes were compacted away: list again.
                Some(Notice::Compacted) => break,
                None => return,
            }
        }
    }
}

/// Pods without a node concern no node and are not parsed.
fn relevant(resource: &Resource, entry: &Entry) -> Option<Value> {
    let value = entry.value();
    if resource.is("", "pods") && memchr::memmem::find(&value, b"\"nodeName\":\"").is_none() {
        return None;
    }
    let read = if resource.is("", "pods") { POD_FIELDS.read(&value).ok() } else { None };
    read.or_else(|| stored::parse(entry).ok())
}

/// Whether a change cannot affect what the object uses, because only its status or metadata changed: as most do.
fn has_same_uses(old: &Entry, new: &Entry) -> bool {
    let (old, new) = (old.value(), new.value());
    let spec = |value: &[u8]| {
        let status_names_claims = memchr::memmem::find(value, b"\"resourceClaimStatuses\"").is_some();
        raw_json::value(value, 1, "spec").filter(|_| !status_names_claims)
    };
    match (spec(&old), spec(&new)) {
        (Some(before), Some(after)) => old[before] == new[after],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_only_the_status_are_skipped() {
        let entry = |text: &str| Entry::new(Arc::from("k"), text.to_owned().into(), 1, 2);
        let old = r#"{"kind":"Pod","metadata":{"name":"p"},"spec":{"nodeName":"n"},"status":{"phase":"Pending"}}"#;
        for (new, same) in [
            (old.replace("Pending", "Running"), true),
            (old.replace("\"p\"", "\"p\",\"labels\":{}"), true),
            (old.replace("\"n\"", "\"m\""), false),
            (old.replace("\"phase\"", "\"resourceClaimStatuses\":[],\"phase\""), false),
            (old.replace(",\"spec\"", ",\"specs\""), false),
            (old[1..].to_owned(), false),
        ] {
            assert_eq!(has_same_uses(&entry(old), &entry(&new)), same, "{new}");
        }
    }
}
