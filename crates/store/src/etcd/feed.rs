//! Keeps the index in sync with etcd: loads everything once, then applies the events of one watch, resumed at another
//! member when it breaks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::sleep;
use tonic::Status;

use super::Decode;
use super::client::{Client, Member, PAGE_TIMEOUT, describe};
use super::wire::{EventKind, KeyValue, RangeRequest, RangeResponse, WatchCreate, WatchEvent, WatchResponse, revision};
use crate::contract::{Entry, Error, Revision};
use crate::index::{Change, Index, prefix};

const PAGE_SIZE: i64 = 2000;
const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";

/// The keys that the store holds in etcd.
#[derive(Clone)]
pub(super) struct KeySpace {
    pub root: String,
    /// What stands in etcd in place of the root.
    stored_root: String,
    /// A key in etcd that is written only to receive its event; it is not an entry.
    pub marker: String,
    /// A key in etcd that is written to make earlier creations fail; it is not an entry.
    pub fence: String,
    /// Brings values into the form in which they are served.
    decode: Option<Decode>,
}

impl KeySpace {
    pub(super) fn new(root: &str, stored_root: Option<&str>, decode: Option<Decode>) -> Self {
        let stored_root = stored_root.unwrap_or(root).to_owned();
        let own = |name: &str| format!("{stored_root}{name}");
        let (marker, fence) = (own("knarr-progress"), own("knarr-fence"));
        Self { root: root.to_owned(), marker, fence, stored_root, decode }
    }

    /// A key of the store as it is in etcd.
    pub(super) fn stored(&self, key: &str) -> Vec<u8> {
        match key.strip_prefix(&self.root) {
            Some(rest) => format!("{}{rest}", self.stored_root).into_bytes(),
            None => key.as_bytes().to_vec(),
        }
    }

    /// A key in etcd as it is in the store; `None` for keys that are not UTF-8, which no client can request.
    pub(super) fn own(&self, stored: Vec<u8>) -> Option<String> {
        let stored = String::from_utf8(stored).ok()?;
        if self.stored_root == self.root {
            return Some(stored);
        }
        stored.strip_prefix(&self.stored_root).map(|rest| format!("{}{rest}", self.root))
    }

    pub(super) fn key(&self) -> Vec<u8> {
        // A key is never empty: the first possible one is a single zero.
        if self.stored_root.is_empty() { vec![0] } else { self.stored_root.as_bytes().to_vec() }
    }

    pub(super) fn end(&self) -> Vec<u8> {
        // A single zero means "to the very end".
        prefix::after_all(&self.stored_root).map_or(vec![0], String::into_bytes)
    }
}

pub(super) struct Feed {
    pub client: Arc<Client>,
    pub index: Arc<Index>,
    pub key_space: KeySpace,
    /// Notified when events are late: the watch may be at a member that hangs.
    pub late: Arc<Notify>,
}

/// Why a watch ended.
enum WatchEnd {
    /// The connection to this member failed, for this reason.
    Lost(Arc<Member>, String),
    /// The next events have been compacted.
    Compacted,
}

