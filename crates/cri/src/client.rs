//! The CRI client: one method per call, over a channel that reconnects automatically.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use crate::CONTAINERD_NAMESPACE;
use crate::error::CallError;
use crate::exec_output;
use crate::messages::*;
use crate::privileges::{Privileges, forget_usage};

/// The timeout of calls that only read or change a record; starting processes may take long on a busy node.
const SHORT_TIMEOUT: Duration = Duration::from_secs(30);
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
/// The runtime supervises the progress of pulls itself; this only guards against a runtime that hangs.
const PULL_TIMEOUT: Duration = Duration::from_secs(3600);
/// How much later than its head the rest of a response may be.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Large nodes list hundreds of images and containers in one response.
const MAX_RESPONSE_BYTES: usize = 32 << 20;

type Result<T> = std::result::Result<T, CallError>;

/// A CRI runtime behind a unix socket. Clones share the connection.
#[derive(Clone)]
pub struct Runtime {
    channel: Channel,
    socket: PathBuf,
    observer: Option<Observer>,
}

/// Called after every CRI call with its method, its duration, and whether it succeeded.
pub type Observer = Arc<dyn Fn(&'static str, Duration, bool) + Send + Sync>;

impl Runtime {
    /// `endpoint` is a path or a `unix://` address. Nothing is sent until the first call.
    pub fn connect(endpoint: &str) -> Result<Self> {
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        if !path.starts_with('/') {
            return Err(CallError::Endpoint(endpoint.to_string()));
        }
        let socket = PathBuf::from(path);
        let target = socket.clone();
        let channel = Endpoint::from_static("http://runtime.invalid").connect_with_connector_lazy(tower::service_fn(
            move |_: Uri| {
                let target = target.clone();
                async move { UnixStream::connect(target).await.map(TokioIo::new) }
            },
        ));
        Ok(Self { channel, socket, observer: None })
    }

    /// The same runtime, with an observer of every call.
    #[must_use]
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The unix socket of the runtime.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    async fn call<Q, A>(&self, method: &'static str, path: &'static str, request: Q, limit: Duration) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let started = Instant::now();
        let response = self.send(method, path, request, limit).await;
        if let Some(observer) = &self.observer {
            observer(method, started.elapsed(), response.is_ok());
        }
        response
    }

    async fn send<Q, A>(&self, method: &'static str, path: &'static str, request: Q, limit: Duration) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES);
        let mut request = Request::new(request);
        request.set_timeout(limit);
        let call = async {
            grpc.ready().await.map_err(|source| CallError::Unreachable { method, source })?;
            let response = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await;
            response
                .map(tonic::Response::into_inner)
                .map_err(|status| CallError::Refused { method, status: Box::new(status) })
        };
        // The deadline in the request ends with the head of the response, after which a runtime may hang, too.
        tokio::time::timeout(limit.saturating_add(BODY_TIMEOUT), call).await.unwrap_or_else(|_| {
            let status = Box::new(tonic::Status::deadline_exceeded("the runtime did not respond in time"));
            Err(CallError::Refused { method, status })
        })
    }

    /// Calls a service of containerd beyond CRI. Other runtimes respond `Unimplemented`.
    pub(crate) async fn call_containerd<Q, A>(&self, method: &'static str, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|source| CallError::Unreachable { method, source })?;
        let mut request = Request::new(request);
        request.set_timeout(SHORT_TIMEOUT);
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(CONTAINERD_NAMESPACE));
        let response = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await;
        response
            .map(tonic::Response::into_inner)
            .map_err(|status| CallError::Refused { method, status: Box::new(status) })
    }

    /// The runtime's name and versions.
    pub async fn version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: "0.1.0".into() };
        self.call("Version", "/runtime.v1.RuntimeService/Version", request, SHORT_TIMEOUT).await
    }

    /// The runtime's conditions, handlers and features.
    pub async fn status(&self, verbose: bool) -> Result<StatusResponse> {
        self.call("Status", "/runtime.v1.RuntimeService/Status", StatusRequest { verbose }, SHORT_TIMEOUT).await
    }

    /// Which cgroup driver the runtime uses; runtimes before CRI 1.28 do not report it.
    pub async fn runtime_config(&self) -> Result<RuntimeConfigResponse> {
        self.call("RuntimeConfig", "/runtime.v1.RuntimeService/RuntimeConfig", Empty {}, SHORT_TIMEOUT).await
    }

    /// Passes the node's pod CIDR to the runtime.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(NetworkConfig { pod_cidr: pod_cidr.to_string() });
        let request = UpdateRuntimeConfigRequest { runtime_config: Some(RuntimeConfig { network_config }) };
        let path = "/runtime.v1.RuntimeService/UpdateRuntimeConfig";
        self.call::<_, Empty>("UpdateRuntimeConfig", path, request, SHORT_TIMEOUT).await.map(drop)
    }

    /// Creates and starts a sandbox; returns its ID.
    pub async fn run_pod_sandbox(&self, config: PodSandboxConfig, runtime_handler: &str) -> Result<String> {
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: runtime_handler.to_string() };
        let path = "/runtime.v1.RuntimeService/RunPodSandbox";
        let response: RunPodSandboxResponse = self.call("RunPodSandbox", path, request, LONG_TIMEOUT).await?;
        non_empty("RunPodSandbox", "the sandbox id", response.pod_sandbox_id)
    }

    /// Stops a sandbox with its containers, and tears down its network.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = PodSandboxIdRequest { pod_sandbox_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/StopPodSandbox";
        self.call::<_, Empty>("StopPodSandbox", path, request, LONG_TIMEOUT).await.map(drop)
    }

    /// Removes a stopped sandbox with its containers.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = PodSandboxIdRequest { pod_sandbox_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/RemovePodSandbox";
        self.call::<_, Empty>("RemovePodSandbox", path, request, LONG_TIMEOUT).await.map(drop)
    }

    /// The status of a sandbox.
    pub async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<PodSandboxStatusResponse> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose };
        self.call("PodSandboxStatus", "/runtime.v1.RuntimeService/PodSandboxStatus", request, SHORT_TIMEOUT).await
    }

    /// Lists sandboxes.
    pub async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListPodSandbox";
        let response: ListPodSandboxResponse = self.call("ListPodSandbox", path, request, SHORT_TIMEOUT).await?;
        Ok(response.items)
    }

    /// Creates a container in a sandbox; returns its ID.
    pub async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let path = "/runtime.v1.RuntimeService/CreateContainer";
        let response: CreateContainerResponse = self.call("CreateContainer", path, request, LONG_TIMEOUT).await?;
        non_empty("CreateContainer", "the container id", response.container_id)
    }

    /// Writes a checkpoint of a running container to an archive.
    pub async fn checkpoint_container(&self, request: CheckpointContainerRequest) -> Result<()> {
        let limit = u64::try_from(request.timeout)
            .map_or(LONG_TIMEOUT, |seconds| LONG_TIMEOUT.max(Duration::from_secs(seconds)));
        let path = "/runtime.v1.RuntimeService/CheckpointContainer";
        self.call::<_, Empty>("CheckpointContainer", path, request, limit).await.map(drop)
    }

    /// Starts a created container.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let request = ContainerIdRequest { container_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/StartContainer";
        self.call::<_, Empty>("StartContainer", path, request, LONG_TIMEOUT).await.map(drop)
    }

    /// Sends the stop signal, and the kill signal after the grace period; returns when the container has exited.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.to_string(), timeout };
        let limit = grace.saturating_add(LONG_TIMEOUT);
        let path = "/runtime.v1.RuntimeService/StopContainer";
        self.call::<_, Empty>("StopContainer", path, request, limit).await.map(drop)
    }

    /// Removes a container.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = ContainerIdRequest { container_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/RemoveContainer";
        self.call::<_, Empty>("RemoveContainer", path, request, LONG_TIMEOUT).await.map(drop)
    }

    /// Lists containers.
    pub async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>> {
        let request = ListContainersRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListContainers";
        let response: ListContainersResponse = self.call("ListContainers", path, request, SHORT_TIMEOUT).await?;
        Ok(response.containers)
    }

    /// The status of a container.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let request = ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let path = "/runtime.v1.RuntimeService/ContainerStatus";
        let response: ContainerStatusResponse = self.call("ContainerStatus", path, request, SHORT_TIMEOUT).await?;
        response.status.ok_or(CallError::Incomplete { method: "ContainerStatus", field: "the status" })
    }

    /// The status with the runtime's own information (for containerd, the process ID among others).
    pub async fn container_details(&self, id: &str) -> Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest { container_id: id.to_string(), verbose: true };
        self.call("ContainerStatus", "/runtime.v1.RuntimeService/ContainerStatus", request, SHORT_TIMEOUT).await
    }

    /// Changes the resources of a running container.
    pub async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let request = UpdateContainerResourcesRequest { container_id: id.to_string(), linux: Some(resources) };
        let path = "/runtime.v1.RuntimeService/UpdateContainerResources";
        self.call::<_, Empty>("UpdateContainerResources", path, request, SHORT_TIMEOUT).await.map(drop)
    }

    /// Makes the runtime reopen a container's log file after rotation.
    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = ContainerIdRequest { container_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/ReopenContainerLog";
        self.call::<_, Empty>("ReopenContainerLog", path, request, SHORT_TIMEOUT).await.map(drop)
    }

    /// Runs a command in a container to completion, with an optional time limit. Of each output, the first `keep` bytes are
    /// returned.
    pub async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        limit: Option<Duration>,
        keep: usize,
    ) -> Result<ExecSyncResponse> {
        let seconds = limit.map_or(0, |limit| i64::try_from(limit.as_secs().max(1)).unwrap_or(i64::MAX));
        let request = ExecSyncRequest { container_id: id.to_string(), cmd: command, timeout: seconds };
        let bound = limit.map_or(PULL_TIMEOUT, |limit| limit.saturating_add(SHORT_TIMEOUT));
        let started = Instant::now();
        let response = exec_output::run(self.channel.clone(), &request, keep, bound).await;
        if let Some(observer) = &self.observer {
            observer("ExecSync", started.elapsed(), response.is_ok());
        }
        response.map_err(|status| CallError::Refused { method: "ExecSync", status: Box::new(status) })
    }

    /// Prepares a streaming exec; returns the URL of its stream.
    pub async fn exec(&self, request: ExecRequest) -> Result<String> {
        let response: StreamingUrl =
            self.call("Exec", "/runtime.v1.RuntimeService/Exec", request, SHORT_TIMEOUT).await?;
        non_empty("Exec", "the streaming address", response.url)
    }

    /// Prepares a streaming attach; returns the URL of its stream.
    pub async fn attach(&self, request: AttachRequest) -> Result<String> {
        let response: StreamingUrl =
            self.call("Attach", "/runtime.v1.RuntimeService/Attach", request, SHORT_TIMEOUT).await?;
        non_empty("Attach", "the streaming address", response.url)
    }

    /// Prepares a port forward; returns the URL of its stream.
    pub async fn port_forward(&self, sandbox_id: &str, ports: Vec<i32>) -> Result<String> {
        let request = PortForwardRequest { pod_sandbox_id: sandbox_id.to_string(), port: ports };
        let path = "/runtime.v1.RuntimeService/PortForward";
        let response: StreamingUrl = self.call("PortForward", path, request, SHORT_TIMEOUT).await?;
        non_empty("PortForward", "the streaming address", response.url)
    }

    /// The resource usage of containers.
    pub async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        let request = ListContainerStatsRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListContainerStats";
        let mut response: ListContainerStatsResponse =
            self.call("ListContainerStats", path, request, SHORT_TIMEOUT).await?;
        if !Privileges::read().cgroups {
            forget_usage(&mut response.stats);
        }
        Ok(response.stats)
    }

    /// Lists the stored images.
    pub async fn list_images(&self) -> Result<Vec<Image>> {
        let path = "/runtime.v1.ImageService/ListImages";
        let request = ListImagesRequest { filter: None };
        let response: ListImagesResponse = self.call("ListImages", path, request, SHORT_TIMEOUT).await?;
        Ok(response.images)
    }

    /// The stored image of this name; `None` when it must be pulled.
    pub async fn image_status(&self, image: &str) -> Result<Option<Image>> {
        let request = ImageStatusRequest { image: Some(image_spec(image)), verbose: false };
        let path = "/runtime.v1.ImageService/ImageStatus";
        let response: ImageStatusResponse = self.call("ImageStatus", path, request, SHORT_TIMEOUT).await?;
        Ok(response.image)
    }

    /// Pulls an image; returns its reference in the runtime.
    pub async fn pull_image(&self, image: &str, auth: Option<AuthConfig>, sandbox: PodSandboxConfig) -> Result<String> {
        let request = PullImageRequest { image: Some(image_spec(image)), auth, sandbox_config: Some(sandbox) };
        let path = "/runtime.v1.ImageService/PullImage";
        let response: PullImageResponse = self.call("PullImage", path, request, PULL_TIMEOUT).await?;
        Ok(response.image_ref)
    }

    /// Removes an image.
    pub async fn remove_image(&self, image: &str) -> Result<()> {
        let request = RemoveImageRequest { image: Some(image_spec(image)) };
        let path = "/runtime.v1.ImageService/RemoveImage";
        self.call::<_, Empty>("RemoveImage", path, request, LONG_TIMEOUT).await.map(drop)
    }

    /// The disk usage of images and containers.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        self.call("ImageFsInfo", "/runtime.v1.ImageService/ImageFsInfo", Empty {}, SHORT_TIMEOUT).await
    }
}

fn image_spec(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_string(), user_specified_image: image.to_string(), ..Default::default() }
}

fn non_empty(method: &'static str, field: &'static str, value: String) -> Result<String> {
    if value.is_empty() { Err(CallError::Incomplete { method, field }) } else { Ok(value) }
}
