//! A map with a capacity that drops the least recently used entry.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A least-recently-used map.
pub(super) struct LruMap<K, V> {
    entries: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    next: u64,
    capacity: usize,
}

impl<K: Hash + Eq + Clone, V> LruMap<K, V> {
    /// An empty map; the capacity must be at least one.
    pub fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), next: 0, capacity }
    }

    /// All keys.
    #[cfg(test)]
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    /// The value under the key, created by `make` if there is none; marks it as used.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let turn = self.next;
        self.next += 1;
        self.order.insert(turn, key.clone());
        let mut fresh = true;
        let entry = self.entries.entry(key).and_modify(|_| fresh = false).or_insert_with(|| (turn, make()));
        if !fresh {
            self.order.remove(&entry.0);
            entry.0 = turn;
        }
        if self.entries.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        // The newest entry is never the oldest, as the capacity is at least one.
        let key = &self.order[&turn];
        &mut self.entries.get_mut(key).expect("an entry just used is present").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_least_recently_used_entry() {
        let mut recent = LruMap::new(2);
        *recent.get_or_insert_with("a", || 1) += 10;
        recent.get_or_insert_with("b", || 2);
        assert_eq!(*recent.get_or_insert_with("a", || 0), 11);
        recent.get_or_insert_with("c", || 3);
        assert_eq!(*recent.get_or_insert_with("a", || 0), 11, "used after b");
        assert_eq!(*recent.get_or_insert_with("b", || 0), 0, "b was dropped");
        assert_eq!(recent.order.len(), 2);
    }
}
