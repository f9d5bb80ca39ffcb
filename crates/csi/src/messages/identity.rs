//! Messages of the Identity service.

use super::{BoolValue, StringMap};

/// Request of `GetPluginInfo`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct GetPluginInfoRequest {}

/// The driver's name and version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetPluginInfoResponse {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub manifest: StringMap,
}

/// Request of `GetPluginCapabilities`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct GetPluginCapabilitiesRequest {}

/// Which services and kinds of expansion the driver has.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetPluginCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

impl GetPluginCapabilitiesResponse {
    /// Whether the driver has this service.
    pub fn has_service(&self, service: PluginService) -> bool {
        self.capabilities.iter().any(|capability| {
            matches!(&capability.kind, Some(PluginCapabilityKind::Service(found)) if found.kind() == service)
        })
    }
}

/// One capability of a driver.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PluginCapability {
    #[prost(oneof = "PluginCapabilityKind", tags = "1, 2")]
    pub kind: Option<PluginCapabilityKind>,
}

impl PluginCapability {
    /// The capability of having a service.
    pub fn service(service: PluginService) -> Self {
        let kind = service as i32;
        Self { kind: Some(PluginCapabilityKind::Service(PluginCapabilityService { kind })) }
    }

    /// The capability of expanding volumes.
    pub fn expansion(expansion: PluginExpansion) -> Self {
        let kind = expansion as i32;
        Self { kind: Some(PluginCapabilityKind::VolumeExpansion(PluginCapabilityExpansion { kind })) }
    }
}

/// The kinds of plugin capability.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum PluginCapabilityKind {
    #[prost(message, tag = "1")]
    Service(PluginCapabilityService),
    #[prost(message, tag = "2")]
    VolumeExpansion(PluginCapabilityExpansion),
}

/// A service that the driver has.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PluginCapabilityService {
    #[prost(enumeration = "PluginService", tag = "1")]
    pub kind: i32,
}

/// Services beyond Identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum PluginService {
    Unknown = 0,
    Controller = 1,
    VolumeAccessibilityConstraints = 2,
    GroupController = 3,
    SnapshotMetadata = 4,
}

/// A way in which the driver expands volumes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PluginCapabilityExpansion {
    #[prost(enumeration = "PluginExpansion", tag = "1")]
    pub kind: i32,
}

/// Whether volumes expand while they are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum PluginExpansion {
    Unknown = 0,
    Online = 1,
    Offline = 2,
}

/// Request of `Probe`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProbeRequest {}

/// Whether the driver is ready; it is when the field is absent.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}
