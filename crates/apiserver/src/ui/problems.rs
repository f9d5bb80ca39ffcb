//! Diagnoses the cluster, or one object, with what the user may read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_why::{Evidence, explain, logs_needed, survey};
use serde_json::{Value, json};

use super::own_client::{Client, Turns};
use crate::request::User;
use crate::route::query::Query;
use crate::state::ApiServer;

/// Diagnoses run one at a time: each holds a part of the cluster in memory.
static TURNS: Turns = Turns::new();

/// How many objects of a kind are read, and how many at a time: most of what a list contains is dropped at once.
const MAX_LISTED: usize = 5000;
const PAGE_SIZE: usize = 500;

/// How many objects are diagnosed, and how many logs are read for that.
const MAX_DIAGNOSED: usize = 200;
const MAX_LOGS: usize = 10;
const LOG_LINES: usize = 3;

/// The diagnosis of one object when the query names it, else of all that need one.
pub async fn find(server: &Arc<ApiServer>, user: &User, query: &Query) -> Result<Value, Status> {
    let _turn = TURNS.next().await?;
    let client = Client::new(server, user);
    let namespace = query.text("namespace");
    if !namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(Status::bad_request("not the name of a namespace"));
    }
    let Lists { items: lists, incomplete, unreadable } = client.lists(namespace).await?;
    let (candidates, truncated, examined) = match query.get("name") {
        Some(name) => (named(&lists, query.text("kind"), namespace, name), false, 1),
        None => survey::candidates(&lists, namespace, MAX_DIAGNOSED),
    };
    let mut evidence =
        Evidence { object: Value::Null, now: Timestamp::now(), lists, incomplete, logs: BTreeMap::new() };
    let mut problems = Vec::new();
    for object in candidates {
        evidence.object = object;
        client.read_logs(&mut evidence).await;
        let findings = explain(&evidence);
        if !findings.is_empty() {
            let object = &evidence.object;
            problems.push(json!({
                "object": {
                    "apiVersion": object.text(&["apiVersion"]),
                    "kind": object.text(&["kind"]),
                    "namespace": object.text(&["metadata", "namespace"]),
                    "name": object.text(&["metadata", "name"]),
                },
                "findings": findings,
            }));
        }
        // A diagnosis of many objects takes a while, during which this thread serves others.
        tokio::task::yield_now().await;
    }
    Ok(json!({
        "problems": problems,
        "examined": examined,
        "unreadable": unreadable,
        "incomplete": evidence.incomplete,
        "truncated": truncated,
    }))
}

fn named(lists: &BTreeMap<String, Vec<Value>>, kind: &str, namespace: &str, name: &str) -> Vec<Value> {
    let Some((plural, version)) = survey::find_kind(kind) else { return Vec::new() };
    let is_it = |object: &&Value| {
        object.text(&["metadata", "name"]) == name && object.text(&["metadata", "namespace"]) == namespace
    };
    let found = lists.get(plural).into_iter().flatten().find(is_it);
    found.map(|object| survey::typed(object, version, kind)).into_iter().collect()
}

/// The objects of a page of a list, without what no diagnosis reads, and where the next page starts.
fn parse(body: &[u8]) -> serde_json::Result<(Vec<Value>, String)> {
    let mut list: Value = serde_json::from_slice(body)?;
    let next = list.text(&["metadata", "continue"]).to_owned();
    let items = list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
    let mut items = items.unwrap_or_default();
    for metadata in items.iter_mut().filter_map(|item| item.get_mut("metadata")).filter_map(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    Ok((items, next))
}

/// What could be read of the cluster.
#[derive(Default)]
struct Lists {
    items: BTreeMap<String, Vec<Value>>,
    incomplete: BTreeSet<String>,
    /// The kinds that the user may not list.
    unreadable: Vec<&'static str>,
}

impl Client<'_> {
    /// The objects that may be evidence for a diagnosis in a namespace, or in all.
    async fn lists(&self, namespace: &str) -> Result<Lists, Status> {
        let mut lists = Lists::default();
        for (plural, everywhere) in Evidence::needed().iter().chain(survey::WORKLOADS) {
            for path in Evidence::paths(plural, everywhere, namespace) {
                let Some((items, is_complete)) = self.list(&path).await? else { continue };
                let own = lists.items.remove(*plural);
                // Of other namespaces a part is enough.
                if own.is_none() && !is_complete {
                    lists.incomplete.insert((*plural).to_owned());
                }
                let items = match own {
                    Some(own) => Evidence::join(own, items, namespace),
                    None => items,
                };
                lists.items.insert((*plural).to_owned(), items);
            }
            if !lists.items.contains_key(*plural) {
                lists.unreadable.push(plural);
            }
        }
        Ok(lists)
    }

    /// The first objects of a list and whether they are all; `None` if the user may not list them.
    async fn list(&self, path: &str) -> Result<Option<(Vec<Value>, bool)>, Status> {
        let (mut items, mut next) = (Vec::new(), String::new());
        while items.len() < MAX_LISTED {
            let body = match self.get(&format!("{path}?limit={PAGE_SIZE}&continue={next}")).await {
                Ok(body) => body,
                Err(status) if matches!(status.code, 403 | 404) => return Ok(None),
                Err(status) => return Err(status),
            };
            // Parsing megabytes takes a while, during which this thread serves others.
            let parsed = tokio::task::spawn_blocking(move || parse(&body)).await.map_err(Status::internal)?;
            let (page, following) = parsed.map_err(Status::internal)?;
            items.extend(page);
            if following.is_empty() {
                return Ok(Some((items, true)));
            }
            next = following;
        }
        Ok(Some((items, false)))
    }

    /// The last log lines of the containers of the examined object that terminated. Missing logs are skipped.
    async fn read_logs(&self, evidence: &mut Evidence) {
        for (namespace, pod, container, runs_again) in logs_needed(evidence) {
            let key = (namespace, pod, container);
            if evidence.logs.len() >= MAX_LOGS || evidence.logs.contains_key(&key) {
                continue;
            }
            let (namespace, pod, container) = &key;
            let path = format!(
                "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines={LOG_LINES}&previous={runs_again}"
            );
            match self.get(&path).await {
                Ok(text) => {
                    let text = String::from_utf8_lossy(&text);
                    let lines = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
                    evidence.logs.insert(key, lines);
                }
                Err(status) => tracing::debug!(code = status.code, "cannot read the log of a container"),
            }
        }
    }
}
