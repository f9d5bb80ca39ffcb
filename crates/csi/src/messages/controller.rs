//! Messages of the Controller service, except those about snapshots.

use super::{
    CapacityRange, Int64Value, Secret, StringMap, Topology, TopologyRequirement, Volume, VolumeCapability,
    VolumeCondition, VolumeContentSource,
};

/// Request of `CreateVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: StringMap,
    #[prost(message, repeated, tag = "5")]
    pub secrets: Vec<Secret>,
    #[prost(message, optional, tag = "6")]
    pub volume_content_source: Option<VolumeContentSource>,
    #[prost(message, optional, tag = "7")]
    pub accessibility_requirements: Option<TopologyRequirement>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub mutable_parameters: StringMap,
}

/// The created volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

/// Request of `DeleteVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeleteVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(message, repeated, tag = "2")]
    pub secrets: Vec<Secret>,
}

/// Response of `DeleteVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DeleteVolumeResponse {}

/// Request of `ControllerPublishVolume`: attach a volume to a node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerPublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub node_id: String,
    #[prost(message, optional, tag = "3")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "4")]
    pub readonly: bool,
    #[prost(message, repeated, tag = "5")]
    pub secrets: Vec<Secret>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: StringMap,
}

/// What the node needs to know of an attached volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerPublishVolumeResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub publish_context: StringMap,
}

/// Request of `ControllerUnpublishVolume`; without a node ID the volume is detached from all nodes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub node_id: String,
    #[prost(message, repeated, tag = "3")]
    pub secrets: Vec<Secret>,
}

/// Response of `ControllerUnpublishVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerUnpublishVolumeResponse {}

/// Request of `ValidateVolumeCapabilities`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ValidateVolumeCapabilitiesRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub volume_context: StringMap,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: StringMap,
    #[prost(message, repeated, tag = "5")]
    pub secrets: Vec<Secret>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub mutable_parameters: StringMap,
}

/// What the driver confirms; nothing when a capability is not supported.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ValidateVolumeCapabilitiesResponse {
    #[prost(message, optional, tag = "1")]
    pub confirmed: Option<ConfirmedCapabilities>,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The confirmed part of a validation.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ConfirmedCapabilities {
    #[prost(btree_map = "string, string", tag = "1")]
    pub volume_context: StringMap,
    #[prost(message, repeated, tag = "2")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: StringMap,
    #[prost(btree_map = "string, string", tag = "4")]
    pub mutable_parameters: StringMap,
}

/// Request of `ListVolumes`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListVolumesRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
}

/// A page of volumes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListVolumesResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<VolumeEntry>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

/// One volume of a list.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeEntry {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<VolumeStatus>,
}

/// Where a volume is attached, and its health.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeStatus {
    #[prost(string, repeated, tag = "1")]
    pub published_node_ids: Vec<String>,
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

/// Request of `ControllerGetVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerGetVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

/// One volume and its status.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerGetVolumeResponse {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<VolumeStatus>,
}

/// Request of `ControllerModifyVolume`: the parameters of a VolumeAttributesClass.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerModifyVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(message, repeated, tag = "2")]
    pub secrets: Vec<Secret>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub mutable_parameters: StringMap,
}

/// Response of `ControllerModifyVolume`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerModifyVolumeResponse {}

/// Request of `GetCapacity`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetCapacityRequest {
    #[prost(message, repeated, tag = "1")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub parameters: StringMap,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

/// The capacity for new volumes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct GetCapacityResponse {
    #[prost(int64, tag = "1")]
    pub available_capacity: i64,
    #[prost(message, optional, tag = "2")]
    pub maximum_volume_size: Option<Int64Value>,
    #[prost(message, optional, tag = "3")]
    pub minimum_volume_size: Option<Int64Value>,
}

/// Request of `ControllerGetCapabilities`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerGetCapabilitiesRequest {}

/// What the Controller service can do.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<ControllerServiceCapability>,
}

impl ControllerGetCapabilitiesResponse {
    /// A response with these capabilities.
    pub fn of(capabilities: &[ControllerCapability]) -> Self {
        let wrap = |&capability: &ControllerCapability| ControllerServiceCapability {
            rpc: Some(ControllerRpc { kind: capability as i32 }),
        };
        Self { capabilities: capabilities.iter().map(wrap).collect() }
    }

    /// Whether the service has this capability.
    pub fn has(&self, capability: ControllerCapability) -> bool {
        self.capabilities.iter().any(|found| found.rpc.is_some_and(|rpc| rpc.kind() == capability))
    }
}

/// One capability of the Controller service. Its `oneof` has one member, which is on the wire an optional message.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<ControllerRpc>,
}

/// A capability that stands for calls.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerRpc {
    #[prost(enumeration = "ControllerCapability", tag = "1")]
    pub kind: i32,
}

/// The capabilities of the Controller service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ControllerCapability {
    Unknown = 0,
    CreateDeleteVolume = 1,
    PublishUnpublishVolume = 2,
    ListVolumes = 3,
    GetCapacity = 4,
    CreateDeleteSnapshot = 5,
    ListSnapshots = 6,
    CloneVolume = 7,
    PublishReadonly = 8,
    ExpandVolume = 9,
    ListVolumesPublishedNodes = 10,
    VolumeCondition = 11,
    GetVolume = 12,
    SingleNodeMultiWriter = 13,
    ModifyVolume = 14,
    GetSnapshot = 15,
}

/// Request of `ControllerExpandVolume`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControllerExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub secrets: Vec<Secret>,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
}

/// The new size, and whether the node has to do its part.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ControllerExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    pub node_expansion_required: bool,
}
