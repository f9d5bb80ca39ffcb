//! Forwards a request over a connection and streams the response back.

use futures::StreamExt;
use http::header::{CONNECTION, Entry, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyStream, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use knarr_api::status::Status;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::authorized_request::AuthorizedRequest;
use crate::response::Body;
use crate::watch::websocket::is_token_protocol;

/// A response whose body has not been read.
pub struct ProxiedResponse {
    pub response: Response<Incoming>,
    /// Kept as long as the body, since dropping it would close the connection.
    sender: SendRequest<Full<bytes::Bytes>>,
}

/// Forwards a request to a path of another server, with these headers.
pub async fn forward_request(
    request: &mut AuthorizedRequest<'_>,
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    path: &str,
    headers: HeaderMap,
) -> Result<ProxiedResponse, String> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(connection)).await.map_err(|error| error.to_string())?;
    knarr_supervisor::spawn(async move {
        if let Err(error) = driver.with_upgrades().await {
            tracing::debug!(%error, "a connection of a proxied request failed");
        }
    });
    let mut forwarded = Request::builder()
        .method(request.parts.method.clone())
        .uri(path)
        .body(Full::new(std::mem::take(&mut request.body)))
        .map_err(|error| error.to_string())?;
    *forwarded.headers_mut() = headers;
    let response = sender.send_request(forwarded).await.map_err(|error| error.to_string())?;
    Ok(ProxiedResponse { response, sender })
}

/// Why the response to an upgrade request must not reach the client: a client that requested a stream would follow a
/// redirect with its credentials, and mistake a success for the stream.
pub fn failed_upgrade(status: StatusCode) -> Option<String> {
    let refused = status != StatusCode::SWITCHING_PROTOCOLS && status.as_u16() < 400;
    refused.then(|| format!("invalid upgrade response: status code {}", status.as_u16()))
}

impl ProxiedResponse {
    /// The response for the client: relays an upgraded connection, or streams the body.
    pub fn into_response(self, request: &mut AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
        if self.response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return relay_upgrade(request, self.response);
        }
        let (parts, body) = self.response.into_parts();
        let sender = self.sender;
        let chunks = BodyStream::new(body).filter_map(move |frame| {
            let _keep_open = &sender;
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

/// The headers of a request without those of its connection, except for the request of an upgrade. The token that browsers
/// put among the protocols of a WebSocket is for this server only.
pub fn forwarded_headers(own: &HeaderMap, keep: impl Fn(&HeaderName) -> bool) -> HeaderMap {
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
    remove_token_protocols(&mut headers);
    headers
}

/// Removes the protocols that carry a token; all of them if they cannot be read.
fn remove_token_protocols(headers: &mut HeaderMap) {
    let Entry::Occupied(offered) = headers.entry(SEC_WEBSOCKET_PROTOCOL) else { return };
    let offered: Vec<HeaderValue> = offered.remove_entry_mult().1.collect();
    for list in offered.iter().map(HeaderValue::to_str) {
        let Ok(list) = list else { return drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)) };
        let kept: Vec<&str> = list.split(',').map(str::trim).filter(|name| !is_token_protocol(name)).collect();
        if let Some(value) = HeaderValue::try_from(kept.join(", ")).ok().filter(|value| !value.is_empty()) {
            headers.append(SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}

fn is_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-authenticate" | "proxy-authorization" | "te" | "trailer" | "upgrade"
    ) || name == TRANSFER_ENCODING
}

/// Relays between both ends of an upgraded connection.
fn relay_upgrade(request: &mut AuthorizedRequest<'_>, upstream: Response<Incoming>) -> Result<Response<Body>, Status> {
    let ours = request
        .parts
        .extensions
        .remove::<hyper::upgrade::OnUpgrade>()
        .ok_or_else(|| Status::bad_request("the connection cannot be upgraded"))?;
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = upstream.headers().clone();
    let open = request.running.stream();
    knarr_supervisor::spawn(async move {
        let _open = open;
        let relayed = async {
            let theirs = hyper::upgrade::on(upstream).await?;
            let ours = ours.await?;
            // Both ends see how the stream ended.
            let _ = knarr_relay::relay(TokioIo::new(ours), TokioIo::new(theirs)).await;
            Ok::<(), hyper::Error>(())
        };
        if let Err(error) = relayed.await {
            tracing::debug!(%error, "cannot upgrade a proxied connection");
        }
    });
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_among_the_protocols_of_a_websocket_is_not_forwarded() {
        const TOKEN: &[u8] = b"base64url.bearer.authorization.k8s.io.c2VjcmV0";
        for (offered, forwarded) in [
            (vec![[TOKEN, b", v4.channel.k8s.io, x"].concat()], vec!["v4.channel.k8s.io, x"]),
            (vec![b"v4.channel.k8s.io".to_vec(), TOKEN.to_vec()], vec!["v4.channel.k8s.io"]),
            (vec![TOKEN.to_vec()], vec![]),
            (vec![b"a".to_vec(), b"b".to_vec()], vec!["a", "b"]),
            // What cannot be read may hold a token.
            (vec![b"a".to_vec(), [b"\xff, ", TOKEN].concat()], vec![]),
        ] {
            let mut own = HeaderMap::new();
            for value in &offered {
                own.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_bytes(value).unwrap());
            }
            let headers = forwarded_headers(&own, |_| true);
            let kept: Vec<&str> =
                headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(|value| value.to_str().unwrap()).collect();
            assert_eq!(kept, forwarded, "{offered:?}");
        }
    }
}
