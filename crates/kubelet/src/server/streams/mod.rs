//! Exec, attach and port-forward. The runtime serves them on its own streaming server; the kubelet relays between it
//! and the client. Protocols that the runtime's server supports (SPDY, and WebSocket up to version 4) are relayed byte
//! by byte; newer WebSocket protocols are translated to SPDY.

mod spdy;
mod translate;
mod websocket;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Body, full, text};
pub use translate::CommandStreams;

/// The kind of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Command(CommandStreams),
    PortForward,
}

const COMMAND_V5: &str = "v5.channel.k8s.io";
const TUNNELLED_PORTS: &str = "SPDY/3.1+portforward.k8s.io";

/// Connects the client with the runtime's stream at `url`.
pub async fn join(request: Request<Incoming>, url: &str, kind: Kind) -> Response<Body> {
    if !request.headers().contains_key(header::UPGRADE) {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let offers = websocket::offered(request.headers()).unwrap_or_default();
    let offered = |name: &str| offers.iter().any(|offer| offer == name);
    let joined = match kind {
        Kind::Command(_) if offered(COMMAND_V5) => translated(request, url, kind, COMMAND_V5).await,
        Kind::PortForward if offered(TUNNELLED_PORTS) => translated(request, url, kind, TUNNELLED_PORTS).await,
        _ => relayed(request, url).await,
    };
    joined.unwrap_or_else(|message| {
        tracing::warn!(message, "a stream into a container failed");
        text(StatusCode::INTERNAL_SERVER_ERROR, message)
    })
}

async fn relayed(mut request: Request<Incoming>, url: &str) -> Result<Response<Body>, String> {
    let authority = authority(url)?;
    let headers = forwarded_headers(request.headers(), &authority);
    match request_upgrade(url, request.method().clone(), headers).await? {
        UpgradeResponse::Refused(response) => Ok(response),
        UpgradeResponse::Upgraded(headers, runtime) => {
            let client = hyper::upgrade::on(&mut request);
            spawn_joined(client, runtime, knarr_relay::relay);
            Ok(switching(headers))
        }
    }
}

async fn translated(
    mut request: Request<Incoming>,
    url: &str,
    kind: Kind,
    protocol: &str,
) -> Result<Response<Body>, String> {
    let accepted = websocket::accept_headers(request.headers(), protocol).ok_or("the request has no WebSocket key")?;
    let mut headers = HeaderMap::new();
    let stream_protocol = if matches!(kind, Kind::PortForward) { "portforward.k8s.io" } else { "v4.channel.k8s.io" };
    let host = HeaderValue::from_str(&authority(url)?).map_err(|error| error.to_string())?;
    headers.insert(header::HOST, host);
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(
        HeaderName::from_static("x-stream-protocol-version"),
        HeaderValue::from_str(stream_protocol).map_err(|error| error.to_string())?,
    );
    match request_upgrade(url, Method::POST, headers).await? {
        UpgradeResponse::Refused(response) => Ok(response),
        UpgradeResponse::Upgraded(_, runtime) => {
            let client = hyper::upgrade::on(&mut request);
            spawn_joined(client, runtime, move |client, runtime| async move {
                match kind {
                    Kind::Command(streams) => translate::translate(client, runtime, streams).await,
                    Kind::PortForward => translate::unwrap(client, runtime).await,
                }
            });
            Ok(switching(accepted))
        }
    }
}

enum UpgradeResponse {
    Refused(Response<Body>),
    Upgraded(HeaderMap, OnUpgrade),
}

/// Requests the stream from the runtime's streaming server.
async fn request_upgrade(url: &str, method: Method, headers: HeaderMap) -> Result<UpgradeResponse, String> {
    let target: Uri = url.parse().map_err(|_| "the runtime returned an invalid streaming address".to_string())?;
    let stream =
        TcpStream::connect(authority(url)?.as_str()).await.map_err(|error| format!("streaming server: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    knarr_supervisor::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a streaming connection broke");
        }
    });
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    let mut forwarded =
        Request::builder().method(method).uri(path).body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    *forwarded.headers_mut() = headers;
    let mut response = sender.send_request(forwarded).await.map_err(|error| error.to_string())?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(UpgradeResponse::Upgraded(response.headers().clone(), hyper::upgrade::on(&mut response)));
    }
    let status = response.status();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    Ok(UpgradeResponse::Refused(response))
}

fn spawn_joined<F, W>(client: OnUpgrade, runtime: OnUpgrade, work: F)
where
    F: FnOnce(TokioIo<Upgraded>, TokioIo<Upgraded>) -> W + Send + 'static,
    W: Future<Output = std::io::Result<()>> + Send,
{
    knarr_supervisor::spawn(async move {
        let (client, runtime) = match tokio::try_join!(client, runtime) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "a stream into a container was abandoned");
                return;
            }
        };
        if let Err(error) = work(TokioIo::new(client), TokioIo::new(runtime)).await {
            tracing::debug!(%error, "a stream into a container broke");
        }
    });
}

fn switching(headers: HeaderMap) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response
}

fn authority(url: &str) -> Result<String, String> {
    let target: Uri = url.parse().map_err(|_| "the runtime returned an invalid streaming address".to_string())?;
    target.authority().map(ToString::to_string).ok_or_else(|| "the streaming address has no host".to_string())
}

/// The client's headers without its credentials, which the runtime must not see.
fn forwarded_headers(headers: &HeaderMap, authority: &str) -> HeaderMap {
    let mut forwarded = headers.clone();
    for name in [header::AUTHORIZATION, header::HOST, header::ORIGIN] {
        forwarded.remove(name);
    }
    if let Ok(host) = HeaderValue::from_str(authority) {
        forwarded.insert(header::HOST, host);
    }
    forwarded
}
