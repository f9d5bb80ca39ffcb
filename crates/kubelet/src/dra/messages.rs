//! Messages of DRA drivers (`k8s.io.kubelet.pkg.apis.dra`, API versions v1 and v1beta1, which have the same fields).

use std::collections::HashMap;

/// The request for reports of health (`v1alpha1.DRAResourceHealth`).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct WatchRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// 1 is healthy, 2 is not.
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

/// The request of both calls.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    /// By the claim's UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// All requests if it is empty.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    /// By the claim's UID.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub error: String,
}
