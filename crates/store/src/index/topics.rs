//! The current entries of a group by topic.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::prefix::Bounds;
use crate::contract::{Entry, TopicIndex};

/// The topic of an entry; `None` if it is unknown.
pub(super) type Topic = Option<String>;

type Entries = BTreeMap<Arc<str>, Arc<Entry>>;

pub(super) struct Topics {
    index: TopicIndex,
    known: HashMap<Box<str>, Entries>,
    /// The entries whose topic is unknown.
    unknown: Entries,
}

impl Topics {
    pub(super) fn new<'a>(index: TopicIndex, entries: impl Iterator<Item = &'a Arc<Entry>>) -> Self {
        let mut topics = Self { index, known: HashMap::new(), unknown: BTreeMap::new() };
        topics.fill(entries);
        topics
    }

    /// Replaces all entries; those of other groups are ignored.
    pub(super) fn fill<'a>(&mut self, entries: impl Iterator<Item = &'a Arc<Entry>>) {
        self.known.clear();
        self.unknown.clear();
        let group = self.index.group;
        for entry in entries.filter(|entry| entry.key.starts_with(group)) {
            let topic = self.topic_of(entry);
            self.insert(topic, entry);
        }
    }

    pub(super) fn index(&self) -> TopicIndex {
        self.index
    }

    pub(super) fn topic_of(&self, entry: &Entry) -> Topic {
        (self.index.topic_of)(&entry.value())
    }

    pub(super) fn insert(&mut self, topic: Topic, entry: &Arc<Entry>) {
        let entries = match topic {
            Some(topic) => self.known.entry(topic.into()).or_default(),
            None => &mut self.unknown,
        };
        entries.insert(entry.key.clone(), entry.clone());
    }

    pub(super) fn remove(&mut self, topic: Option<&str>, key: &str) {
        let Some(topic) = topic else {
            self.unknown.remove(key);
            return;
        };
        if let Some(entries) = self.known.get_mut(topic) {
            entries.remove(key);
            if entries.is_empty() {
                self.known.remove(topic);
            }
        }
    }

    /// The entries that have or may have a topic, in key order.
    pub(super) fn entries<'a>(
        &'a self,
        topic: &str,
        bounds: &'a Bounds,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let known = self.known.get(topic).into_iter().flat_map(|entries| entries.range::<str, _>(bounds.as_range()));
        let mut known = known.map(|(_, entry)| entry).peekable();
        let mut unknown = self.unknown.range::<str, _>(bounds.as_range()).map(|(_, entry)| entry).peekable();
        std::iter::from_fn(move || match (known.peek(), unknown.peek()) {
            (Some(known_entry), Some(unknown_entry)) if known_entry.key < unknown_entry.key => known.next(),
            (_, Some(_)) => unknown.next(),
            (_, None) => known.next(),
        })
    }
}
