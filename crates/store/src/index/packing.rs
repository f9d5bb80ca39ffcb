//! Compresses the values of a large store.
//!
//! Most objects of a large cluster are written within seconds and then hardly read: pods that run, what was reported about them,
//! and all versions that were replaced. Their values use several times the memory that their differences are worth. A version is
//! packed once, a few seconds after it was written, when those who watch have read it. So plain values have about the same short
//! life, and what they occupied can be used again as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use knarr_packing::Packer;

use super::Index;
use super::group::Group;
use super::prefix::{Bounds, group_of};
use super::state::State;
use crate::contract::{Entry, Error, Revision};

/// The values of a smaller store stay as they are, so that reading them costs nothing more.
const MIN_STORE_BYTES: usize = 128 << 20;
/// Shorter values are not worth it.
const MIN_VALUE_BYTES: usize = 256;
/// How many bytes one pass packs, so that it takes a fraction of a second.
const BYTES_PER_PASS: usize = 32 << 20;
/// How many keys are looked at while the index is locked.
const BATCH: usize = 256;

/// Which versions were packed, and the packers of each group of keys.
#[derive(Default)]
pub(super) struct Packing {
    groups: HashMap<Box<str>, PackedGroup>,
    /// The current versions up to this revision were packed by a sweep over all keys.
    swept: Option<Revision>,
    sweep: Option<Sweep>,
    /// The newest revision at the last pass: what came later is left to the next one.
    newest: Revision,
    /// `State::resets` at that time.
    resets: u64,
}

#[derive(Default)]
struct PackedGroup {
    packer: Packer,
    /// The versions in the group's log were packed up to this revision.
    packed: Revision,
}

/// A sweep over all keys, for the versions that are in no log: those that the store was opened with, and those whose changes were
/// compacted before they could be packed.
struct Sweep {
    /// The newest revision it packs.
    until: Revision,
    /// The last key it looked at.
    after: Option<Arc<str>>,
}

impl Packing {
    /// Starts again if all entries were replaced by plain ones since.
    fn check_resets(&mut self, resets: u64) {
        if self.resets != resets {
            *self = Self { resets, ..Self::default() };
        }
    }

    /// The revision up to which the versions of a group were packed.
    fn packed(&self, group: &str) -> Revision {
        let by_log = self.groups.get(group).map_or(0, |group| group.packed);
        by_log.max(self.swept.unwrap_or(0))
    }

    fn group(&mut self, name: &str) -> &mut PackedGroup {
        if !self.groups.contains_key(name) {
            self.groups.insert(name.into(), PackedGroup::default());
        }
        self.groups.get_mut(name).expect("it was just inserted")
    }

    /// Packs versions and returns their size.
    fn pack<'e>(&mut self, entries: impl IntoIterator<Item = &'e Arc<Entry>>) -> usize {
        let mut bytes = 0;
        for entry in entries.into_iter().filter(|entry| is_worth_packing(entry)) {
            entry.pack(&mut self.group(group_of(&entry.key).unwrap_or_default()).packer);
            bytes += entry.value_len();
        }
        bytes
    }
}

fn is_worth_packing(entry: &Entry) -> bool {
    entry.value_len() >= MIN_VALUE_BYTES && !entry.is_packed()
}

impl Index {
    /// Packs what was written before the last call, if the store is large.
    pub(crate) async fn pack(self: &Arc<Self>) -> Result<(), Error> {
        let index = self.clone();
        let packed = tokio::task::spawn_blocking(move || index.pack_beyond(MIN_STORE_BYTES)).await;
        packed.map_err(|error| Error::Unavailable(format!("cannot pack entries: {error}")))
    }

