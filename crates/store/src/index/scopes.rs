//! The logs of scopes narrower than a group: the keys below a prefix, one key, one topic, or changes of the topic.
//!
//! A scope has a log while it has watches, and for a while afterwards. A change is appended to the logs of all scopes that
//! it is in, so that its cost depends on the watches it concerns, and not on how many there are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::group::Group;
use super::prefix::group_of;
use super::state::key_of;
use super::topics::Topic;
use crate::contract::{Event, Revision, Scope};

/// Scopes without watches are dropped at a compaction, or when there are more than this and twice as many as used.
const MAX_UNUSED: usize = 1024;

#[derive(Default)]
pub(super) struct Scopes {
    logs: HashMap<Box<str>, Arc<Group>>,
    /// The logs of topics, by the prefix of their group, then by topic.
    topics: HashMap<Box<str>, HashMap<Box<str>, Arc<Group>>>,
    /// The logs of the changes that change a topic, by the prefix of their group.
    distinct: HashMap<Box<str>, Arc<Group>>,
    /// How many scopes there may be before unused ones are dropped.
    limit: usize,
}

impl Scopes {
    /// Whether a scope is narrower than a group, and so has a log of its own.
    pub(super) fn is_narrow(scope: Scope<'_>) -> bool {
        let Some(group) = group_of(scope.prefix()) else { return false };
        match scope {
            Scope::Prefix(prefix) => prefix.len() > group.len() && prefix.ends_with('/'),
            Scope::Key(key) => key.len() > group.len(),
            Scope::Topic { .. } | Scope::Distinct(_) => true,
        }
    }

    /// The log of a scope, if it is known and complete since a revision.
    pub(super) fn known(&self, scope: Scope<'_>, since: Revision) -> Option<&Arc<Group>> {
        self.get(scope).filter(|log| log.log.read().dropped() <= since)
    }

    fn get(&self, scope: Scope<'_>) -> Option<&Arc<Group>> {
        match scope {
            Scope::Prefix(key) | Scope::Key(key) => self.logs.get(key),
            Scope::Topic { prefix, topic } => self.topics.get(group_of(prefix)?)?.get(topic),
            Scope::Distinct(prefix) => self.distinct.get(group_of(prefix)?),
        }
    }

    /// The log of a scope, complete since a revision. `group` is that of the scope; `is_in` selects which of its changes are
    /// in the scope.
    pub(super) fn ensure(
        &mut self,
        scope: Scope<'_>,
        since: Revision,
        group: &Group,
        is_in: impl Fn(&Event) -> bool,
    ) -> Arc<Group> {
        self.drop_many_unused();
        let log = match self.get(scope) {
            Some(log) => log.clone(),
            None => {
                // Complete from the newest change on, until older ones are added below.
                let newest = group.log.read().newest_first().next().map_or(since, |event| event.revision.max(since));
                let log = Arc::new(Group::new(newest));
                self.insert(scope, log.clone());
                log
            }
        };
        let complete_since = log.log.read().dropped();
        if complete_since > since {
            let all = group.log.read();
            let older: Vec<Event> = all
                .after(since)
                .take_while(|event| event.revision <= complete_since)
                .filter(|event| is_in(event))
                .cloned()
                .collect();
            log.log.write().extend_back(older.into_iter(), since);
        }
        log
    }

    fn insert(&mut self, scope: Scope<'_>, log: Arc<Group>) {
        match scope {
            Scope::Prefix(key) | Scope::Key(key) => drop(self.logs.insert(key.into(), log)),
            Scope::Topic { prefix, topic } => {
                let group = group_of(prefix).unwrap_or_default();
                self.topics.entry(group.into()).or_default().insert(topic.into(), log);
            }
            Scope::Distinct(prefix) => {
                self.distinct.insert(group_of(prefix).unwrap_or_default().into(), log);
            }
        }
    }

    /// Appends a change to the logs of the scopes of its key, and adds these to `touched`.
    pub(super) fn push(&self, event: &Event, touched: &mut Vec<Arc<Group>>) {
        let Some(key) = key_of(event).filter(|_| !self.logs.is_empty()) else { return };
        let group = group_of(key).map_or(0, str::len);
        let slashes = key.bytes().enumerate().skip(group).filter(|(_, byte)| *byte == b'/').map(|(at, _)| at + 1);
        for end in slashes.chain([key.len()]) {
            append(self.logs.get(&key[..end]), event, touched);
        }
    }

    /// Appends a change to the logs of its topics: that before it and that after it, if the key existed.
    pub(super) fn push_topics(
        &self,
        group: &str,
        before: Option<&Topic>,
        after: Option<&Topic>,
        event: &Event,
        touched: &mut Vec<Arc<Group>>,
    ) {
        let is_unknown = before.is_some_and(Option::is_none) || after.is_some_and(Option::is_none);
        if is_unknown || before != after {
            append(self.distinct.get(group), event, touched);
        }
        let Some(logs) = self.topics.get(group) else { return };
        if is_unknown {
            logs.values().for_each(|log| append(Some(log), event, touched));
            return;
        }
        let log_of = |topic: Option<&Topic>| topic.and_then(|topic| logs.get(topic.as_deref()?));
        append(log_of(before), event, touched);
        if after != before {
            append(log_of(after), event, touched);
        }
    }

    pub(super) fn drop_until(&mut self, revision: Revision) -> Vec<VecDeque<Event>> {
        self.drop_unused();
        self.all().map(|log| log.log.write().drop_until(revision)).collect()
    }

    pub(super) fn reset(&self, revision: Revision) {
        self.all().for_each(|log| drop(log.log.write().reset(revision)));
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.logs.values().chain(self.distinct.values()).chain(self.topics.values().flat_map(HashMap::values))
    }

    fn drop_many_unused(&mut self) {
        if self.len() > self.limit.max(MAX_UNUSED) {
            self.drop_unused();
        }
    }

    /// Drops the logs that no watch reads.
    fn drop_unused(&mut self) {
        let is_used = |log: &mut Arc<Group>| Arc::strong_count(log) > 1;
        self.logs.retain(|_, log| is_used(log));
        self.distinct.retain(|_, log| is_used(log));
        for topics in self.topics.values_mut() {
            topics.retain(|_, log| is_used(log));
        }
        self.limit = 2 * self.len();
    }

    fn len(&self) -> usize {
        self.logs.len() + self.distinct.len() + self.topics.values().map(HashMap::len).sum::<usize>()
    }
}

fn append(log: Option<&Arc<Group>>, event: &Event, touched: &mut Vec<Arc<Group>>) {
    if let Some(log) = log {
        log.log.write().push(event.clone());
        touched.push(log.clone());
    }
}
