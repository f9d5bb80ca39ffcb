//! The device plugin protocol (`v1beta1`) and the client of one plugin.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Request;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

pub const API_VERSION: &str = "v1beta1";
pub const HEALTHY: &str = "Healthy";
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Options {
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub preferred_allocation: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket in the plugin directory.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    #[prost(string, tag = "3")]
    pub resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<PluginDevice>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginDevice {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub health: String,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TopologyInfo {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<PreferredForContainer>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreferredForContainer {
    #[prost(string, repeated, tag = "1")]
    available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreferredResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<DeviceIds>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIds {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<DeviceIds>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Allocated>,
}

/// What a container needs to use its assigned devices.
#[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Allocated {
    #[prost(map = "string, string", tag = "1")]
    pub environment: HashMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<AllocatedMount>,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<AllocatedDevice>,
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<AllocatedName>,
}

#[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct AllocatedMount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

#[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct AllocatedDevice {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct AllocatedName {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A client of a registered plugin.
#[derive(Clone)]
pub struct Plugin {
    channel: Channel,
    socket: PathBuf,
    options: Options,
    /// Distinguishes two plugins that used the same socket one after the other.
    number: u64,
}

impl Plugin {
    pub fn new(socket: &Path, options: Options, number: u64) -> Self {
        let target = socket.to_path_buf();
        let channel = Endpoint::from_static("http://plugin.invalid").connect_with_connector_lazy(tower::service_fn(
            move |_: Uri| {
                let target = target.clone();
                async move { UnixStream::connect(target).await.map(TokioIo::new) }
            },
        ));
        Self { channel, socket: socket.to_path_buf(), options, number }
    }

    /// A client of the plugin at this socket, with the options that the plugin names.
    pub async fn connected(socket: &Path, number: u64) -> Result<Self, String> {
        let mut plugin = Self::new(socket, Options::default(), number);
        let options = plugin.call("/v1beta1.DevicePlugin/GetDevicePluginOptions", Empty {}).await;
        plugin.options = options.map_err(|status| {
            let code = status.code();
            format!("failed to get device plugin options: rpc error: code = {code:?} desc = {}", status.message())
        })?;
        Ok(plugin)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
    }

    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, tonic::Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let mut request = Request::new(request);
        request.set_timeout(CALL_TIMEOUT);
        let call = async {
            grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
        };
        // The deadline in the request ends with the head of the response. All pods of the node wait for an allocation.
        let response = tokio::time::timeout(CALL_TIMEOUT, call).await;
        response
            .unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("context deadline exceeded")))
            .map(tonic::Response::into_inner)
    }

    /// A stream of the plugin's devices, with a new list after each change.
    pub async fn watch(&self) -> Result<tonic::Streaming<DeviceList>, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static("/v1beta1.DevicePlugin/ListAndWatch");
        let codec = ProstCodec::<Empty, DeviceList>::default();
        Ok(grpc.server_streaming(Request::new(Empty {}), path, codec).await?.into_inner())
    }

    /// The available devices that the plugin prefers; none if it has no preference.
    pub async fn preferred(
        &self,
        available: &BTreeSet<String>,
        must_include: &BTreeSet<String>,
        count: usize,
    ) -> Result<Option<BTreeSet<String>>, tonic::Status> {
        if !self.options.preferred_allocation {
            return Ok(None);
        }
        let one = PreferredForContainer {
            available: available.iter().cloned().collect(),
            must_include: must_include.iter().cloned().collect(),
            size: i32::try_from(count).unwrap_or(i32::MAX),
        };
        let request = PreferredRequest { containers: vec![one] };
        let response: PreferredResponse = self.call("/v1beta1.DevicePlugin/GetPreferredAllocation", request).await?;
        Ok(response.containers.into_iter().next().map(|own| own.ids.into_iter().collect()))
    }

    pub async fn allocate(&self, ids: &BTreeSet<String>) -> Result<Allocated, tonic::Status> {
        let request = AllocateRequest { containers: vec![DeviceIds { ids: ids.iter().cloned().collect() }] };
        let response: AllocateResponse = self.call("/v1beta1.DevicePlugin/Allocate", request).await?;
        let first = response.containers.into_iter().next();
        first.ok_or_else(|| tonic::Status::internal("no containers return in allocation response"))
    }

    /// Notifies the plugin that a container with these devices is about to start, if it requires that.
    pub async fn before_start(&self, ids: &BTreeSet<String>) -> Result<(), tonic::Status> {
        if !self.options.pre_start_required {
            return Ok(());
        }
        let request = DeviceIds { ids: ids.iter().cloned().collect() };
        self.call::<_, Empty>("/v1beta1.DevicePlugin/PreStartContainer", request).await.map(drop)
    }
}