    pub(super) fn pack_beyond(&self, min_store_bytes: usize) {
        let mut packing = self.packing.lock();
        let until = std::mem::replace(&mut packing.newest, self.revision());
        let (groups, floor) = {
            let state = self.state.read();
            packing.check_resets(state.resets);
            if state.current_bytes + state.history_bytes <= min_store_bytes {
                return;
            }
            let groups: Vec<_> = state.groups.iter().map(|(name, group)| (name.clone(), group.clone())).collect();
            (groups, state.floor)
        };
        let has_missed = groups.iter().any(|(name, group)| packing.packed(name) < group.log.read().dropped());
        if packing.sweep.is_none() && (has_missed || packing.swept.is_none()) {
            packing.sweep = Some(Sweep { until: floor, after: None });
        }
        let mut budget = BYTES_PER_PASS;
        self.pack_by_key(&mut packing, &mut budget);
        for (name, group) in &groups {
            pack_log(&mut packing, name, group, until, &mut budget);
        }
    }

    /// Continues the sweep over all keys, if there is one.
    fn pack_by_key(&self, packing: &mut Packing, budget: &mut usize) {
        while let Some(sweep) = packing.sweep.take_if(|_| *budget > 0) {
            let batch = self.state.read().batch_after(sweep.after.as_deref(), BATCH);
            let Some(last) = batch.last() else {
                packing.swept = Some(sweep.until);
                return;
            };
            packing.sweep = Some(Sweep { after: Some(last.key.clone()), ..sweep });
            let bytes = packing.pack(batch.iter().filter(|entry| entry.revision <= sweep.until));
            *budget = budget.saturating_sub(bytes);
        }
    }
}

/// Packs the versions in the log of a group up to a revision.
fn pack_log(packing: &mut Packing, name: &str, group: &Group, until: Revision, budget: &mut usize) {
    if *budget == 0 {
        return;
    }
    let mut packed = packing.packed(name);
    let (mut due, mut bytes) = (Vec::new(), 0);
    for event in group.log.read().after(packed).take_while(|event| event.revision <= until) {
        // A revision is packed as a whole: the next pass starts after it.
        if bytes >= *budget && event.revision != packed {
            break;
        }
        packed = event.revision;
        if let Some(entry) = event.current.as_ref().filter(|entry| is_worth_packing(entry)) {
            bytes += entry.value_len();
            due.push(entry.clone());
        }
    }
    *budget = budget.saturating_sub(bytes);
    packing.pack(&due);
    packing.group(name).packed = packed;
}

