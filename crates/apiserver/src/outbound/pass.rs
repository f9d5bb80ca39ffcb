//! Passing a request on over a connection, and its answer back as it comes.

use futures::StreamExt;
use http::header::{CONNECTION, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyStream, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use knarr_api::status::Status;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::authorized_request::AuthorizedRequest;
use crate::response::Body;

/// An answer whose body has not been read.
pub struct Passed {
    pub answer: Response<Incoming>,
    /// Lives as long as the body, since dropping it would end the connection.
    sender: SendRequest<Full<bytes::Bytes>>,
}

/// Sends what the client sent to a path of the other end. The headers are those to send.
pub async fn pass(
    request: &mut AuthorizedRequest<'_>,
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    path: &str,
    headers: HeaderMap,
) -> Result<Passed, String> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(connection)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = driver.with_upgrades().await {
            tracing::debug!(%error, "a connection into the cluster ended");
        }
    });
    let mut onward = Request::builder()
        .method(request.parts.method.clone())
        .uri(path)
        .body(Full::new(std::mem::take(&mut request.body)))
        .map_err(|error| error.to_string())?;
    *onward.headers_mut() = headers;
    let answer = sender.send_request(onward).await.map_err(|error| error.to_string())?;
    Ok(Passed { answer, sender })
}

/// Why an answer to an upgrade request must not reach the client. A client that asked for a stream would follow a
/// redirect with its credentials, and take a success for the stream.
pub fn failed_upgrade(status: StatusCode) -> Option<String> {
    let refused = status != StatusCode::SWITCHING_PROTOCOLS && status.as_u16() < 400;
    refused.then(|| format!("invalid upgrade response: status code {}", status.as_u16()))
}

impl Passed {
    /// The answer for the client: joined where both ends speak something else from now on, else chunk by chunk.
    pub fn into_response(self, request: &mut AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
        if self.answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return join(request, self.answer);
        }
        let (parts, body) = self.answer.into_parts();
        let sender = self.sender;
        let chunks = BodyStream::new(body).filter_map(move |frame| {
            let _keeps = &sender;
            std::future::ready(frame.ok().and_then(|frame| frame.into_data().ok()))
        });
        let mut response = Response::new(Body::stream(chunks));
        *response.status_mut() = parts.status;
        for (name, value) in &parts.headers {
            if !is_hop(name) {
                response.headers_mut().append(name.clone(), value.clone());
            }
        }
        Ok(response)
    }
}

/// The headers of a request that may be passed on: not those that concern only its own connection, but the wish to
/// speak something else on it.
pub fn onward_headers(own: &HeaderMap, keep: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in own {
        if !is_hop(name) && keep(name) {
            headers.append(name.clone(), value.clone());
        }
    }
    if let Some(upgrade) = own.get(UPGRADE) {
        headers.insert(UPGRADE, upgrade.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    headers
}

fn is_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-authenticate" | "proxy-authorization" | "te" | "trailer" | "upgrade"
    ) || name == TRANSFER_ENCODING
}

/// Joins both ends of an upgraded connection.
fn join(request: &mut AuthorizedRequest<'_>, answer: Response<Incoming>) -> Result<Response<Body>, Status> {
    let ours = request
        .parts
        .extensions
        .remove::<hyper::upgrade::OnUpgrade>()
        .ok_or_else(|| Status::bad_request("the connection cannot be upgraded"))?;
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers().clone();
    tokio::spawn(async move {
        let joined = async {
            let theirs = hyper::upgrade::on(answer).await?;
            let ours = ours.await?;
            // How a stream ends is between the two of them.
            let _ = knarr_relay::relay(TokioIo::new(ours), TokioIo::new(theirs)).await;
            Ok::<(), hyper::Error>(())
        };
        if let Err(error) = joined.await {
            tracing::debug!(%error, "a stream into a node was not opened");
        }
    });
    Ok(response)
}
