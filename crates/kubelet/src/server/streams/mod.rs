//! Exec, attach and port-forward. The runtime serves them on a streaming server of its own; the node stands between it
//! and the client and hands the bytes on.

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Body, full, text};

/// What goes through the stream.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Exec { stdin: bool, stdout: bool, stderr: bool, tty: bool },
    PortForward,
}

/// Hands the client's request on to the runtime's streaming server, and then the bytes both ways.
pub async fn proxy(request: Request<Incoming>, url: &str, _kind: Kind) -> Response<Body> {
    if !request.headers().contains_key(http::header::UPGRADE) {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    match hand_over(request, url).await {
        Ok(response) => response,
        Err(message) => {
            tracing::warn!(message, "a stream into a container failed");
            text(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
    }
}

async fn hand_over(mut request: Request<Incoming>, url: &str) -> Result<Response<Body>, String> {
    let target: Uri = url.parse().map_err(|_| "the runtime gave no usable streaming address".to_string())?;
    let authority = target.authority().map(ToString::to_string).ok_or("the streaming address names no host")?;
    let stream = TcpStream::connect(authority.as_str()).await.map_err(|error| format!("streaming server: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a streaming connection broke");
        }
    });
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    let mut onward = Request::builder()
        .method(request.method())
        .uri(path)
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    *onward.headers_mut() = onward_headers(request.headers(), &authority);
    let mut answer = sender.send_request(onward).await.map_err(|error| error.to_string())?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        use http_body_util::BodyExt;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        let mut response = Response::new(full(body));
        *response.status_mut() = status;
        return Ok(response);
    }
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers().clone();
    let (client, runtime) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut answer));
    tokio::spawn(async move {
        let (Ok(client), Ok(runtime)) = (client.await, runtime.await) else { return };
        let (mut client, mut runtime) = (TokioIo::new(client), TokioIo::new(runtime));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut runtime).await {
            tracing::debug!(%error, "a stream into a container broke");
        }
    });
    Ok(response)
}

/// All the client's headers but its credentials, which the runtime has no business with.
fn onward_headers(headers: &HeaderMap, authority: &str) -> HeaderMap {
    let mut onward = headers.clone();
    onward.remove(http::header::AUTHORIZATION);
    onward.remove(http::header::HOST);
    onward.remove(http::header::ORIGIN);
    if let Ok(host) = HeaderValue::from_str(authority) {
        onward.insert(http::header::HOST, host);
    }
    onward
}
