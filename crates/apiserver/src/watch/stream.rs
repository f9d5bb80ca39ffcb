//! One watch: the initial objects, then the changes, with bookmarks, until its lifetime ends.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_api::status::Status;
use knarr_store::{Error, Notice, Range, Watch};
use tokio::time::{Instant, Sleep};

use super::events::Events;
use crate::persist::{convert, store_error, too_large};
use crate::state::ApiServer;

/// How often a watcher that requested bookmarks gets one.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a watch waits for a revision that this server has not reached yet.
const REVISION_TIMEOUT: Duration = Duration::from_secs(3);
/// The initial objects are sent in chunks of about this size.
const CHUNK_SIZE: usize = 256 * 1024;

/// Where a watch starts and when it ends.
pub struct Start {
    pub namespace: String,
    pub revision: Option<u64>,
    /// Whether the current objects are sent first; if unset, the revision decides.
    pub initial: Option<bool>,
    pub bookmarks: bool,
    pub lifetime: Duration,
}

/// A running watch.
pub struct Stream {
    server: Arc<ApiServer>,
    events: Events,
    watch: Option<Box<dyn Watch>>,
    /// Chunks to be sent before changes.
    pending: std::collections::VecDeque<Bytes>,
    bookmark: Option<Pin<Box<Sleep>>>,
    bookmarked: u64,
    end: Pin<Box<Sleep>>,
    stopping: tokio::sync::watch::Receiver<bool>,
}

impl Stream {
    /// Starts a watch. An error at its start becomes its only event.
    pub async fn open(server: Arc<ApiServer>, events: Events, start: Start) -> Stream {
        let stopping = server.stopping.clone();
        let mut stream = Stream {
            events,
            watch: None,
            pending: std::collections::VecDeque::new(),
            bookmark: start.bookmarks.then(|| Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL))),
            bookmarked: 0,
            end: Box::pin(tokio::time::sleep(start.lifetime)),
            stopping,
            server,
        };
        if let Err(status) = stream.start(&start).await {
            let mut chunk = Vec::new();
            stream.events.append_error(&mut chunk, &status);
            stream.pending = [Bytes::from(chunk)].into();
            stream.watch = None;
        }
        stream
    }

    async fn start(&mut self, start: &Start) -> Result<(), Status> {
        let prefix = self.prefix(start);
        let from_state = start.initial.unwrap_or(matches!(start.revision, None | Some(0)));
        let store = self.server.store.clone();
        if from_state {
            match start.revision {
                None => drop(store.sync().await.map_err(store_error)?),
                Some(revision) => store.reach(revision, REVISION_TIMEOUT).await.map_err(store_error)?,
            }
            let page = store.peek_range(&Range { prefix: &prefix, ..Range::default() }).map_err(store_error)?;
            let mut chunk = Vec::new();
            let entries = convert::entries(&self.server, &self.events.resource, page.entries).await?;
            for entry in &entries {
                if self.events.selection.matches(&self.events.resource, entry) {
                    self.events.append_initial(&mut chunk, entry)?;
                    if chunk.len() >= CHUNK_SIZE {
                        self.pending.push_back(std::mem::take(&mut chunk).into());
                    }
                }
            }
            if start.initial == Some(true) && start.bookmarks {
                self.events.append_bookmark(&mut chunk, page.revision, true);
                self.bookmarked = page.revision;
            }
            if !chunk.is_empty() {
                self.pending.push_back(chunk.into());
            }
            self.watch = Some(store.watch(&prefix, page.revision).map_err(store_error)?);
            return Ok(());
        }
        let revision = match start.revision {
            Some(revision) if revision > 0 => revision,
            _ => store.sync().await.map_err(store_error)?,
        };
        let opened = match store.watch(&prefix, revision) {
            Err(Error::Future { .. }) => {
                match store.reach(revision, REVISION_TIMEOUT).await {
                    Err(Error::Future { requested, newest }) => return Err(too_large(requested, newest)),
                    reached => reached.map_err(store_error)?,
                }
                store.watch(&prefix, revision)
            }
            opened => opened,
        };
        self.watch = Some(opened.map_err(store_error)?);
        Ok(())
    }

    /// The key of one object is also a prefix of longer names, which the selection leaves out.
    fn prefix(&self, start: &Start) -> String {
        let resource = &self.events.resource;
        match self.events.selection.name() {
            Some(name) if !resource.kind.namespaced || !start.namespace.is_empty() => {
                resource.key(&start.namespace, name)
            }
            _ => resource.range(&start.namespace),
        }
    }

    /// The watch as chunks of a body. All available events go into one chunk.
    pub fn into_chunks(self) -> impl futures::Stream<Item = Bytes> + Send {
        futures::stream::unfold(self, |mut stream| async move { stream.next().await.map(|chunk| (chunk, stream)) })
    }

    /// Waits for the next chunk; `None` at the end of the watch.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.pending.pop_front() {
                return Some(chunk);
            }
            let watch = self.watch.as_mut()?;
            let bookmark = async {
                match self.bookmark.as_mut() {
                    Some(sleep) => sleep.await,
                    None => std::future::pending().await,
                }
            };
            let notice = tokio::select! {
                biased;
                notice = watch.next() => notice?,
                () = &mut self.end => return None,
                () = bookmark => {
                    watch.request_progress();
                    if let Some(sleep) = self.bookmark.as_mut() {
                        sleep.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
                    }
                    continue;
                }
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            };
            let mut chunk = Vec::new();
            let notice = match notice {
                Notice::Events(events) => {
                    let converted = convert::events(&self.server, &self.events.resource, events).await;
                    converted.map(Notice::Events)
                }
                other => Ok(other),
            };
            match notice {
                Ok(notice) => self.append_notice(notice, &mut chunk),
                Err(status) => {
                    self.events.append_error(&mut chunk, &status);
                    self.watch = None;
                }
            }
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
        }
    }

    fn append_notice(&mut self, notice: Notice, chunk: &mut Vec<u8>) {
        match notice {
            Notice::Events(events) => {
                for event in &events {
                    if let Err(status) = self.events.append(chunk, event) {
                        self.events.append_error(chunk, &status);
                        self.watch = None;
                        return;
                    }
                }
            }
            Notice::Progress(revision) => {
                if self.bookmark.is_some() && revision > self.bookmarked {
                    self.bookmarked = revision;
                    self.events.append_bookmark(chunk, revision, false);
                }
            }
            Notice::Compacted => {
                self.events.append_error(chunk, &Status::expired("too old resource version"));
                self.watch = None;
            }
        }
    }
}
