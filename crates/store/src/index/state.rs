//! The index's data, under one lock: current entries, the history of each group, and reads at a revision.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Change;
use super::group::Group;
use super::prefix::{Bounds, group_of};
use super::scopes::Scopes;
use super::topics::Topics;
use crate::contract::{ChangeObserver, Entry, Error, Event, Page, Range, Revision, Scope, TopicIndex};

pub(super) struct State {
    pub current: BTreeMap<Arc<str>, Arc<Entry>>,
    pub current_bytes: usize,
    /// The compaction floor: the oldest revision that can be read.
    pub floor: Revision,
    revision: Revision,
    /// How often all entries were replaced.
    pub resets: u64,
    pub history_bytes: usize,
    /// By the prefix that names the group; keys too short for one are under the empty name.
    pub groups: BTreeMap<Arc<str>, Arc<Group>>,
    scopes: Scopes,
    /// By the prefix of their group.
    pub topics: BTreeMap<&'static str, Topics>,
    pub observer: Option<ChangeObserver>,
}

impl State {
    pub(super) fn new(entries: Vec<Arc<Entry>>, revision: Revision, floor: Revision) -> Self {
        let mut state = Self {
            current: BTreeMap::new(),
            current_bytes: 0,
            floor,
            revision,
            resets: 0,
            history_bytes: 0,
            groups: BTreeMap::new(),
            scopes: Scopes::default(),
            topics: BTreeMap::new(),
            observer: None,
        };
        state.fill(entries);
        state
    }

    fn fill(&mut self, entries: Vec<Arc<Entry>>) {
        self.current_bytes = entries.iter().map(|entry| entry.bytes()).sum();
        self.current = entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        for topics in self.topics.values_mut() {
            topics.fill(self.current.values());
        }
    }

    pub(super) fn index_topics(&mut self, index: TopicIndex) {
        self.topics.insert(index.group, Topics::new(index, self.current.values()));
    }

    /// Applies changes and returns the groups and scopes they belong to.
    pub(super) fn apply(&mut self, changes: impl IntoIterator<Item = Change>, revision: Revision) -> Vec<Arc<Group>> {
        let mut touched: Vec<Arc<Group>> = Vec::new();
        for Change { key, revision, current } in changes {
            let previous = match &current {
                Some(entry) => {
                    self.current_bytes += entry.bytes();
                    self.current.insert(key.clone(), entry.clone())
                }
                None => self.current.remove(&key),
            };
            if let Some(previous) = &previous {
                self.current_bytes -= previous.bytes();
            } else if current.is_none() {
                continue;
            }
            if let Some(observer) = &self.observer {
                observer(&key);
            }
            let event = Event { revision, current, previous };
            self.history_bytes += cost(&event);
            self.scopes.push(&event, &mut touched);
            self.apply_topics(&key, &event, &mut touched);
            let group = self.group(group_of(&key).unwrap_or_default());
            group.log.write().push(event);
            touched.push(group);
        }
        self.revision = revision;
        touched.sort_unstable_by_key(|group| Arc::as_ptr(group).addr());
        touched.dedup_by(|one, other| Arc::ptr_eq(one, other));
        touched
    }

    /// Updates the topics of a changed key, and appends the change to their logs.
    fn apply_topics(&mut self, key: &str, event: &Event, touched: &mut Vec<Arc<Group>>) {
        let Some(topics) = group_of(key).and_then(|group| self.topics.get_mut(group)) else { return };
        let group = topics.index().group;
        let topic_of = |entry: &Option<Arc<Entry>>| entry.as_ref().map(|entry| topics.topic_of(entry));
        let (before, after) = (topic_of(&event.previous), topic_of(&event.current));
        self.scopes.push_topics(group, before.as_ref(), after.as_ref(), event, touched);
        if let Some(before) = before.filter(|before| Some(before) != after.as_ref()) {
            topics.remove(before.as_deref(), key);
        }
        if let (Some(after), Some(entry)) = (after, &event.current) {
            topics.insert(after, entry);
        }
    }

    pub(super) fn reset(&mut self, entries: Vec<Arc<Entry>>, revision: Revision) -> Vec<Arc<Group>> {
        self.fill(entries);
        self.resets += 1;
        self.revision = revision;
        self.floor = revision;
        self.history_bytes = 0;
        for group in self.groups.values() {
            group.log.write().reset(revision);
        }
        self.scopes.reset(revision);
        self.groups()
    }

    /// Raises the floor and returns the dropped history.
    pub(super) fn compact(&mut self, revision: Revision) -> Result<Vec<VecDeque<Event>>, Error> {
        if revision > self.revision {
            return Err(Error::Future { requested: revision, newest: self.revision });
        }
        if revision <= self.floor {
            return Ok(Vec::new());
        }
        self.floor = revision;
        let mut dropped: Vec<_> = self.groups.values().map(|group| group.log.write().drop_until(revision)).collect();
        self.history_bytes -= dropped.iter().flatten().map(cost).sum::<usize>();
        dropped.extend(self.scopes.drop_until(revision));
        Ok(dropped)
    }

