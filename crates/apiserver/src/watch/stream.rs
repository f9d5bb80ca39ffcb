//! One watch: the initial objects, then the changes, with bookmarks, until its lifetime ends.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_api::status::Status;
use knarr_store::{Error, Event, Notice, Range, Scope, Watch};
use tokio::time::{Instant, Sleep};

use super::events::Events;
use super::initial::{Initial, Remaining};
use super::metrics::MeasuredWatch;
use crate::convert;
use crate::fairness::{CountedWatch, Permit};
use crate::persist::time_slice::TimeSlice;
use crate::persist::{store_error, too_large};
use crate::resource_request::Backend;
use crate::response::encoder_pool;
use crate::selection::topic;
use crate::stored;

/// How often a watcher that requested bookmarks gets one.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a watch waits for a revision that this server has not reached yet.
const REVISION_TIMEOUT: Duration = Duration::from_secs(3);
/// Initial objects and changes are sent in chunks of about this size.
const CHUNK_SIZE: usize = 64 * 1024;

/// Where a watch starts and when it ends.
pub struct Start {
    pub namespace: String,
    pub revision: Option<u64>,
    /// Whether the current objects are sent first; if unset, the revision decides.
    pub initial: Option<bool>,
    pub bookmarks: bool,
    pub lifetime: Duration,
    /// The seats that the watch occupies until its initial objects are sent.
    pub permit: Option<Permit>,
    /// Counts the watch while it is open.
    pub counted: Option<CountedWatch>,
    pub measured: MeasuredWatch,
}

/// Where a watch starts.
struct StartPoint {
    namespace: String,
    revision: Option<u64>,
    initial: Option<bool>,
    bookmarks: bool,
}

/// A running watch.
pub struct Stream {
    backend: Arc<Backend>,
    events: Events,
    watch: Option<Box<dyn Watch>>,
    /// A chunk to be sent before anything else.
    pending: Option<Bytes>,
    /// Objects to be sent before changes.
    initial: Option<Initial>,
    /// Changes that did not fit into the last chunk.
    changes: std::vec::IntoIter<Event>,
    _counted: Option<CountedWatch>,
    measured: MeasuredWatch,
    bookmark: Option<Pin<Box<Sleep>>>,
    bookmarked: u64,
    end: Pin<Box<Sleep>>,
    stopping: tokio::sync::watch::Receiver<bool>,
}

