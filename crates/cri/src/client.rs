//! One method a CRI call, over a channel that connects again by itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::containerd::NAMESPACE;
use crate::messages::*;

/// Calls that only read or change a record answer at once; what starts processes may take long on a busy machine.
const QUICK: Duration = Duration::from_secs(30);
const SLOW: Duration = Duration::from_secs(240);
/// Pulls end by their own progress, not by a clock of ours; this is a bound against a runtime that hangs for ever.
const PULL: Duration = Duration::from_secs(3600);
/// Large nodes list hundreds of images and containers in one answer.
const LARGEST_ANSWER: usize = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{method}: {}", status.message())]
    Refused { method: &'static str, status: Box<tonic::Status> },
    #[error("{method}: the runtime does not answer")]
    Unreachable { method: &'static str, source: tonic::transport::Error },
    #[error("{method}: the runtime left out {what}")]
    Incomplete { method: &'static str, what: &'static str },
    #[error("the runtime endpoint {0} is not a unix socket")]
    Endpoint(String),
}

impl CallError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::NotFound)
    }

    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::Unimplemented)
    }

    /// The call took longer than it was given.
    pub fn is_late(&self) -> bool {
        let late = |status: &tonic::Status| matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
        matches!(self, Self::Refused { status, .. } if late(status))
    }

    /// The runtime is away, or was started a moment ago and has not taken up yet what it knows.
    pub fn is_unavailable(&self) -> bool {
        // Of containerd, which gives that no code of its own.
        const STARTS: &str = "server is not initialized yet";
        match self {
            Self::Refused { status, .. } => status.code() == Code::Unavailable || status.message() == STARTS,
            Self::Unreachable { .. } => true,
            _ => false,
        }
    }

    /// What the runtime said, without the name of the call.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { status, .. } => status.message().to_string(),
            other => other.to_string(),
        }
    }

    /// Of a pull: the kind of failure is told where it says something.
    pub fn pull_text(&self) -> String {
        match self {
            Self::Refused { status, .. } if status.code() == Code::Unknown => self.message(),
            other => other.rpc_text(),
        }
    }

    /// The words of a gRPC client as users of the node know them from events.
    pub fn rpc_text(&self) -> String {
        match self {
            Self::Refused { status, .. } => {
                format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
            }
            other => other.to_string(),
        }
    }
}

type Result<T> = std::result::Result<T, CallError>;

/// A CRI runtime behind a unix socket. Clones share the connection.
#[derive(Clone)]
pub struct Runtime {
    channel: Channel,
    socket: PathBuf,
    observer: Option<Observer>,
}

