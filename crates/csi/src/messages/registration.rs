//! Messages of the kubelet's plugin registration (pluginregistration, API version v1).

/// The `kind` of a CSI driver in [`PluginInfo`].
pub const CSI_PLUGIN: &str = "CSIPlugin";
/// The `kind` of a device plugin in [`PluginInfo`].
pub const DEVICE_PLUGIN: &str = "DevicePlugin";

/// The `kind` of a DRA driver in [`PluginInfo`].
pub const DRA_PLUGIN: &str = "DRAPlugin";

/// Request of `GetInfo`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct InfoRequest {}

/// What a plugin is and where it serves.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// `CSIPlugin`, `DevicePlugin` or `DRAPlugin`; the protocol's `type`.
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// The socket of the plugin; the registration socket itself when empty.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// The outcome of the registration: request of `NotifyRegistrationStatus`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Response of `NotifyRegistrationStatus`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatusResponse {}
