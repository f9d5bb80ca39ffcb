//! Compresses the values of entries that have not changed for a while, once the store is large.
//!
//! Most objects of a large cluster are written within seconds and then hardly read: pods that run, and what was reported about
//! them. Their values use several times the memory that their differences are worth. Only entries that no history refers to are
//! packed, because history would keep the plain value in memory as well.

use std::collections::HashMap;
use std::sync::Arc;

use knarr_packing::Packer;

use super::Index;
use super::prefix::{Bounds, group_of};
use super::state::State;
use crate::contract::{Entry, Revision};

/// Up to so many bytes of values stay as they are, so that the reads of a small store cost nothing more.
const MAX_PLAIN_BYTES: usize = 128 << 20;
/// Shorter values are not worth it.
const MIN_VALUE_BYTES: usize = 256;
/// How many bytes one pass packs, so that it takes a fraction of a second.
const BYTES_PER_PASS: usize = 64 << 20;
/// How many entries are looked at while the index is locked.
const BATCH: usize = 256;

/// Where the current sweep over all keys is, and the packers of each group of keys. A sweep packs the entries that fell below the
/// compaction floor since the last one started, so that each version is tried once.
#[derive(Default)]
pub(super) struct Packing {
    packers: HashMap<Box<str>, Packer>,
    /// The versions up to this revision were tried by earlier sweeps.
    tried: Revision,
    /// `State::resets` at that time.
    resets: u64,
    sweep: Option<Sweep>,
}

struct Sweep {
    /// The newest revision it packs.
    until: Revision,
    /// The last key it looked at.
    after: Arc<str>,
}

impl Packing {
    /// Forgets the sweeps if all entries were replaced by plain ones since.
    fn check_resets(&mut self, resets: u64) {
        if self.resets != resets {
            (self.resets, self.tried, self.sweep) = (resets, 0, None);
        }
    }

    fn pack(&mut self, entry: &Entry) -> Option<Entry> {
        let group = group_of(&entry.key).unwrap_or_default();
        if !self.packers.contains_key(group) {
            self.packers.insert(group.into(), Packer::default());
        }
        entry.packed(self.packers.get_mut(group)?)
    }
}

impl Index {
    /// Packs values while more than `MAX_PLAIN_BYTES` are plain: a limited number, from where the last call stopped.
    pub(crate) fn pack(&self) {
        self.pack_beyond(MAX_PLAIN_BYTES);
    }

    pub(super) fn pack_beyond(&self, max_plain_bytes: usize) {
        let mut packing = self.packing.lock();
        let mut bytes = 0;
        while bytes < BYTES_PER_PASS {
            let (until, batch) = {
                let state = self.state.read();
                packing.check_resets(state.resets);
                if state.plain_bytes() <= max_plain_bytes {
                    return;
                }
                match &packing.sweep {
                    Some(sweep) => (sweep.until, state.batch_after(Some(&sweep.after), BATCH)),
                    None => (state.floor, state.batch_after(None, BATCH)),
                }
            };
            let Some(last) = batch.last() else {
                packing.tried = until;
                packing.sweep = None;
                return;
            };
            packing.sweep = Some(Sweep { until, after: last.key.clone() });
            let revisions = packing.tried + 1..=until;
            let is_due = |entry: &&Arc<Entry>| {
                revisions.contains(&entry.revision) && !entry.is_packed() && entry.value_len() >= MIN_VALUE_BYTES
            };
            let due: Vec<&Arc<Entry>> = batch.iter().filter(is_due).collect();
            bytes += due.iter().map(|entry| entry.value_len()).sum::<usize>();
            let packed: Vec<Arc<Entry>> =
                due.into_iter().filter_map(|entry| packing.pack(entry)).map(Arc::new).collect();
            if !packed.is_empty() {
                let replaced = self.state.write().replace_packed(packed);
                // Freeing takes time, so it happens after the lock is released.
                drop(replaced);
            }
        }
    }
}

impl State {
    /// The size of the current entries whose values are plain.
    pub(super) fn plain_bytes(&self) -> usize {
        self.current_bytes - self.packed_bytes
    }

    /// The entries after a key, in key order.
    pub(super) fn batch_after(&self, after: Option<&str>, limit: usize) -> Vec<Arc<Entry>> {
        let entries = self.current.range::<str, _>(Bounds::new("", after).as_range());
        entries.take(limit).map(|(_, entry)| entry.clone()).collect()
    }