/// Told of every call: its method, how long it took, and whether it succeeded.
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

    /// The same runtime, with somebody told of every call.
    #[must_use]
    pub fn observed(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

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
        let begun = Instant::now();
        let answer = self.send(method, path, request, limit).await;
        if let Some(observer) = &self.observer {
            observer(method, begun.elapsed(), answer.is_ok());
        }
        answer
    }

    async fn send<Q, A>(&self, method: &'static str, path: &'static str, request: Q, limit: Duration) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        grpc.ready().await.map_err(|source| CallError::Unreachable { method, source })?;
        let mut request = Request::new(request);
        request.set_timeout(limit);
        let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        match answer.await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(CallError::Refused { method, status: Box::new(status) }),
        }
    }

    /// Calls containerd itself, which can more than CRI asks for. Other runtimes call that unimplemented.
    pub(crate) async fn ask_containerd<Q, A>(&self, method: &'static str, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|source| CallError::Unreachable { method, source })?;
        let mut request = Request::new(request);
        request.set_timeout(QUICK);
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
        let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| CallError::Refused { method, status: Box::new(status) })
    }

    pub async fn version(&self) -> Result<VersionResponse> {
        let request = VersionRequest { version: "0.1.0".into() };
        self.call("Version", "/runtime.v1.RuntimeService/Version", request, QUICK).await
    }

    pub async fn status(&self, verbose: bool) -> Result<StatusResponse> {
        self.call("Status", "/runtime.v1.RuntimeService/Status", StatusRequest { verbose }, QUICK).await
    }

    /// Which cgroup driver the runtime uses; runtimes before CRI 1.28 don't tell.
    pub async fn runtime_config(&self) -> Result<RuntimeConfigResponse> {
        self.call("RuntimeConfig", "/runtime.v1.RuntimeService/RuntimeConfig", Empty {}, QUICK).await
    }

    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(NetworkConfig { pod_cidr: pod_cidr.to_string() });
        let request = UpdateRuntimeConfigRequest { runtime_config: Some(RuntimeConfig { network_config }) };
        let path = "/runtime.v1.RuntimeService/UpdateRuntimeConfig";
        self.call::<_, Empty>("UpdateRuntimeConfig", path, request, QUICK).await.map(drop)
    }

    pub async fn run_pod_sandbox(&self, config: PodSandboxConfig, runtime_handler: &str) -> Result<String> {
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: runtime_handler.to_string() };
        let path = "/runtime.v1.RuntimeService/RunPodSandbox";
        let answer: RunPodSandboxResponse = self.call("RunPodSandbox", path, request, SLOW).await?;
        named("RunPodSandbox", "the sandbox id", answer.pod_sandbox_id)
    }

    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = PodSandboxIdRequest { pod_sandbox_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/StopPodSandbox";
        self.call::<_, Empty>("StopPodSandbox", path, request, SLOW).await.map(drop)
    }

    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = PodSandboxIdRequest { pod_sandbox_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/RemovePodSandbox";
        self.call::<_, Empty>("RemovePodSandbox", path, request, SLOW).await.map(drop)
    }

    pub async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<PodSandboxStatusResponse> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose };
        self.call("PodSandboxStatus", "/runtime.v1.RuntimeService/PodSandboxStatus", request, QUICK).await
    }

    pub async fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListPodSandbox";
        let answer: ListPodSandboxResponse = self.call("ListPodSandbox", path, request, QUICK).await?;
        Ok(answer.items)
    }

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
        let answer: CreateContainerResponse = self.call("CreateContainer", path, request, SLOW).await?;
        named("CreateContainer", "the container id", answer.container_id)
    }

    pub async fn start_container(&self, id: &str) -> Result<()> {
        let request = ContainerIdRequest { container_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/StartContainer";
        self.call::<_, Empty>("StartContainer", path, request, SLOW).await.map(drop)
    }

    /// Sends the stop signal, and the kill signal when the grace is over; answers when the container has ended.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.to_string(), timeout };
        let limit = grace.saturating_add(SLOW);
        let path = "/runtime.v1.RuntimeService/StopContainer";
        self.call::<_, Empty>("StopContainer", path, request, limit).await.map(drop)
    }

    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = ContainerIdRequest { container_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/RemoveContainer";
        self.call::<_, Empty>("RemoveContainer", path, request, SLOW).await.map(drop)
    }

    pub async fn list_containers(&self, filter: ContainerFilter) -> Result<Vec<Container>> {
        let request = ListContainersRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListContainers";
        let answer: ListContainersResponse = self.call("ListContainers", path, request, QUICK).await?;
        Ok(answer.containers)
    }

    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let request = ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let path = "/runtime.v1.RuntimeService/ContainerStatus";
        let answer: ContainerStatusResponse = self.call("ContainerStatus", path, request, QUICK).await?;
        answer.status.ok_or(CallError::Incomplete { method: "ContainerStatus", what: "the status" })
    }

    /// The status with what the runtime adds beyond the protocol (containerd: the process id among others).
    pub async fn container_details(&self, id: &str) -> Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest { container_id: id.to_string(), verbose: true };
        self.call("ContainerStatus", "/runtime.v1.RuntimeService/ContainerStatus", request, QUICK).await
    }

    pub async fn update_container_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let request = UpdateContainerResourcesRequest { container_id: id.to_string(), linux: Some(resources) };
        let path = "/runtime.v1.RuntimeService/UpdateContainerResources";
        self.call::<_, Empty>("UpdateContainerResources", path, request, QUICK).await.map(drop)
    }

    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = ContainerIdRequest { container_id: id.to_string() };
        let path = "/runtime.v1.RuntimeService/ReopenContainerLog";
        self.call::<_, Empty>("ReopenContainerLog", path, request, QUICK).await.map(drop)
    }

    /// Runs a command to its end; without a limit it may run as long as it likes.
    pub async fn exec_sync(&self, id: &str, command: Vec<String>, limit: Option<Duration>) -> Result<ExecSyncResponse> {
        let seconds = limit.map_or(0, |limit| i64::try_from(limit.as_secs().max(1)).unwrap_or(i64::MAX));
        let request = ExecSyncRequest { container_id: id.to_string(), cmd: command, timeout: seconds };
        let bound = limit.map_or(PULL, |limit| limit.saturating_add(QUICK));
        self.call("ExecSync", "/runtime.v1.RuntimeService/ExecSync", request, bound).await
    }

    pub async fn exec(&self, request: ExecRequest) -> Result<String> {
        let answer: StreamingUrl = self.call("Exec", "/runtime.v1.RuntimeService/Exec", request, QUICK).await?;
        named("Exec", "the streaming address", answer.url)
    }

    pub async fn attach(&self, request: AttachRequest) -> Result<String> {
        let answer: StreamingUrl = self.call("Attach", "/runtime.v1.RuntimeService/Attach", request, QUICK).await?;
        named("Attach", "the streaming address", answer.url)
    }

    pub async fn port_forward(&self, sandbox_id: &str, ports: Vec<i32>) -> Result<String> {
        let request = PortForwardRequest { pod_sandbox_id: sandbox_id.to_string(), port: ports };
        let path = "/runtime.v1.RuntimeService/PortForward";
        let answer: StreamingUrl = self.call("PortForward", path, request, QUICK).await?;
        named("PortForward", "the streaming address", answer.url)
    }

    pub async fn list_container_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        let request = ListContainerStatsRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListContainerStats";
        let answer: ListContainerStatsResponse = self.call("ListContainerStats", path, request, QUICK).await?;
        Ok(answer.stats)
    }

    pub async fn list_images(&self) -> Result<Vec<Image>> {
        let path = "/runtime.v1.ImageService/ListImages";
        let request = ListImagesRequest { filter: None };
        let answer: ListImagesResponse = self.call("ListImages", path, request, QUICK).await?;
        Ok(answer.images)
    }

    /// The stored image of this name, or none when it must be pulled.
    pub async fn image_status(&self, image: &str) -> Result<Option<Image>> {
        let request = ImageStatusRequest { image: Some(image_spec(image)), verbose: false };
        let path = "/runtime.v1.ImageService/ImageStatus";
        let answer: ImageStatusResponse = self.call("ImageStatus", path, request, QUICK).await?;
        Ok(answer.image)
    }

    pub async fn pull_image(&self, image: &str, auth: Option<AuthConfig>, sandbox: PodSandboxConfig) -> Result<String> {
        let request = PullImageRequest { image: Some(image_spec(image)), auth, sandbox_config: Some(sandbox) };
        let path = "/runtime.v1.ImageService/PullImage";
        let answer: PullImageResponse = self.call("PullImage", path, request, PULL).await?;
        Ok(answer.image_ref)
    }

    pub async fn remove_image(&self, image: &str) -> Result<()> {
        let request = RemoveImageRequest { image: Some(image_spec(image)) };
        let path = "/runtime.v1.ImageService/RemoveImage";
        self.call::<_, Empty>("RemoveImage", path, request, SLOW).await.map(drop)
    }

    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        self.call("ImageFsInfo", "/runtime.v1.ImageService/ImageFsInfo", Empty {}, QUICK).await
    }
}

fn image_spec(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_string(), user_specified_image: image.to_string(), ..Default::default() }
}

fn named(method: &'static str, what: &'static str, value: String) -> Result<String> {
    if value.is_empty() { Err(CallError::Incomplete { method, what }) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_away_or_just_starts_is_unavailable() {
        for (code, message, expected) in [
            (Code::Unavailable, "Connection refused (os error 111)", true),
            (Code::Unknown, "server is not initialized yet", true),
            (Code::Unknown, "failed to reserve sandbox name", false),
            (Code::NotFound, "not found", false),
        ] {
            let status = Box::new(tonic::Status::new(code, message));
            let error = CallError::Refused { method: "Status", status };
            assert_eq!(error.is_unavailable(), expected, "{message}");
        }
    }
}
