//! The protobuf messages of CSI (csi.v1) and of the kubelet's plugin registration.
//!
//! Names and field numbers are the protocol's. Messages nested in others carry the outer name where their own would be
//! ambiguous. Left out are the services GroupController and SnapshotMetadata.

mod controller;
mod identity;
mod node;
mod registration;
mod secret;
mod snapshot;
mod volume;

pub use controller::*;
pub use identity::*;
pub use node::*;
pub use registration::*;
pub use secret::*;
pub use snapshot::*;
pub use volume::*;

/// Parameters, contexts and topology segments. Sorted, so that two of them compare and print alike.
pub type StringMap = std::collections::BTreeMap<String, String>;

/// An optional truth value.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// An optional signed number.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Int64Value {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

/// A point in time since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}