    /// Replaces entries by packed ones, unless they changed in between. Returns what is to be freed.
    pub(super) fn replace_packed(&mut self, packed: Vec<Arc<Entry>>) -> Vec<Arc<Entry>> {
        let mut replaced = Vec::with_capacity(packed.len());
        for entry in packed {
            let Some(current) = self.current.get_mut(&entry.key) else { continue };
            if current.revision != entry.revision || current.is_packed() {
                continue;
            }
            if let Some(topics) = group_of(&entry.key).and_then(|group| self.topics.get_mut(group)) {
                topics.insert(topics.topic_of(current), &entry);
            }
            self.packed_bytes += entry.bytes();
            replaced.push(std::mem::replace(current, entry));
        }
        replaced
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{delete, put, show};
    use super::*;
    use crate::contract::{Range, TopicIndex};

    fn write(index: &Index, key: &str, value: &str, revision: Revision) {
        index.apply([put(key, value, revision, revision)], revision).wake();
    }

    fn range_all(index: &Index) -> Vec<String> {
        show(&index.range(&Range::default()).unwrap())
    }

    fn value(name: &str, node: usize) -> String {
        let text: String = (0..40).map(|field| format!("\"field-{field}\":\"value {field}\",")).collect();
        format!("{{\"node\":\"{node}\",{text}\"name\":\"{name}\"}}")
    }

    fn node_of(value: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(value).ok()?;
        Some(text.split('"').nth(3)?.to_owned())
    }

    fn filled(count: usize) -> Arc<Index> {
        let index = Arc::new(Index::new(Vec::new(), 1, 1));
        index.index_topics(TopicIndex { group: "/r/pods/", topic_of: node_of });
        for number in 0..count {
            let name = format!("/r/pods/{number:04}");
            write(&index, &name, &value(&name, number % 3), number as Revision + 2);
        }
        index
    }

    fn packed(index: &Index) -> Vec<bool> {
        index.range(&Range::default()).unwrap().entries.iter().map(|entry| entry.is_packed()).collect()
    }

    #[test]
    fn entries_that_history_does_not_hold_are_packed_and_read_as_before() {
        let index = filled(600);
        let plain = range_all(&index);
        let (bytes, on_node) = (index.current_bytes(), |topic| Range { prefix: "/r/pods/", topic, ..Range::default() });
        index.pack_beyond(0);
        assert!(packed(&index).iter().all(|packed| !packed), "history refers to all of them");
        index.compact(401).unwrap();
        index.pack_beyond(0);
        assert_eq!(packed(&index).iter().filter(|packed| **packed).count(), 400);
        assert_eq!(range_all(&index), plain);
        assert_eq!(index.current_bytes(), bytes, "the quota counts the values themselves");
        let page = index.range(&on_node(Some("1"))).unwrap();
        assert!(page.entries.iter().take(100).all(|entry| entry.is_packed()), "the index by topic has the packed ones");
        assert_eq!(page.entries.len(), 200);
        assert_eq!(index.get("/r/pods/0000").unwrap().value_len(), value("/r/pods/0000", 0).len());
        assert_eq!(index.weigh(&Range::default(), usize::MAX), plain.iter().map(|line| line.len() - 13).sum::<usize>());
    }

    #[test]
    fn changed_and_deleted_entries_are_no_longer_packed() {
        let index = filled(300);
        index.compact(301).unwrap();
        index.pack_beyond(0);
        assert!(packed(&index).iter().all(|packed| *packed));
        write(&index, "/r/pods/0000", "new", 302);
        index.apply([delete("/r/pods/0001", 303)], 303).wake();
        assert_eq!(packed(&index).iter().filter(|packed| !**packed).count(), 1);
        let state = index.state.read();
        let entries = state.current.values().filter(|entry| !entry.is_packed());
        assert_eq!(state.plain_bytes(), entries.map(|entry| entry.bytes()).sum::<usize>());
        drop(state);
        let old = index.range(&Range { at: Some(301), ..Range::default() }).unwrap();
        assert_eq!(&**old.entries[1].value(), value("/r/pods/0001", 1).as_bytes(), "history has the packed version");
    }

    #[test]
    fn a_small_store_stays_plain_and_each_version_is_tried_once() {
        let index = filled(300);
        index.compact(301).unwrap();
        index.pack_beyond(index.current_bytes());
        assert!(packed(&index).iter().all(|packed| !packed));
        index.pack_beyond(index.current_bytes() / 2);
        let some = packed(&index).iter().filter(|packed| **packed).count();
        assert!((100..300).contains(&some), "{some}");
        index.pack_beyond(0);
        write(&index, "/r/pods/0000", &value("/r/pods/0000", 1), 302);
        index.compact(302).unwrap();
        // The first call finishes the sweep up to revision 301.
        index.pack_beyond(0);
        assert_eq!(index.packing.lock().tried, 301);
        index.pack_beyond(0);
        assert!(packed(&index).iter().all(|packed| *packed));
    }
}