impl State {
    /// The entries after a key, in key order.
    fn batch_after(&self, after: Option<&str>, limit: usize) -> Vec<Arc<Entry>> {
        let entries = self.current.range::<str, _>(Bounds::new("", after).as_range());
        entries.take(limit).map(|(_, entry)| entry.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Change;
    use super::super::tests::{delete, put, show};
    use super::*;
    use crate::contract::{Range, TopicIndex};
    use bytes::Bytes;
    use parking_lot::Mutex;

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

    /// Packs everything that was written before.
    fn pack_all(index: &Index) {
        index.pack_beyond(0);
        index.pack_beyond(0);
    }

    #[test]
    fn all_versions_are_packed_at_the_second_call_and_read_as_before() {
        let index = filled(600);
        write(&index, "/r/pods/0000", &value("/r/pods/0000", 1), 602);
        let plain = range_all(&index);
        let past = Range { at: Some(601), ..Range::default() };
        let (bytes, plain_past) = (index.current_bytes(), show(&index.range(&past).unwrap()));
        index.pack_beyond(0);
        assert!(packed(&index).iter().all(|packed| !packed), "watches may read them now");
        index.pack_beyond(0);
        assert!(packed(&index).iter().all(|packed| *packed));
        assert_eq!(range_all(&index), plain);
        let replaced = index.range(&past).unwrap();
        assert!(replaced.entries[0].is_packed(), "history, too");
        assert_eq!(show(&replaced), plain_past);
        assert_eq!(index.current_bytes(), bytes, "the quota counts the values themselves");
        let on_node = index.range(&Range { prefix: "/r/pods/", topic: Some("1"), ..Range::default() }).unwrap();
        assert!(on_node.entries.len() == 201 && on_node.entries.iter().all(|entry| entry.is_packed()));
        assert_eq!(index.get("/r/pods/0000").unwrap().value_len(), value("/r/pods/0000", 0).len());
        assert_eq!(index.weigh(&Range::default(), usize::MAX), plain.iter().map(|line| line.len() - 13).sum::<usize>());
    }

    #[test]
    fn later_versions_are_packed_by_later_calls() {
        let index = filled(300);
        pack_all(&index);
        write(&index, "/r/pods/0000", &value("/r/pods/0000", 2), 302);
        index.apply([delete("/r/pods/0001", 303)], 303).wake();
        assert_eq!(packed(&index).iter().filter(|packed| !**packed).count(), 1);
        pack_all(&index);
        assert!(packed(&index).iter().all(|packed| *packed));
        assert_eq!(index.get("/r/pods/0000").unwrap().value(), value("/r/pods/0000", 2).as_bytes());
        let old = index.range(&Range { at: Some(301), ..Range::default() }).unwrap();
        assert_eq!(old.entries[1].value(), value("/r/pods/0001", 1).as_bytes(), "history has the packed version");
    }

    #[test]
    fn versions_that_are_in_no_log_are_packed() {
        let opened = |number: u64| {
            let key = format!("/r/pods/{number:04}");
            Arc::new(Entry::new(key.clone().into(), value(&key, 0).into(), number, number))
        };
        let index = Arc::new(Index::new((1..=300).map(opened).collect(), 300, 300));
        pack_all(&index);
        assert!(packed(&index).iter().all(|packed| *packed), "what it was opened with");
        write(&index, "/r/pods/0001", &value("/r/pods/0001", 1), 301);
        index.compact(301).unwrap();
        pack_all(&index);
        assert!(packed(&index).iter().all(|packed| *packed), "what was compacted at once");
        index.reset((1..=3).map(opened).collect(), 400);
        pack_all(&index);
        assert_eq!(packed(&index), [true; 3], "what replaced everything");
    }

    #[test]
    fn a_small_store_stays_plain_until_it_grows() {
        let index = filled(300);
        let size = index.current_bytes() + index.state.read().history_bytes;
        index.pack_beyond(size);
        index.pack_beyond(size);
        assert!(packed(&index).iter().all(|packed| !packed));
        index.compact(200).unwrap();
        pack_all(&index);
        assert!(packed(&index).iter().all(|packed| *packed));
    }

    #[test]
    fn short_and_incompressible_values_stay_plain_and_what_was_derived_is_derived_again() {
        let index = filled(10);
        index.apply([put("/r/pods/short", "short", 20, 20)], 20).wake();
        let noise = |number: u64| {
            let random: Vec<u8> = std::iter::repeat_with(rand::random).take(1000).collect();
            Arc::new(Entry::new(format!("/r/secrets/{number}").into(), random.into(), number, number))
        };
        let secrets: Vec<Arc<Entry>> = (21..50).map(noise).collect();
        let plain: Vec<Bytes> = secrets.iter().map(|secret| secret.value()).collect();
        let change = |entry: &Arc<Entry>| Change {
            key: entry.key.clone(),
            revision: entry.revision,
            current: Some(entry.clone()),
        };
        index.apply(secrets.iter().map(change), 50).wake();
        let pod = index.get("/r/pods/0000").unwrap();
        let memo = pod.memo::<Mutex<u32>>().unwrap();
        *memo.lock() = 1;
        assert_eq!(*pod.memo::<Mutex<u32>>().unwrap().lock(), 1);
        assert!(pod.memo::<Mutex<u64>>().is_none(), "another type");
        pack_all(&index);
        assert!(!index.get("/r/pods/short").unwrap().is_packed());
        // The first ones became the dictionary.
        assert!(secrets.iter().filter(|secret| secret.is_packed()).count() < secrets.len() / 2);
        assert!(secrets.iter().zip(plain).all(|(secret, plain)| secret.value() == plain));
        assert_eq!(*pod.memo::<Mutex<u32>>().unwrap().lock(), 0);
    }
}
