//! Diagnoses the cluster, or one object, with what the user may read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_why::{Evidence, explain, logs_needed, survey};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::listed::{self, PAGE_SIZE};
use super::own_client::{Client, Turns};
use crate::request::User;
use crate::route::query::Query;
use crate::state::ApiServer;

/// Diagnoses run one at a time: each holds a part of the cluster in memory.
static TURNS: Turns = Turns::new();

/// How many objects of a kind are read: most of what a list contains is dropped at once.
const MAX_READ: usize = 50_000;

/// How many objects of a kind are kept as evidence. Of those after them, only what needs a diagnosis is kept, as many again.
const MAX_EVIDENCE: usize = 5000;
/// About how much memory the evidence takes, and one object of it. Of what is left, no kind takes more than half.
const MAX_EVIDENCE_BYTES: usize = 512 << 20;
const MAX_OBJECT_BYTES: usize = 1 << 20;

/// How many objects are diagnosed and for how long, and how many logs are read for that.
const MAX_DIAGNOSED: usize = 200;
const MAX_DURATION: Duration = Duration::from_secs(10);
const MAX_LOGS: usize = 10;
const LOG_LINES: usize = 3;
const LOG_BYTES: usize = 16 << 10;

/// The diagnosis of one object when the query names it, else of all that need one.
pub async fn find(server: &Arc<ApiServer>, user: &User, query: &Query) -> Result<Value, Status> {
    let _turn = TURNS.next().await?;
    let client = Client::new(server, user);
    let namespace = query.text("namespace");
    if !namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(Status::bad_request("not the name of a namespace"));
    }
    let name = query.get("name");
    let is_needed = |plural: &str, object: &Value| match name {
        Some(name) => object.text(&["metadata", "name"]) == name,
        None => survey::needs_diagnosis(plural, object),
    };
    let Lists { items: lists, incomplete, dropped, unread, unreadable } = client.lists(namespace, &is_needed).await?;
    let (candidates, mut truncated, examined) = match name {
        Some(name) => (named(&lists, query.text("kind"), namespace, name), false, 1),
        None => {
            let (found, truncated, examined) = survey::candidates(&lists, namespace, MAX_DIAGNOSED);
            (found, truncated, examined + dropped)
        }
    };
    let mut evidence =
        Evidence { object: Value::Null, now: Timestamp::now(), lists, incomplete, logs: BTreeMap::new() };
    let mut problems = Vec::new();
    let started = Instant::now();
    for object in candidates {
        if started.elapsed() > MAX_DURATION {
            truncated = true;
            break;
        }
        evidence.object = object;
        client.read_logs(&mut evidence).await;
        // It takes a while in a large cluster, during which this thread serves others.
        let diagnosed = tokio::task::spawn_blocking(move || (explain(&evidence), evidence)).await;
        let (findings, explained) = diagnosed.map_err(Status::internal)?;
        evidence = explained;
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
    }
    Ok(json!({
        "problems": problems,
        "examined": examined,
        "unreadable": unreadable,
        "incomplete": unread,
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

/// A page of a list, without what no diagnosis reads.
struct Page {
    objects: Vec<Value>,
    /// How many are too large to be diagnosed.
    too_large: usize,
    /// Where the next page starts.
    next: String,
}

fn parse(body: &[u8]) -> serde_json::Result<Page> {
    let (mut objects, mut too_large) = (Vec::new(), 0);
    let next = listed::for_each(body, |mut object| {
        listed::strip(&mut object);
        match listed::weight(&object) <= MAX_OBJECT_BYTES {
            true => objects.push(object),
            false => too_large += 1,
        }
    })?;
    Ok(Page { objects, too_large, next })
}

/// Whether an object of a kind, by its plural name, is kept however many there are.
type IsNeeded<'a> = &'a (dyn Fn(&str, &Value) -> bool + Sync);

/// What could be read of the cluster.
#[derive(Default)]
struct Lists {
    items: BTreeMap<String, Vec<Value>>,
    /// The kinds of which not all objects were kept.
    incomplete: BTreeSet<String>,
    /// How many objects of examined kinds were not kept, as nothing is wrong with them.
    dropped: usize,
    /// The kinds of which not all objects were read.
    unread: Vec<&'static str>,
    /// The kinds that the user may not list.
    unreadable: Vec<&'static str>,
}

/// What was read of a list.
#[derive(Default)]
struct Listed {
    items: Vec<Value>,
    evidence: Amount,
    /// What is there although there was enough evidence.
    needed: Amount,
    dropped: usize,
    is_all: bool,
}

/// A number of objects, and about how much memory they take.
#[derive(Clone, Copy, Default)]
struct Amount {
    objects: usize,
    bytes: usize,
}

impl Amount {
    /// Adds an object, if that is within the limit.
    fn add(&mut self, bytes: usize, max: Amount) -> bool {
        let has_room = self.objects < max.objects && self.bytes.saturating_add(bytes) <= max.bytes;
        if has_room {
            *self = Amount { objects: self.objects + 1, bytes: self.bytes + bytes };
        }
        has_room
    }
}

impl Listed {
    /// `max` is the limit of evidence, and of what is needed besides.
    fn add(&mut self, page: Vec<Value>, max: Amount, is_needed: impl Fn(&Value) -> bool) {
        for object in page {
            let bytes = listed::weight(&object);
            if self.evidence.add(bytes, max) || (is_needed(&object) && self.needed.add(bytes, max)) {
                self.items.push(object);
            } else {
                self.dropped += 1;
            }
        }
    }

    fn read(&self) -> usize {
        self.items.len() + self.dropped
    }
}

impl Client<'_> {
    /// The objects that may be evidence for a diagnosis in a namespace, or in all.
    async fn lists(&self, namespace: &str, is_needed: IsNeeded<'_>) -> Result<Lists, Status> {
        let mut lists = Lists::default();
        let mut left = MAX_EVIDENCE_BYTES;
        for (plural, everywhere) in Evidence::needed().iter().chain(survey::WORKLOADS) {
            for path in Evidence::paths(plural, everywhere, namespace) {
                let max = Amount { objects: MAX_EVIDENCE, bytes: left / 4 };
                let listed = self.list(&path, max, |object| is_needed(plural, object)).await?;
                let Some(listed) = listed else { continue };
                left = left.saturating_sub(listed.evidence.bytes + listed.needed.bytes);
                let own = lists.items.remove(*plural);
                // Of other namespaces a part is enough.
                if own.is_none() {
                    if !listed.is_all {
                        lists.unread.push(plural);
                    }
                    if !listed.is_all || listed.dropped > 0 {
                        lists.incomplete.insert((*plural).to_owned());
                    }
                    if survey::is_examined(plural) {
                        lists.dropped += listed.dropped;
                    }
                }
                let items = match own {
                    Some(own) => Evidence::join(own, listed.items, namespace),
                    None => listed.items,
                };
                lists.items.insert((*plural).to_owned(), items);
            }
            if !lists.items.contains_key(*plural) {
                lists.unreadable.push(plural);
            }
        }
        Ok(lists)
    }

    /// The objects of a list that are kept; `None` if the user may not list them.
    async fn list(
        &self,
        path: &str,
        max: Amount,
        is_needed: impl Fn(&Value) -> bool,
    ) -> Result<Option<Listed>, Status> {
        let (mut listed, mut next, mut too_large) = (Listed::default(), String::new(), 0);
        while listed.read() < MAX_READ {
            let body = match self.get(&format!("{path}?limit={PAGE_SIZE}&continue={next}")).await {
                Ok(body) => body,
                Err(status) if matches!(status.code, 403 | 404) => return Ok(None),
                Err(status) => return Err(status),
            };
            // Parsing megabytes takes a while, during which this thread serves others.
            let parsed = tokio::task::spawn_blocking(move || parse(&body)).await.map_err(Status::internal)?;
            let page = parsed.map_err(Status::internal)?;
            listed.add(page.objects, max, &is_needed);
            too_large += page.too_large;
            if page.next.is_empty() {
                listed.is_all = too_large == 0;
                break;
            }
            next = page.next;
        }
        Ok(Some(listed))
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
                "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines={LOG_LINES}&limitBytes={LOG_BYTES}&previous={runs_again}"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_diagnosis_is_kept_wherever_it_is_in_a_list() {
        let mut listed = Listed::default();
        for page in [0..4, 4..8, 8..12] {
            let max = Amount { objects: 3, bytes: usize::MAX };
            listed.add(page.map(|number| json!(number)).collect(), max, |object| object.as_u64() > Some(5));
        }
        assert_eq!(json!(listed.items), json!([0, 1, 2, 6, 7, 8]), "evidence, and as many again that need a diagnosis");
        assert_eq!((listed.dropped, listed.read()), (6, 12));
    }

    #[test]
    fn evidence_does_not_fill_memory() {
        let mut listed = Listed::default();
        let text = |length| json!("x".repeat(length));
        let max = Amount { objects: 100, bytes: 10_000 };
        listed.add(vec![text(9000), text(9000), text(500), text(9000)], max, |_| true);
        let kept: Vec<usize> = listed.items.iter().map(|item| item.as_str().unwrap().len()).collect();
        assert_eq!((kept, listed.dropped), (vec![9000, 9000, 500], 1));
        // A pod of 3 MB.
        let volumes = r#"{"name":"a"},"#.repeat(200_000) + "{}";
        let body = format!(r#"{{"items":[{{"spec":{{"volumes":[{volumes}]}}}},{{"spec":{{}}}}]}}"#);
        let page = parse(body.as_bytes()).unwrap();
        assert_eq!((page.objects.len(), page.too_large), (1, 1));
    }
}
