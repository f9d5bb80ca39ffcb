//! Messages of the Controller service about snapshots.

use super::{Secret, StringMap, Timestamp};

/// Request of `CreateSnapshot`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateSnapshotRequest {
    #[prost(string, tag = "1")]
    pub source_volume_id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub secrets: Vec<Secret>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: StringMap,
}

/// The snapshot, which may not be ready yet.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

/// A snapshot as its driver describes it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Snapshot {
    #[prost(int64, tag = "1")]
    pub size_bytes: i64,
    #[prost(string, tag = "2")]
    pub snapshot_id: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(message, optional, tag = "4")]
    pub creation_time: Option<Timestamp>,
    #[prost(bool, tag = "5")]
    pub ready_to_use: bool,
    #[prost(string, tag = "6")]
    pub group_snapshot_id: String,
}

/// Request of `DeleteSnapshot`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeleteSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
    #[prost(message, repeated, tag = "2")]
    pub secrets: Vec<Secret>,
}

/// Response of `DeleteSnapshot`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DeleteSnapshotResponse {}

/// Request of `ListSnapshots`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListSnapshotsRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(string, tag = "4")]
    pub snapshot_id: String,
    #[prost(message, repeated, tag = "5")]
    pub secrets: Vec<Secret>,
}

/// A page of snapshots.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListSnapshotsResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<SnapshotEntry>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

/// One snapshot of a list.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SnapshotEntry {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

/// Request of `GetSnapshot`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
    #[prost(message, repeated, tag = "2")]
    pub secrets: Vec<Secret>,
}

/// One snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}