impl Feed {
    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let before = self.index.revision();
            match self.watch().await {
                WatchEnd::Lost(member, reason) => {
                    tracing::warn!(reason, "the watch on etcd ended; resuming it");
                    member.mark_failed();
                }
                WatchEnd::Compacted => self.reload().await,
            }
            let advanced = self.index.revision() > before;
            backoff = if advanced { INITIAL_BACKOFF } else { (backoff * 2).min(MAX_BACKOFF) };
            sleep(backoff).await;
        }
    }

    async fn watch(&self) -> WatchEnd {
        let create = WatchCreate {
            key: self.key_space.key(),
            range_end: self.key_space.end(),
            start_revision: (self.index.revision() + 1) as i64,
            progress_notify: true,
        };
        let (member, mut stream) = match self.client.watch(create).await {
            Ok(opened) => opened,
            Err((member, status)) => return WatchEnd::Lost(member, describe(&status)),
        };
        loop {
            let message = tokio::select! {
                message = stream.message() => message,
                () = self.late.notified() => return WatchEnd::Lost(member, "events are late".to_owned()),
            };
            match message {
                Ok(Some(response)) if response.canceled && response.compact_revision > 0 => return WatchEnd::Compacted,
                Ok(Some(response)) if response.canceled => return WatchEnd::Lost(member, response.cancel_reason),
                Ok(Some(response)) => self.apply(response),
                Ok(None) => return WatchEnd::Lost(member, "the stream ended".to_owned()),
                Err(status) => return WatchEnd::Lost(member, describe(&status)),
            }
        }
    }

    /// Applies a response of the watch. The events of one revision always come together.
    fn apply(&self, response: WatchResponse) {
        let newest = match response.events.last().and_then(|event| event.pair.as_ref()) {
            Some(pair) => pair.mod_revision as Revision,
            // Its header holds the store's revision, not the progress of this watch.
            None if response.created => return,
            None => revision(&response.header),
        };
        if newest > self.index.revision() {
            let changes = response.events.into_iter().filter_map(|event| self.change(event));
            self.index.apply(changes.collect::<Vec<_>>(), newest).wake();
        }
    }

    fn change(&self, event: WatchEvent) -> Option<Change> {
        let deleted = event.kind == EventKind::Delete as i32;
        let pair = event.pair?;
        let revision = pair.mod_revision as Revision;
        if deleted {
            let key = self.key_space.own(pair.key)?;
            return Some(Change { key: key.into(), revision, current: None });
        }
        let entry = self.key_space.entry(pair)?;
        Some(Change { key: entry.key.clone(), revision, current: Some(entry) })
    }

    async fn reload(&self) {
        tracing::warn!("etcd has compacted events that this process has not seen; reloading everything");
        match load(&self.client, &self.key_space).await {
            Ok((entries, revision)) => self.index.reset(entries, revision),
            Err(error) => tracing::warn!(%error, "loading from etcd failed; retrying"),
        }
    }
}

impl KeySpace {
    /// An entry of the store; `None` for the marker, the fence, and keys that are not UTF-8.
    pub(super) fn entry(&self, pair: KeyValue) -> Option<Arc<Entry>> {
        if pair.key == self.marker.as_bytes() || pair.key == self.fence.as_bytes() {
            return None;
        }
        let key = self.own(pair.key)?;
        let (created, revision) = (pair.create_revision as Revision, pair.mod_revision as Revision);
        let value = match &self.decode {
            Some(decode) => decode(&key, pair.value),
            None => Bytes::from(pair.value),
        };
        Some(Arc::new(Entry::new(key.into(), value, created, revision)))
    }
}

/// Everything as it was at one revision.
pub(super) async fn load(client: &Client, key_space: &KeySpace) -> Result<(Vec<Arc<Entry>>, Revision), Error> {
    let mut entries = Vec::new();
    let at = pages(client, key_space, 0, false, |pair| entries.extend(key_space.entry(pair))).await;
    at.map(|revision| (entries, revision))
        .map_err(|status| Error::Open(format!("loading from etcd: {}", describe(&status))))
}

/// Visits all keys as they were at `at`, or now when that is 0, and returns the revision read.
pub(super) async fn pages(
    client: &Client,
    key_space: &KeySpace,
    at: Revision,
    keys_only: bool,
    mut visit: impl FnMut(KeyValue),
) -> Result<Revision, Status> {
    let (mut key, range_end, mut at) = (key_space.key(), key_space.end(), at);
    loop {
        let (key_, range_end) = (key.clone(), range_end.clone());
        let request = RangeRequest { key: key_, range_end, limit: PAGE_SIZE, revision: at as i64, keys_only };
        let response: RangeResponse = client.call_within(RANGE, request, PAGE_TIMEOUT).await?.body;
        if at == 0 {
            at = revision(&response.header);
        }
        let last = response.pairs.last().map(|pair| pair.key.clone());
        response.pairs.into_iter().for_each(&mut visit);
        match last {
            Some(last) if response.more => {
                key = last;
                // The next possible key.
                key.push(0);
            }
            _ => return Ok(at),
        }
    }
}
