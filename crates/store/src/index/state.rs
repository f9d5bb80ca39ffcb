//! The index's data, under one lock: current entries, the history of each group, and reads at a revision.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Change;
use super::group::Group;
use super::prefix::{Bounds, group_of};
use crate::contract::{Entry, Error, Event, Page, Range, Revision};

pub(super) struct State {
    pub current: BTreeMap<Arc<str>, Arc<Entry>>,
    pub current_bytes: usize,
    /// The compaction floor: the oldest revision that can be read.
    pub floor: Revision,
    revision: Revision,
    history_bytes: usize,
    /// By the prefix that names the group; keys too short for one are under the empty name.
    groups: BTreeMap<Arc<str>, Arc<Group>>,
}

impl State {
    pub(super) fn new(entries: Vec<Arc<Entry>>, revision: Revision, floor: Revision) -> Self {
        let mut state = Self {
            current: BTreeMap::new(),
            current_bytes: 0,
            floor,
            revision,
            history_bytes: 0,
            groups: BTreeMap::new(),
        };
        state.fill(entries);
        state
    }

    fn fill(&mut self, entries: Vec<Arc<Entry>>) {
        self.current_bytes = entries.iter().map(|entry| entry.bytes()).sum();
        self.current = entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
    }

    /// Applies changes and returns the groups they belong to.
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
            let group = self.group(group_of(&key).unwrap_or_default());
            let event = Event { revision, current, previous };
            self.history_bytes += cost(&event);
            group.log.write().push(event);
            if !touched.iter().any(|other| Arc::ptr_eq(other, &group)) {
                touched.push(group);
            }
        }
        self.revision = revision;
        touched
    }

    pub(super) fn reset(&mut self, entries: Vec<Arc<Entry>>, revision: Revision) -> Vec<Arc<Group>> {
        self.fill(entries);
        self.revision = revision;
        self.floor = revision;
        self.history_bytes = 0;
        for group in self.groups.values() {
            group.log.write().reset(revision);
        }
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
        let dropped: Vec<_> = self.groups.values().map(|group| group.log.write().drop_until(revision)).collect();
        self.history_bytes -= dropped.iter().flatten().map(cost).sum::<usize>();
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
        let (entries, remaining) = if past.is_empty() {
            let mut keys = self.current.range::<str, _>(bounds.as_range());
            let entries: Vec<_> = keys.by_ref().take(limit).map(|(_, entry)| entry.clone()).collect();
            (entries, keys.count())
        } else {
            let mut versions = self.merged(&bounds, past);
            let entries: Vec<_> = versions.by_ref().take(limit).collect();
            (entries, versions.count())
        };
        Ok(Page { entries, revision: at, remaining })
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

    /// The current entries overridden by those of the past, in key order.
    fn merged(
        &self,
        bounds: &Bounds,
        past: BTreeMap<Arc<str>, Option<Arc<Entry>>>,
    ) -> impl Iterator<Item = Arc<Entry>> + use<'_> {
        let current: Vec<_> = self.current.range::<str, _>(bounds.as_range()).map(|(_, entry)| entry).collect();
        let mut current = current.into_iter().peekable();
        let mut past = past.into_iter().peekable();
        std::iter::from_fn(move || {
            loop {
                match (current.peek(), past.peek()) {
                    (Some(entry), Some((key, _))) if entry.key < *key => return current.next().cloned(),
                    (Some(entry), Some((key, _))) if entry.key == *key => {
                        current.next();
                    }
                    (None, None) => return None,
                    (Some(_), None) => return current.next().cloned(),
                    (_, Some(_)) => {
                        if let Some((_, Some(entry))) = past.next() {
                            return Some(entry);
                        }
                    }
                }
            }
        })
    }

    pub(super) fn count(&self, prefix: &str) -> usize {
        self.current.range::<str, _>(Bounds::new(prefix, None).as_range()).count()
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

    pub(super) fn known_group(&self, name: &str) -> Option<Arc<Group>> {
        self.groups.get(name).cloned()
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

    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.values().cloned().collect()
    }

    /// The groups whose keys can start with `prefix`.
    pub(super) fn groups_of(&self, prefix: &str) -> impl Iterator<Item = &Arc<Group>> {
        let own = group_of(prefix);
        self.groups.iter().filter(move |(name, _)| own.is_none_or(|own| own == name.as_ref())).map(|(_, group)| group)
    }
}

/// The key that an event is about.
pub(super) fn key_of(event: &Event) -> Option<&Arc<str>> {
    event.current.as_ref().or(event.previous.as_ref()).map(|entry| &entry.key)
}

/// The memory a change uses: mainly the replaced version, which nothing else holds.
fn cost(event: &Event) -> usize {
    size_of::<Event>() + event.previous.as_ref().map_or(0, |previous| previous.bytes())
}
