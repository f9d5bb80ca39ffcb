//! The contract in its simplest form: a list of everything that ever happened. What the real stores do is compared with
//! this.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use knarr_store::{Entry, Error, Event, Notice, Page, Range, Revision, Store, StoreStatus, Watch};
use parking_lot::Mutex;

#[derive(Clone)]
pub struct Model {
    state: Arc<Mutex<State>>,
    changed: Arc<tokio::sync::watch::Sender<Revision>>,
}

struct State {
    events: Vec<Event>,
    revision: Revision,
    floor: Revision,
}

impl Model {
    /// An empty store whose first write gets the revision after `revision`.
    pub fn new(revision: Revision) -> Self {
        let state = State { events: Vec::new(), revision, floor: 0 };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::new(tokio::sync::watch::Sender::new(revision)) }
    }

    pub fn floor(&self) -> Revision {
        self.state.lock().floor
    }

    /// All changes of a prefix after a revision, forgotten or not.
    pub fn events(&self, prefix: &str, after: Revision) -> Vec<Event> {
        let state = self.state.lock();
        let concerned = |event: &&Event| event.revision > after && key_of(event).starts_with(prefix);
        state.events.iter().filter(concerned).cloned().collect()
    }

    fn write(
        &self,
        key: &str,
        decide: impl FnOnce(Option<Arc<Entry>>, Revision) -> Result<Option<Arc<Entry>>, Error>,
    ) -> Result<Event, Error> {
        let mut state = self.state.lock();
        let previous = state.at(state.revision).remove(key);
        let revision = state.revision + 1;
        let event = Event { revision, current: decide(previous.clone(), revision)?, previous };
        state.events.push(event.clone());
        state.revision = revision;
        self.changed.send_replace(revision);
        Ok(event)
    }
}

pub fn key_of(event: &Event) -> &str {
    event.current.as_ref().or(event.previous.as_ref()).map_or("", |entry| &entry.key)
}

impl State {
    fn at(&self, revision: Revision) -> BTreeMap<String, Arc<Entry>> {
        let mut entries = BTreeMap::new();
        for event in self.events.iter().take_while(|event| event.revision <= revision) {
            match &event.current {
                Some(entry) => entries.insert(entry.key.to_string(), entry.clone()),
                None => entries.remove(key_of(event)),
            };
        }
        entries
    }
}

#[async_trait]
impl Store for Model {
    fn revision(&self) -> Revision {
        self.state.lock().revision
    }

    fn peek(&self, key: &str) -> Option<Arc<Entry>> {
        let state = self.state.lock();
        state.at(state.revision).remove(key)
    }

    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error> {
        let state = self.state.lock();
        let revision = range.at.unwrap_or(state.revision);
        if revision > state.revision {
            return Err(Error::Future { requested: revision, newest: state.revision });
        }
        if revision < state.floor {
            return Err(Error::Compacted { requested: revision, oldest: state.floor });
        }
        let matches = |key: &str| key.starts_with(range.prefix) && range.after.is_none_or(|after| key > after);
        let mut entries: Vec<_> =
            state.at(revision).into_iter().filter(|(key, _)| matches(key)).map(|(_, entry)| entry).collect();
        let limit = if range.limit == 0 { entries.len() } else { range.limit.min(entries.len()) };
        let remaining = entries.split_off(limit).len();
        Ok(Page { entries, revision, remaining })
    }

    fn count(&self, prefix: &str) -> usize {
        let state = self.state.lock();
        state.at(state.revision).keys().filter(|key| key.starts_with(prefix)).count()
    }

    async fn sync(&self) -> Result<Revision, Error> {
        Ok(self.revision())
    }

    async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error> {
        let mut changed = self.changed.subscribe();
        let reached = tokio::time::timeout(timeout, changed.wait_for(|newest| *newest >= revision)).await;
        reached.map(drop).map_err(|_| Error::Future { requested: revision, newest: self.revision() })
    }

    async fn create(&self, key: &str, value: Bytes, _ttl: Option<Duration>) -> Result<Arc<Entry>, Error> {
        let event = self.write(key, |existing, revision| match existing {
            Some(_) => Err(Error::Exists(key.into())),
            None => Ok(Some(Arc::new(Entry::new(key.into(), value, revision, revision)))),
        })?;
        Ok(event.current.expect("it was created"))
    }

    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        _ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error> {
        let event = self.write(key, |existing, revision| match existing {
            Some(entry) if entry.revision == expected => {
                Ok(Some(Arc::new(Entry::new(key.into(), value, entry.created, revision))))
            }
            current => Err(Error::Conflict { key: key.into(), expected, current }),
        })?;
        Ok(event.current.expect("it was updated"))
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error> {
        let event = self.write(key, |existing, _| match existing {
            Some(entry) if entry.revision == expected => Ok(None),
            current => Err(Error::Conflict { key: key.into(), expected, current }),
        })?;
        Ok(event.revision)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let state = self.state.lock();
        if after < state.floor {
            return Err(Error::Compacted { requested: after, oldest: state.floor });
        }
        if after > state.revision {
            return Err(Error::Future { requested: after, newest: state.revision });
        }
        let watch =
            ModelWatch { model: self.clone(), prefix: prefix.to_owned(), seen: after, progress: false, over: false };
        Ok(Box::new(watch))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        let mut state = self.state.lock();
        if revision > state.revision {
            return Err(Error::Future { requested: revision, newest: state.revision });
        }
        state.floor = state.floor.max(revision);
        Ok(())
    }

    async fn pack(&self) -> Result<(), Error> {
        Ok(())
    }

    fn history_within(&self, _bytes: usize) -> Revision {
        self.floor()
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::default()
    }

    async fn failed(&self) -> String {
        std::future::pending().await
    }

    async fn snapshot(&self, _image: &mut (dyn std::io::Write + Send)) -> Result<Revision, Error> {
        Err(Error::Unavailable("the model has no images".to_owned()))
    }
}

struct ModelWatch {
    model: Model,
    prefix: String,
    seen: Revision,
    progress: bool,
    over: bool,
}

#[async_trait]
impl Watch for ModelWatch {
    async fn next(&mut self) -> Option<Notice> {
        let mut changed = self.model.changed.subscribe();
        loop {
            if self.over {
                return None;
            }
            let (events, newest) = (self.model.events(&self.prefix, self.seen), *changed.borrow_and_update());
            if events.iter().any(|event| event.revision <= self.model.floor()) {
                self.over = true;
                return Some(Notice::Compacted);
            }
            self.seen = events.last().map_or(newest, |event| event.revision).max(self.seen);
            if !events.is_empty() {
                return Some(Notice::Events(events));
            }
            if std::mem::take(&mut self.progress) {
                return Some(Notice::Progress(self.seen));
            }
            changed.changed().await.ok()?;
        }
    }

    fn request_progress(&mut self) {
        self.progress = true;
    }
}
