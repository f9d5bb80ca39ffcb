//! Exec, attach and port-forward. The runtime serves them on a streaming server of its own; the node stands between it
//! and the client. What the runtime's server understands itself (SPDY, and WebSocket up to its fourth version) is handed
//! on byte by byte; the newer WebSocket protocols are translated to SPDY.

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
pub use translate::Wanted;

/// What goes through the stream.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Command(Wanted),
    PortForward,
}

const COMMAND_V5: &str = "v5.channel.k8s.io";
const TUNNELLED_PORTS: &str = "SPDY/3.1+portforward.k8s.io";

/// Joins the client with what the runtime serves under `url`.
pub async fn join(request: Request<Incoming>, url: &str, kind: Kind) -> Response<Body> {
    if !request.headers().contains_key(header::UPGRADE) {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let offers = websocket::offered(request.headers()).unwrap_or_default();
    let offered = |name: &str| offers.iter().any(|offer| offer == name);
    let joined = match kind {
        Kind::Command(_) if offered(COMMAND_V5) => translated(request, url, kind, COMMAND_V5).await,
        Kind::PortForward if offered(TUNNELLED_PORTS) => translated(request, url, kind, TUNNELLED_PORTS).await,
        _ => handed_on(request, url).await,
    };
    joined.unwrap_or_else(|message| {
        tracing::warn!(message, "a stream into a container failed");
        text(StatusCode::INTERNAL_SERVER_ERROR, message)
    })
}

async fn handed_on(mut request: Request<Incoming>, url: &str) -> Result<Response<Body>, String> {
    let authority = authority(url)?;
    let headers = onward_headers(request.headers(), &authority);
    match ask(url, request.method().clone(), headers).await? {
        Asked::Refused(response) => Ok(response),
        Asked::Upgraded(headers, runtime) => {
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
    match ask(url, Method::POST, headers).await? {
        Asked::Refused(response) => Ok(response),
        Asked::Upgraded(_, runtime) => {
            let client = hyper::upgrade::on(&mut request);
            spawn_joined(client, runtime, move |client, runtime| async move {
                match kind {
                    Kind::Command(wanted) => translate::translate(client, runtime, wanted).await,
                    Kind::PortForward => translate::unwrap(client, runtime).await,
                }
            });
            Ok(switching(accepted))
        }
    }
}

enum Asked {
    Refused(Response<Body>),
    Upgraded(HeaderMap, OnUpgrade),
}

/// Asks the runtime's streaming server for its side of the stream.
async fn ask(url: &str, method: Method, headers: HeaderMap) -> Result<Asked, String> {
    let target: Uri = url.parse().map_err(|_| "the runtime gave no usable streaming address".to_string())?;
    let stream =
        TcpStream::connect(authority(url)?.as_str()).await.map_err(|error| format!("streaming server: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a streaming connection broke");
        }
    });
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    let mut onward =
        Request::builder().method(method).uri(path).body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    *onward.headers_mut() = headers;
    let mut answer = sender.send_request(onward).await.map_err(|error| error.to_string())?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Asked::Upgraded(answer.headers().clone(), hyper::upgrade::on(&mut answer)));
    }
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    Ok(Asked::Refused(response))
}

fn spawn_joined<F, W>(client: OnUpgrade, runtime: OnUpgrade, work: F)
where
    F: FnOnce(TokioIo<Upgraded>, TokioIo<Upgraded>) -> W + Send + 'static,
    W: Future<Output = std::io::Result<()>> + Send,
{
    tokio::spawn(async move {
        let (client, runtime) = match tokio::try_join!(client, runtime) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "a stream into a container was given up");
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
    let target: Uri = url.parse().map_err(|_| "the runtime gave no usable streaming address".to_string())?;
    target.authority().map(ToString::to_string).ok_or_else(|| "the streaming address names no host".to_string())
}

/// All the client's headers but its credentials, which the runtime has no business with.
fn onward_headers(headers: &HeaderMap, authority: &str) -> HeaderMap {
    let mut onward = headers.clone();
    for name in [header::AUTHORIZATION, header::HOST, header::ORIGIN] {
        onward.remove(name);
    }
    if let Ok(host) = HeaderValue::from_str(authority) {
        onward.insert(header::HOST, host);
    }
    onward
}
