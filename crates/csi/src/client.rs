//! The client: one method per call, over a channel that reconnects when the driver restarts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Request;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use crate::error::CallError;

/// The kubelet's own timeout of CSI calls.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Drivers list thousands of volumes in one page.
const MAX_RESPONSE_BYTES: usize = 32 << 20;

pub(crate) type Result<T> = std::result::Result<T, CallError>;

/// Called after every call with its method, its duration, and the error if it failed.
pub type Observer = Arc<dyn Fn(&'static str, Duration, Option<&CallError>) + Send + Sync>;

/// A CSI driver, or the registration of a plugin, behind a unix socket. Clones share the connection.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    socket: PathBuf,
    timeout: Duration,
    observer: Option<Observer>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("socket", &self.socket).field("timeout", &self.timeout).finish()
    }
}

impl Client {
    /// `endpoint` is a path or a `unix:` address. Nothing is sent until the first call; must be called in a runtime.
    pub fn connect(endpoint: &str) -> Result<Self> {
        let socket = socket_path(endpoint)?;
        let target = socket.clone();
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let target = target.clone();
                async move { UnixStream::connect(target).await.map(TokioIo::new) }
            }));
        Ok(Self { channel, socket, timeout: DEFAULT_TIMEOUT, observer: None })
    }

    /// The same driver, with another timeout for every call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same driver, with an observer of every call.
    #[must_use]
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The unix socket of the driver.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a call of any service on this socket.
    pub async fn call<Q, A>(&self, method: &'static str, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + std::fmt::Debug + 'static,
        A: prost::Message + Default + 'static,
    {
        tracing::debug!(socket = %self.socket.display(), method, ?request, "CSI call");
        let started = Instant::now();
        // The deadline in the request stops the driver; this one also covers connecting and a driver that ignores it.
        let limit = self.timeout;
        let response = tokio::time::timeout(limit, self.send(method, path, request))
            .await
            .unwrap_or(Err(CallError::Timeout { method, limit }));
        let elapsed = started.elapsed();
        if let Err(error) = &response {
            tracing::debug!(socket = %self.socket.display(), method, ?elapsed, %error, "CSI call failed");
        }
        if let Some(observer) = &self.observer {
            observer(method, elapsed, response.as_ref().err());
        }
        response
    }

    /// Starts a call whose responses are a stream. Only its start has a timeout.
    pub async fn watch<Q, A>(&self, method: &'static str, path: &'static str, request: Q) -> Result<Stream<A>>
    where
        Q: prost::Message + std::fmt::Debug + 'static,
        A: prost::Message + Default + 'static,
    {
        let limit = self.timeout;
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES);
        let started = async {
            grpc.ready().await.map_err(|source| CallError::Unreachable { method, source })?;
            let codec = ProstCodec::<Q, A>::default();
            let responses = grpc.server_streaming(Request::new(request), PathAndQuery::from_static(path), codec).await;
            responses.map_err(|status| CallError::of(method, limit, status))
        };
        let responses =
            tokio::time::timeout(limit, started).await.unwrap_or(Err(CallError::Timeout { method, limit }))?;
        Ok(Stream { method, limit, responses: responses.into_inner() })
    }

    async fn send<Q, A>(&self, method: &'static str, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + std::fmt::Debug + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES);
        grpc.ready().await.map_err(|source| CallError::Unreachable { method, source })?;
        let mut request = Request::new(request);
        request.set_timeout(self.timeout);
        let response = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        match response.await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(CallError::of(method, self.timeout, status)),
        }
    }
}

/// The responses of a call.
pub struct Stream<A> {
    method: &'static str,
    limit: Duration,
    responses: tonic::Streaming<A>,
}

impl<A> Stream<A> {
    /// The next response; none at the end.
    pub async fn next(&mut self) -> Result<Option<A>> {
        self.responses.message().await.map_err(|status| CallError::of(self.method, self.limit, status))
    }
}

/// The path in `unix:///path`, `unix:/path` or `/path`.
pub fn socket_path(endpoint: &str) -> std::result::Result<PathBuf, CallError> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if path.starts_with('/') { Ok(PathBuf::from(path)) } else { Err(CallError::Endpoint(endpoint.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for (endpoint, expected) in [
            ("unix:///csi/csi.sock", Some("/csi/csi.sock")),
            ("unix:/csi/csi.sock", Some("/csi/csi.sock")),
            ("/csi/csi.sock", Some("/csi/csi.sock")),
            ("csi.sock", None),
            ("tcp://127.0.0.1:10000", None),
        ] {
            assert_eq!(socket_path(endpoint).ok(), expected.map(PathBuf::from), "{endpoint}");
        }
    }
}
