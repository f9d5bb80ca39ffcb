//! What keeps the index equal to etcd: everything is loaded once, then one watch is followed, whatever member serves it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use tonic::Status;

use super::client::{Client, describe};
use super::wire::{EventKind, KeyValue, RangeRequest, RangeResponse, WatchCreate, WatchEvent, WatchResponse, revision};
use crate::contract::{Entry, Error, Revision};
use crate::index::{Change, Index, prefix};

const PAGE: i64 = 2000;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";

/// The keys that the store holds in etcd.
#[derive(Clone)]
pub(super) struct Territory {
    pub root: String,
    /// A key inside that is written only so that its event comes back; it is no entry.
    pub marker: String,
}

impl Territory {
    pub(super) fn new(root: &str) -> Self {
        Self { root: root.to_owned(), marker: format!("{root}knarr-progress") }
    }

    pub(super) fn key(&self) -> Vec<u8> {
        // A key is never empty: the first possible one is a single zero.
        if self.root.is_empty() { vec![0] } else { self.root.as_bytes().to_vec() }
    }

    pub(super) fn end(&self) -> Vec<u8> {
        // A single zero means "to the very end".
        prefix::after_all(&self.root).map_or(vec![0], String::into_bytes)
    }
}

pub(super) struct Feed {
    pub client: Arc<Client>,
    pub index: Arc<Index>,
    pub territory: Territory,
}

/// Why a watch is followed no further.
enum End {
    Lost(usize, String),
    /// What comes next has been compacted away.
    Compacted,
}

impl Feed {
    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.index.revision();
            match self.follow().await {
                End::Lost(member, reason) => {
                    tracing::warn!(reason, "the watch on etcd ended; it is resumed");
                    self.client.leave(member);
                }
                End::Compacted => self.reload().await,
            }
            let advanced = self.index.revision() > before;
            pause = if advanced { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            sleep(pause).await;
        }
    }

    async fn follow(&self) -> End {
        let create = WatchCreate {
            key: self.territory.key(),
            range_end: self.territory.end(),
            start_revision: (self.index.revision() + 1) as i64,
            progress_notify: true,
        };
        let (member, mut stream) = match self.client.watch(create).await {
            Ok(opened) => opened,
            Err((member, status)) => return End::Lost(member, describe(&status)),
        };
        loop {
            match stream.message().await {
                Ok(Some(response)) if response.canceled && response.compact_revision > 0 => return End::Compacted,
                Ok(Some(response)) if response.canceled => return End::Lost(member, response.cancel_reason),
                Ok(Some(response)) => self.take(response),
                Ok(None) => return End::Lost(member, "the stream ended".to_owned()),
                Err(status) => return End::Lost(member, describe(&status)),
            }
        }
    }

    /// Takes in what the watch says. The events of one revision always come together.
    fn take(&self, response: WatchResponse) {
        let newest = match response.events.last().and_then(|event| event.pair.as_ref()) {
            Some(pair) => pair.mod_revision as Revision,
            // Its header tells where the store is, not how far this watch has come.
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
            let key = String::from_utf8(pair.key).ok()?;
            return Some(Change { key: key.into(), revision, current: None });
        }
        let entry = self.territory.entry(pair)?;
        Some(Change { key: entry.key.clone(), revision, current: Some(entry) })
    }

    async fn reload(&self) {
        tracing::warn!("etcd has compacted what this process has not seen yet; everything is loaded again");
        match load(&self.client, &self.territory).await {
            Ok((entries, revision)) => self.index.reset(entries, revision),
            Err(error) => tracing::warn!(%error, "loading failed; it is tried again"),
        }
    }
}

impl Territory {
    /// An entry of the store; `None` for the marker, and for a key that is no text and so nobody can ask for.
    pub(super) fn entry(&self, pair: KeyValue) -> Option<Arc<Entry>> {
        let key = String::from_utf8(pair.key).ok().filter(|key| *key != self.marker)?;
        let (created, revision) = (pair.create_revision as Revision, pair.mod_revision as Revision);
        Some(Arc::new(Entry::new(key.into(), Bytes::from(pair.value), created, revision)))
    }
}

/// Everything as it was at one revision.
pub(super) async fn load(client: &Client, territory: &Territory) -> Result<(Vec<Arc<Entry>>, Revision), Error> {
    let mut entries = Vec::new();
    let at = pages(client, territory, 0, false, |pair| entries.extend(territory.entry(pair))).await;
    at.map(|revision| (entries, revision))
        .map_err(|status| Error::Open(format!("loading from etcd: {}", describe(&status))))
}

/// Visits all keys as they were at `at`, or now when that is 0, and answers which revision that was.
pub(super) async fn pages(
    client: &Client,
    territory: &Territory,
    at: Revision,
    keys_only: bool,
    mut visit: impl FnMut(KeyValue),
) -> Result<Revision, Status> {
    let (mut key, range_end, mut at) = (territory.key(), territory.end(), at);
    loop {
        let (key_, range_end) = (key.clone(), range_end.clone());
        let request = RangeRequest { key: key_, range_end, limit: PAGE, revision: at as i64, keys_only };
        let response: RangeResponse = client.call(RANGE, request).await?.answer;
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
