//! Metrics of the embedded store, by the names of etcd, in whose place it is.

use knarr_metrics::{Counter, Family, Gauge, Histogram};

/// From 1 ms on, each twice the one before.
const BOUNDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

pub(super) static SYNC: Histogram = Histogram::new(
    "etcd_disk_wal_fsync_duration_seconds",
    "Time to sync the log of the store to the disk.",
    &[],
    BOUNDS,
);
pub(super) static COMMIT: Histogram = Histogram::new(
    "etcd_disk_backend_commit_duration_seconds",
    "Time to make a batch of writes durable and visible.",
    &[],
    BOUNDS,
);
pub(super) static FILE_BYTES: Gauge =
    Gauge::new("etcd_mvcc_db_total_size_in_bytes", "Size of the store's files: its log and its image.", &[]);
pub(super) static USED_BYTES: Gauge =
    Gauge::new("etcd_mvcc_db_total_size_in_use_in_bytes", "Size of the current data of the store.", &[]);
pub(super) static COMMITTED: Gauge =
    Gauge::new("etcd_server_proposals_committed_total", "Writes that were made durable since the start.", &[]);
pub(super) static APPLIED: Gauge =
    Gauge::new("etcd_server_proposals_applied_total", "Writes that became visible since the start.", &[]);
pub(super) static FAILED: Counter =
    Counter::new("etcd_server_proposals_failed_total", "Writes that could not be made durable.", &[]);
pub(super) static PENDING: Gauge =
    Gauge::new("etcd_server_proposals_pending", "Writes that wait to be made durable.", &[]);
pub(super) static HAS_LEADER: Gauge = Gauge::new(
    "etcd_server_has_leader",
    "1 while the store accepts writes; 0 once it has failed, until the process restarts.",
    &[],
);

pub(super) const FAMILIES: &[&dyn Family] =
    &[&SYNC, &COMMIT, &FILE_BYTES, &USED_BYTES, &COMMITTED, &APPLIED, &FAILED, &PENDING, &HAS_LEADER];