    pub(super) fn range(&self, range: &Range<'_>) -> Result<Page, Error> {
        let at = range.at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(Error::Future { requested: at, newest: self.revision });
        }
        if at < self.floor {
            return Err(Error::Compacted { requested: at, oldest: self.floor });
        }
        let bounds = Bounds::new(range.prefix, range.after);
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let past = if at == self.revision { BTreeMap::new() } else { self.undone(range.prefix, &bounds, at) };
        let (entries, remaining) = if let Some((topics, topic)) = self.topic(range).filter(|_| past.is_empty()) {
            let mut entries = topics.entries(topic, &bounds);
            let page: Vec<_> = entries.by_ref().take(limit).cloned().collect();
            (page, entries.count())
        } else if past.is_empty() {
            let mut keys = self.current.range::<str, _>(bounds.as_range());
            let entries: Vec<_> = keys.by_ref().take(limit).map(|(_, entry)| entry.clone()).collect();
            (entries, keys.count())
        } else {
            let mut versions = self.merged(&bounds, past);
            let entries: Vec<_> = versions.by_ref().take(limit).map(Cow::into_owned).collect();
            (entries, versions.count())
        };
        Ok(Page { entries, revision: at, remaining })
    }

    /// The index of the topic that a range selects, if there is one.
    fn topic<'a>(&'a self, range: &Range<'a>) -> Option<(&'a Topics, &'a str)> {
        Some((self.topics.get(group_of(range.prefix)?)?, range.topic?))
    }

    /// The versions at `at` of the keys that changed since; `None` for keys that did not exist then.
    fn undone(&self, prefix: &str, bounds: &Bounds, at: Revision) -> BTreeMap<Arc<str>, Option<Arc<Entry>>> {
        let mut past = BTreeMap::new();
        for group in self.groups_of(prefix) {
            for event in group.log.read().after(at) {
                let Some(key) = key_of(event) else { continue };
                if bounds.contains(key) && !past.contains_key(key) {
                    past.insert(key.clone(), event.previous.clone());
                }
            }
        }
        past
    }

    /// The current entries overridden by those of the past, in key order. Those that are only counted are not cloned.
    fn merged<'s>(
        &'s self,
        bounds: &Bounds,
        past: BTreeMap<Arc<str>, Option<Arc<Entry>>>,
    ) -> impl Iterator<Item = Cow<'s, Arc<Entry>>> + use<'s> {
        let current = self.current.range::<str, _>(bounds.as_range());
        let mut current = current.map(|(_, entry)| Cow::Borrowed(entry)).peekable();
        let mut past = past.into_iter().peekable();
        std::iter::from_fn(move || {
            loop {
                match (current.peek(), past.peek()) {
                    (Some(entry), Some((key, _))) if entry.key < *key => return current.next(),
                    (Some(entry), Some((key, _))) if entry.key == *key => {
                        current.next();
                    }
                    (None, None) => return None,
                    (Some(_), None) => return current.next(),
                    (_, Some(_)) => {
                        if let Some((_, Some(entry))) = past.next() {
                            return Some(Cow::Owned(entry));
                        }
                    }
                }
            }
        })
    }

    pub(super) fn count(&self, prefix: &str) -> usize {
        self.current.range::<str, _>(Bounds::new(prefix, None).as_range()).count()
    }

    /// The bytes of the current values in a range, up to `max_bytes`.
    pub(super) fn weigh(&self, range: &Range<'_>, max_bytes: usize) -> usize {
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let bounds = Bounds::new(range.prefix, range.after);
        match self.topic(range) {
            Some((topics, topic)) => weigh(topics.entries(topic, &bounds).take(limit), max_bytes),
            None => {
                let keys = self.current.range::<str, _>(bounds.as_range());
                weigh(keys.map(|(_, entry)| entry).take(limit), max_bytes)
            }
        }
    }

    pub(super) fn version(&self, key: &str, revision: Revision) -> Option<Arc<Entry>> {
        if let Some(entry) = self.current.get(key).filter(|entry| entry.revision == revision) {
            return Some(entry.clone());
        }
        let written = |event: &Event| event.current.clone().filter(|entry| *entry.key == *key);
        let group = self.groups.get(group_of(key).unwrap_or_default())?;
        let log = group.log.read();
        log.after(revision.checked_sub(1)?).take_while(|event| event.revision == revision).find_map(written)
    }

    pub(super) fn written_after(&self, key: &str, value: &bytes::Bytes, after: Revision) -> Option<Arc<Entry>> {
        let is_it = |entry: &&Arc<Entry>| *entry.key == *key && entry.value() == *value;
        let group = self.groups.get(group_of(key).unwrap_or_default())?;
        let log = group.log.read();
        log.after(after).find_map(|event| event.current.as_ref().filter(is_it).cloned())
    }

    pub(super) fn deletion(&self, key: &str, version: Revision) -> Option<Revision> {
        let was =
            |event: &Event| event.previous.as_ref().is_some_and(|was| was.revision == version && *was.key == *key);
        let group = self.groups.get(group_of(key).unwrap_or_default())?;
        let log = group.log.read();
        log.after(version).find(|event| event.current.is_none() && was(event)).map(|event| event.revision)
    }

    /// The oldest revision since which the history uses at most `bytes`.
    pub(super) fn history_within(&self, bytes: usize) -> Revision {
        if self.history_bytes <= bytes {
            return self.floor;
        }
        let mut costs: Vec<(Revision, usize)> = Vec::new();
        for group in self.groups.values() {
            costs.extend(group.log.read().newest_first().map(|event| (event.revision, cost(event))));
        }
        costs.sort_unstable_by_key(|(revision, _)| std::cmp::Reverse(*revision));
        let mut spent = 0;
        for (revision, cost) in costs {
            spent += cost;
            if spent > bytes {
                return revision;
            }
        }
        self.floor
    }

    /// The log that a watch of a scope reads, `None` if it spans groups; or `None` if `log` has to create it.
    pub(super) fn known_log(&self, scope: Scope<'_>, after: Revision) -> Option<Option<Arc<Group>>> {
        let scope = self.supported(scope);
        if Scopes::is_narrow(scope) {
            return self.scopes.known(scope, after).cloned().map(Some);
        }
        match group_of(scope.prefix()) {
            Some(name) => self.groups.get(name).cloned().map(Some),
            None => Some(None),
        }
    }

    /// The log that a watch of a scope reads from a revision on, created if it does not exist; `None` if it spans groups.
    pub(super) fn log(&mut self, scope: Scope<'_>, after: Revision) -> Option<Arc<Group>> {
        let scope = self.supported(scope);
        let group = self.group(group_of(scope.prefix())?);
        if !Scopes::is_narrow(scope) {
            return Some(group);
        }
        let topics = group_of(scope.prefix()).and_then(|group| self.topics.get(group));
        let topic_of = |entry: &Arc<Entry>| topics.and_then(|topics| topics.topic_of(entry));
        let is_in = |event: &Event| match scope {
            Scope::Prefix(prefix) => key_of(event).is_some_and(|key| key.starts_with(prefix)),
            Scope::Key(own) => key_of(event).is_some_and(|key| **key == *own),
            Scope::Topic { topic, .. } => [&event.previous, &event.current]
                .into_iter()
                .flatten()
                .any(|entry| topic_of(entry).is_none_or(|of_entry| of_entry == topic)),
            Scope::Distinct(_) => match (&event.previous, &event.current) {
                (Some(before), Some(after)) => topic_of(before).is_none_or(|before| Some(before) != topic_of(after)),
                _ => true,
            },
        };
        Some(self.scopes.ensure(scope, after, &group, is_in))
    }

    /// A scope of a topic that is not indexed is that of its prefix.
    fn supported<'a>(&self, scope: Scope<'a>) -> Scope<'a> {
        match scope {
            Scope::Topic { prefix, .. } | Scope::Distinct(prefix)
                if !group_of(prefix).is_some_and(|group| self.topics.contains_key(group)) =>
            {
                Scope::Prefix(prefix)
            }
            scope => scope,
        }
    }

    /// Checks that a watch can start after that revision.
    pub(super) fn check_watchable(&self, after: Revision) -> Result<(), Error> {
        if after < self.floor {
            return Err(Error::Compacted { requested: after, oldest: self.floor });
        }
        if after > self.revision {
            return Err(Error::Future { requested: after, newest: self.revision });
        }
        Ok(())
    }

    /// The group of that name, created if it does not exist.
    pub(super) fn group(&mut self, name: &str) -> Arc<Group> {
        if let Some(group) = self.groups.get(name) {
            return group.clone();
        }
        // A group that did not exist has lost no history since the floor.
        let group = Arc::new(Group::new(self.floor));
        self.groups.insert(name.into(), group.clone());
        group
    }

    /// All groups and scopes.
    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.values().chain(self.scopes.all()).cloned().collect()
    }

    /// The groups whose keys can start with `prefix`.
    pub(super) fn groups_of(&self, prefix: &str) -> impl Iterator<Item = &Arc<Group>> {
        let own = group_of(prefix);
        self.groups.iter().filter(move |(name, _)| own.is_none_or(|own| own == name.as_ref())).map(|(_, group)| group)
    }
}

fn weigh<'a>(entries: impl Iterator<Item = &'a Arc<Entry>>, max_bytes: usize) -> usize {
    let mut bytes = 0;
    for entry in entries {
        bytes += entry.value_len();
        if bytes >= max_bytes {
            return max_bytes;
        }
    }
    bytes
}

/// The key that an event is about.
pub(super) fn key_of(event: &Event) -> Option<&Arc<str>> {
    event.current.as_ref().or(event.previous.as_ref()).map(|entry| &entry.key)
}

/// The memory a change uses: mainly the replaced version, which nothing else holds.
fn cost(event: &Event) -> usize {
    size_of::<Event>() + event.previous.as_ref().map_or(0, |previous| previous.bytes())
}
