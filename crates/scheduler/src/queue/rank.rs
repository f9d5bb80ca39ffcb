//! The order of active pods.

use std::cmp::Ordering;

use jiff::Timestamp;

/// Higher priority first, then the older.
#[derive(PartialEq, Eq)]
pub(super) struct Rank {
    pub priority: i32,
    pub since: Timestamp,
    pub order: u64,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        other.priority.cmp(&self.priority).then(self.since.cmp(&other.since)).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
