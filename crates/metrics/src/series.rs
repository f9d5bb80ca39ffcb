//! The values of a family by their label values. Finding a series that exists takes no lock and allocates nothing.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

/// Series whose label values have the same hash.
type Bucket<V> = Vec<Arc<Series<V>>>;
// Label values come from fixed sets, so nobody can choose them to collide.
type Map<V> = HashMap<u64, Bucket<V>, RandomState>;

pub(crate) struct Series<V> {
    labels: Box<[Box<str>]>,
    value: V,
}

pub(crate) struct AllSeries<V> {
    /// Replaced as a whole when a series is added, which is rare.
    map: ArcSwapOption<Map<V>>,
    hasher: OnceLock<RandomState>,
    writing: Mutex<()>,
}

impl<V> AllSeries<V> {
    pub(crate) const fn new() -> Self {
        AllSeries { map: ArcSwapOption::const_empty(), hasher: OnceLock::new(), writing: Mutex::new(()) }
    }

    fn hash(&self, labels: &[&str]) -> u64 {
        self.hasher.get_or_init(RandomState::default).hash_one(labels)
    }

    /// Calls `update` with the value of a series, which `create` makes if there is none.
    pub(crate) fn update<R>(&self, labels: &[&str], create: impl FnOnce() -> V, update: impl FnOnce(&V) -> R) -> R {
        let hash = self.hash(labels);
        if let Some(map) = &*self.map.load()
            && let Some(series) = find(map, hash, labels)
        {
            return update(&series.value);
        }
        let _writing = self.writing.lock();
        let mut map = self.map.load().as_deref().cloned().unwrap_or_default();
        if let Some(series) = find(&map, hash, labels) {
            return update(&series.value);
        }
        let labels = labels.iter().map(|value| Box::from(*value)).collect();
        let series = Arc::new(Series { labels, value: create() });
        let updated = update(&series.value);
        map.entry(hash).or_default().push(series);
        self.map.store(Some(Arc::new(map)));
        updated
    }

    /// Replaces all series at once.
    pub(crate) fn fill<'a, const N: usize>(&self, all: impl Iterator<Item = ([&'a str; N], V)>) {
        let _writing = self.writing.lock();
        let mut map: Map<V> = HashMap::default();
        for (labels, value) in all {
            let hash = self.hash(&labels);
            let labels = labels.iter().map(|value| Box::from(*value)).collect();
            map.entry(hash).or_default().push(Arc::new(Series { labels, value }));
        }
        self.map.store(Some(Arc::new(map)));
    }

    /// Removes the series whose labels `keep` refuses.
    pub(crate) fn retain(&self, keep: impl Fn(&[Box<str>]) -> bool) {
        let _writing = self.writing.lock();
        let mut map = self.map.load().as_deref().cloned().unwrap_or_default();
        map.values_mut().for_each(|bucket| bucket.retain(|series| keep(&series.labels)));
        map.retain(|_, bucket| !bucket.is_empty());
        self.map.store(Some(Arc::new(map)));
    }

    /// Calls `each` with all series, in the order of their labels.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&[Box<str>], &V)) {
        let map = self.map.load_full();
        let mut all: Vec<&Arc<Series<V>>> = map.iter().flat_map(|map| map.values().flatten()).collect();
        all.sort_by(|one, other| one.labels.cmp(&other.labels));
        for series in all {
            each(&series.labels, &series.value);
        }
    }
}

fn find<'m, V>(map: &'m Map<V>, hash: u64, labels: &[&str]) -> Option<&'m Arc<Series<V>>> {
    let is_same = |series: &&Arc<Series<V>>| series.labels.iter().map(|own| &**own).eq(labels.iter().copied());
    map.get(&hash)?.iter().find(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn threads_that_add_series_lose_no_update() {
        let all: AllSeries<AtomicU64> = AllSeries::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..1000 {
                        let label = (number % 50).to_string();
                        all.update(&[&label, "x"], AtomicU64::default, |value| value.fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
        });
        let mut seen = Vec::new();
        all.for_each(|labels, value| seen.push((labels[0].to_string(), value.load(Ordering::Relaxed))));
        assert_eq!(seen.len(), 50);
        assert!(seen.is_sorted() && seen.iter().all(|(_, count)| *count == 80), "{seen:?}");
        all.retain(|labels| &*labels[0] == "7");
        let mut left = 0;
        all.for_each(|_, _| left += 1);
        assert_eq!(left, 1);
    }
}
