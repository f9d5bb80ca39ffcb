//! Messages of the Node service.

use std::fmt;

use super::secret::Keys;
use super::{CapacityRange, Secret, StringMap, Topology, VolumeCapability, VolumeCondition};

/// Request of `NodeStageVolume`: prepare a volume once for all pods of the node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct NodeStageVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: StringMap,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(message, repeated, tag = "5")]
    pub secrets: Vec<Secret>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: StringMap,
}

impl fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &Keys(&self.publish_context))
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &self.secrets)
            .field("volume_context", &Keys(&self.volume_context))
            .finish()
    }
}

/// Response of `NodeStageVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeStageVolumeResponse {}

/// Request of `NodeUnstageVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnstageVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// Response of `NodeUnstageVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeUnstageVolumeResponse {}

/// Request of `NodePublishVolume`: make a volume available to one pod.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct NodePublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: StringMap,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(message, repeated, tag = "7")]
    pub secrets: Vec<Secret>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: StringMap,
}

impl fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &Keys(&self.publish_context))
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &self.secrets)
            .field("volume_context", &Keys(&self.volume_context))
            .finish()
    }
}

/// Response of `NodePublishVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodePublishVolumeResponse {}

/// Request of `NodeUnpublishVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

/// Response of `NodeUnpublishVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeUnpublishVolumeResponse {}

/// Request of `NodeGetVolumeStats`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetVolumeStatsRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

/// The usage and health of a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetVolumeStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

/// The usage of a volume in one unit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    #[prost(enumeration = "UsageUnit", tag = "4")]
    pub unit: i32,
}

/// The units of usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum UsageUnit {
    Unknown = 0,
    Bytes = 1,
    Inodes = 2,
}

/// Request of `NodeGetCapabilities`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeGetCapabilitiesRequest {}

/// What the Node service can do.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeServiceCapability>,
}

impl NodeGetCapabilitiesResponse {
    /// A response with these capabilities.
    pub fn of(capabilities: &[NodeCapability]) -> Self {
        let wrap =
            |&capability: &NodeCapability| NodeServiceCapability { rpc: Some(NodeRpc { kind: capability as i32 }) };
        Self { capabilities: capabilities.iter().map(wrap).collect() }
    }

    /// Whether the service has this capability.
    pub fn has(&self, capability: NodeCapability) -> bool {
        self.capabilities.iter().any(|found| found.rpc.is_some_and(|rpc| rpc.kind() == capability))
    }
}

/// One capability of the Node service. Its `oneof` has one member, which is on the wire an optional message.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<NodeRpc>,
}

/// A capability that stands for calls.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeRpc {
    #[prost(enumeration = "NodeCapability", tag = "1")]
    pub kind: i32,
}

/// The capabilities of the Node service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum NodeCapability {
    Unknown = 0,
    StageUnstageVolume = 1,
    GetVolumeStats = 2,
    ExpandVolume = 3,
    VolumeCondition = 4,
    SingleNodeMultiWriter = 5,
    VolumeMountGroup = 6,
}

/// Request of `NodeGetInfo`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeGetInfoRequest {}

/// The node as the driver knows it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeGetInfoResponse {
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// Zero means no limit.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

/// Request of `NodeExpandVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(message, repeated, tag = "6")]
    pub secrets: Vec<Secret>,
}

/// The new size.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NodeExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}