impl Stream {
    /// Starts a watch. An error at its start becomes its only event.
    pub async fn open(backend: Arc<Backend>, events: Events, start: Start) -> Stream {
        let stopping = backend.stopping.clone();
        let Start { namespace, revision, initial, bookmarks, lifetime, permit, counted, measured } = start;
        let mut stream = Stream {
            events,
            watch: None,
            pending: None,
            initial: None,
            changes: Vec::new().into_iter(),
            _counted: counted,
            measured,
            bookmark: bookmarks.then(|| Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL))),
            bookmarked: 0,
            end: Box::pin(tokio::time::sleep(lifetime)),
            stopping,
            backend,
        };
        let from = StartPoint { namespace, revision, initial, bookmarks };
        if let Err(status) = stream.start(from, permit).await {
            let mut chunk = Vec::new();
            stream.events.append_error(&mut chunk, &status);
            stream.pending = Some(chunk.into());
            stream.watch = None;
        }
        stream
    }

    async fn start(&mut self, start: StartPoint, permit: Option<Permit>) -> Result<(), Status> {
        let key = self.key(&start);
        let scope = self.scope(&key);
        let from_state = start.initial.unwrap_or(matches!(start.revision, None | Some(0)));
        let store = self.backend.store.clone();
        if from_state {
            match start.revision {
                None => drop(store.sync().await.map_err(store_error)?),
                Some(revision) => store.reach(revision, REVISION_TIMEOUT).await.map_err(store_error)?,
            }
            let topic = topic::of(&self.events.resource, &self.events.selection);
            let range = Range { prefix: scope.prefix(), topic, ..Range::default() };
            store.prepare_read(&range).await;
            let page = store.peek_range(&range).map_err(store_error)?;
            stored::check_readable(&page.entries)?;
            self.watch = Some(store.watch_scope(scope, page.revision).map_err(store_error)?);
            let entries = convert::entries(&self.backend, &self.events.resource, page.entries).await?.into_iter();
            let bookmark = (start.initial == Some(true) && start.bookmarks).then_some(page.revision);
            self.bookmarked = bookmark.unwrap_or(self.bookmarked);
            self.initial = Some(Initial::new(Remaining { entries, bookmark }, permit));
            return Ok(());
        }
        let revision = match start.revision {
            Some(revision) if revision > 0 => revision,
            _ => store.sync().await.map_err(store_error)?,
        };
        let opened = match store.watch_scope(scope, revision) {
            Err(Error::Future { .. }) => {
                match store.reach(revision, REVISION_TIMEOUT).await {
                    Err(Error::Future { requested, newest }) => return Err(too_large(requested, newest)),
                    reached => reached.map_err(store_error)?,
                }
                store.watch_scope(scope, revision)
            }
            opened => opened,
        };
        self.watch = Some(opened.map_err(store_error)?);
        Ok(())
    }

    /// The key of the one object that can be selected, or the prefix of all.
    fn key(&self, start: &StartPoint) -> String {
        let resource = &self.events.resource;
        match self.events.selection.name() {
            Some(name) if !resource.kind.namespaced || !start.namespace.is_empty() => {
                resource.key(&start.namespace, name)
            }
            _ => resource.range(&start.namespace),
        }
    }

    /// The changes that can be selected. The selection leaves out others that come with them.
    fn scope<'s>(&'s self, key: &'s str) -> Scope<'s> {
        match topic::of(&self.events.resource, &self.events.selection) {
            Some(topic) if key.ends_with('/') => Scope::Topic { prefix: key, topic },
            _ if self.events.omits_heartbeats() => Scope::Distinct(key),
            _ if key.ends_with('/') => Scope::Prefix(key),
            _ => Scope::Key(key),
        }
    }

    /// The watch as chunks of a body.
    pub fn into_chunks(self) -> impl futures::Stream<Item = Bytes> + Send {
        futures::stream::unfold(self, |mut stream| async move { stream.next().await.map(|chunk| (chunk, stream)) })
    }

    /// Waits for the next chunk; `None` at the end of the watch.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.pending.take() {
                return Some(chunk);
            }
            if let Some(initial) = self.initial.take() {
                // A client that took too long has to start again.
                match Box::pin(self.next_initial(initial.take()?, initial)).await {
                    chunk if chunk.is_empty() => continue,
                    chunk => return Some(chunk),
                }
            }
            let mut chunk = Vec::new();
            self.append_changes(&mut chunk).await;
            if !chunk.is_empty() {
                return Some(chunk.into());
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
            let notice = match notice {
                // On the heap, and only where a webhook is called: a watch that waits would hold the memory of that call.
                Notice::Events(events) if convert::needs_webhook(&self.events.resource) => {
                    let converted = Box::pin(convert::events(&self.backend, &self.events.resource, events)).await;
                    converted.map(Notice::Events)
                }
                other => Ok(other),
            };
            let mut chunk = Vec::new();
            match notice {
                Ok(Notice::Events(events)) => self.changes = events.into_iter(),
                Ok(Notice::Progress(revision)) => self.append_progress(revision, &mut chunk),
                Ok(Notice::Compacted) => self.fail(&Status::expired("too old resource version"), &mut chunk),
                Err(status) => self.fail(&status, &mut chunk),
            }
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
        }
    }

    /// Encodes the next chunk of initial objects. What is left is kept for the next call.
    async fn next_initial(&mut self, mut remaining: Remaining, initial: Initial) -> Bytes {
        let mut chunk = Vec::new();
        if self.events.is_costly() {
            let mut events = self.events.clone();
            let encoding = encoder_pool::run(move || {
                let result = append_some(&mut events, &mut chunk, &mut remaining);
                (events, chunk, remaining, result)
            });
            let Ok((events, encoded, left, result)) = encoding.await else {
                let mut chunk = Vec::new();
                self.fail(&Status::internal("the encoder failed"), &mut chunk);
                return chunk.into();
            };
            (self.events, chunk, remaining) = (events, encoded, left);
            if let Err(status) = result {
                self.fail(&status, &mut chunk);
                return chunk.into();
            }
        } else {
            let mut slice = TimeSlice::start();
            while chunk.len() < CHUNK_SIZE
                && let Some(entry) = remaining.entries.next()
            {
                if let Err(status) = self.events.append_initial(&mut chunk, &entry) {
                    self.fail(&status, &mut chunk);
                    return chunk.into();
                }
                slice.check().await;
            }
        }
        if remaining.entries.len() > 0 {
            initial.put(remaining);
            self.initial = Some(initial);
        } else if let Some(revision) = remaining.bookmark {
            self.events.append_bookmark(&mut chunk, revision, true);
            self.measured.initial_sent();
        }
        chunk.into()
    }

    /// Appends changes up to the size of a chunk.
    async fn append_changes(&mut self, chunk: &mut Vec<u8>) {
        let mut slice = TimeSlice::start();
        while chunk.len() < CHUNK_SIZE
            && let Some(event) = self.changes.next()
        {
            if let Err(status) = self.events.append(chunk, &event) {
                self.changes = Vec::new().into_iter();
                self.fail(&status, chunk);
                return;
            }
            slice.check().await;
        }
    }

    fn append_progress(&mut self, revision: u64, chunk: &mut Vec<u8>) {
        if self.bookmark.is_some() && revision > self.bookmarked {
            self.bookmarked = revision;
            self.events.append_bookmark(chunk, revision, false);
        }
    }

    /// Ends the watch with an error.
    fn fail(&mut self, status: &Status, chunk: &mut Vec<u8>) {
        self.events.append_error(chunk, status);
        self.watch = None;
    }
}

/// Appends initial objects up to the size of a chunk.
fn append_some(events: &mut Events, chunk: &mut Vec<u8>, remaining: &mut Remaining) -> Result<(), Status> {
    while chunk.len() < CHUNK_SIZE
        && let Some(entry) = remaining.entries.next()
    {
        events.append_initial(chunk, &entry)?;
    }
    Ok(())
}
