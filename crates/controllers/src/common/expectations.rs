//! Creations and deletions that a controller requested and its cache does not show yet.
//!
//! After creating a pod the cache is stale for a moment; acting on it would create the pod twice. So each creation and
//! deletion is recorded before it is sent and removed when its event arrives. Until all have arrived, or a timeout has
//! passed in which a watch surely recovers, the key is not synced.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Key;

const TIMEOUT: Duration = Duration::from_secs(5 * 60);

#[derive(Default)]
pub struct Expectations {
    pending: Mutex<HashMap<Key, Pending>>,
}

struct Pending {
    creations: i64,
    deletions: HashSet<String>,
    since: Instant,
}

impl Expectations {
    /// Call this before the creations are sent.
    pub fn expect_creations(&self, key: &Key, count: usize) {
        self.change(key, |pending| pending.creations += count as i64);
    }

    /// Call this before the deletions are sent, with the uids of the objects.
    pub fn expect_deletions(&self, key: &Key, uids: impl IntoIterator<Item = String>) {
        self.change(key, |pending| pending.deletions.extend(uids));
    }

    /// A creation was observed, or failed.
    pub fn created(&self, key: &Key) {
        self.clear(key, |pending| pending.creations -= 1);
    }

    /// A deletion was observed (a deletion timestamp counts as one), or failed. Unexpected ones change nothing.
    pub fn deleted(&self, key: &Key, uid: &str) {
        self.clear(key, |pending| {
            pending.deletions.remove(uid);
        });
    }

    pub fn are_satisfied(&self, key: &Key) -> bool {
        self.pending.lock().get(key).is_none_or(|pending| pending.is_fulfilled() || pending.since.elapsed() > TIMEOUT)
    }

    /// The object is gone: drops its expectations.
    pub fn forget(&self, key: &Key) {
        self.pending.lock().remove(key);
    }

    fn change(&self, key: &Key, change: impl FnOnce(&mut Pending)) {
        let mut all = self.pending.lock();
        let fresh = || Pending { creations: 0, deletions: HashSet::new(), since: Instant::now() };
        let pending = all.entry(key.clone()).or_insert_with(fresh);
        if pending.since.elapsed() > TIMEOUT {
            *pending = fresh();
        }
        pending.since = Instant::now();
        change(pending);
    }

    fn clear(&self, key: &Key, change: impl FnOnce(&mut Pending)) {
        let mut all = self.pending.lock();
        if let Some(pending) = all.get_mut(key) {
            change(pending);
            if pending.is_fulfilled() {
                all.remove(key);
            }
        }
    }
}

impl Pending {
    fn is_fulfilled(&self) -> bool {
        self.creations <= 0 && self.deletions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_for_its_expectations() {
        let (expectations, key) = (Expectations::default(), Key::new("ns", "a"));
        assert!(expectations.are_satisfied(&key));
        expectations.expect_creations(&key, 2);
        expectations.created(&key);
        assert!(!expectations.are_satisfied(&key));
        expectations.created(&key);
        assert!(expectations.are_satisfied(&key));
        expectations.created(&key);
        expectations.expect_deletions(&key, ["u1".to_owned()]);
        expectations.deleted(&key, "other");
        assert!(!expectations.are_satisfied(&key), "another's deletion does not count");
        expectations.deleted(&key, "u1");
        assert!(expectations.are_satisfied(&key));
        expectations.expect_creations(&key, 1);
        tokio::time::advance(TIMEOUT + Duration::from_secs(1)).await;
        assert!(expectations.are_satisfied(&key), "a lost watch event does not block for ever");
    }
}
