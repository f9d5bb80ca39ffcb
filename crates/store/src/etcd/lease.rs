//! Leases for entries that expire. Entries written within a short time share one, since etcd's cost is per lease and not
//! per key; in return they live a little longer than requested.

use std::collections::HashMap;
use std::time::Duration;

/// The maximum number of entries that share a lease: they all expire in one transaction.
const MAX_ENTRIES: usize = 1000;

#[derive(Default)]
pub(super) struct Leases {
    /// By the time to live, in seconds.
    open: HashMap<u64, Lease>,
}

struct Lease {
    id: i64,
    granted: u64,
    entries: usize,
}

/// How long a lease accepts new entries: a twentieth of their TTL, between a second and a minute.
pub(super) fn window(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_secs(1), Duration::from_secs(60))
}

/// The TTL of a new lease in seconds.
pub(super) fn seconds(ttl: Duration) -> i64 {
    (ttl + window(ttl)).as_millis().div_ceil(1000) as i64
}

impl Leases {
    /// An open lease that expires no sooner than `ttl` after `now` (milliseconds since 1970).
    pub(super) fn find(&mut self, ttl: Duration, now: u64) -> Option<i64> {
        let lease = self.open.get_mut(&ttl.as_secs())?;
        let open = now.saturating_sub(lease.granted) < window(ttl).as_millis() as u64 && now >= lease.granted;
        if !open || lease.entries >= MAX_ENTRIES {
            return None;
        }
        lease.entries += 1;
        Some(lease.id)
    }

    /// Records a lease that was granted at `now` and has its first entry.
    pub(super) fn add(&mut self, ttl: Duration, id: i64, now: u64) {
        self.open.insert(ttl.as_secs(), Lease { id, granted: now, entries: 1 });
    }

    /// Removes a lease that etcd no longer has.
    pub(super) fn remove(&mut self, id: i64) {
        self.open.retain(|_, lease| lease.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_shared_for_a_while_and_by_not_too_many() {
        let hour = Duration::from_secs(3600);
        let mut leases = Leases::default();
        assert_eq!(leases.find(hour, 0), None);
        leases.add(hour, 7, 1000);
        assert_eq!(leases.find(hour, 1000), Some(7));
        assert_eq!(leases.find(hour, 60_999), Some(7));
        assert_eq!(leases.find(hour, 61_000), None);
        assert_eq!(leases.find(hour, 999), None, "the clock went back");
        assert_eq!(leases.find(Duration::from_secs(60), 1000), None);
        let shared = (0..2000).filter(|_| leases.find(hour, 2000).is_some()).count();
        assert_eq!(shared, MAX_ENTRIES - 3);
        leases.add(hour, 8, 2000);
        leases.remove(8);
        assert_eq!(leases.find(hour, 2000), None);
    }

    #[test]
    fn a_lease_outlasts_every_entry() {
        for (ttl, expected) in [(1, 2), (20, 21), (60, 63), (3600, 3660), (7200, 7260)] {
            assert_eq!(seconds(Duration::from_secs(ttl)), expected, "{ttl}");
        }
        assert_eq!(seconds(Duration::from_millis(1500)), 3);
    }
}
