//! Passing a request on and its answer back.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use knarr_api::status::Status;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::links::Seen;
use super::location::{Location, Peer};
use super::trust::{Kubelets, any_certificate};
use crate::authorized_request::AuthorizedRequest;
use crate::outbound::{check_addresses, failed_upgrade, lookup, onward_headers, pass};
use crate::response::Body;
use crate::route::target::tail;
use crate::watch::websocket::is_token_protocol;

const DIAL_TIME: Duration = Duration::from_secs(10);

pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Asks the location what the client asks, and answers with its answer.
pub async fn forward(
    kubelets: &Kubelets,
    request: &mut AuthorizedRequest<'_>,
    location: &Location,
    is_log: bool,
) -> Result<Response<Body>, Status> {
    let connection = connect(kubelets, location).await?;
    let headers = headers_for(&request.parts.headers, location);
    let is_upgrade = headers.contains_key(UPGRADE);
    let passed = pass(request, connection, &location.path, headers).await;
    let passed = passed.map_err(|error| unreachable(location, &error))?;
    let status = passed.answer.status();
    if is_log && status.is_redirection() {
        return Err(plain_error(format!("Get \"{}\": redirects forbidden", url(location))));
    }
    if is_log && !status.is_success() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(log_failure(passed.answer).await);
    }
    if is_upgrade && let Some(why) = failed_upgrade(status) {
        return Err(plain_error(why));
    }
    passed.into_response(request)
}

/// An error without a reason, as errors of no known kind have none.
fn plain_error(message: String) -> Status {
    Status::new(500, "", message)
}

/// Asks what is behind a proxy, whose pages are to be read under the path of the proxy.
pub async fn proxy(
    kubelets: &Kubelets,
    request: &mut AuthorizedRequest<'_>,
    location: &Location,
) -> Result<Response<Body>, Status> {
    let target = &request.routed.target;
    let path = target.path.clone();
    let under = path.strip_suffix(tail(&path, target)).unwrap_or(&path);
    let is_read = matches!(request.parts.method, Method::GET | Method::HEAD);
    if under == path && is_read && !request.parts.headers.contains_key(UPGRADE) {
        return slash_is_missing(request);
    }
    let own_host = request.parts.headers.get(HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let own_host = own_host.or_else(|| request.parts.uri.authority().map(ToString::to_string)).unwrap_or_default();
    if let Ok(seen) = HeaderValue::from_str(&path) {
        request.parts.headers.insert("x-forwarded-uri", seen);
    }
    let response = forward(kubelets, request, location, false).await?;
    let seen = Seen { under, page_host: &host_and_port(location), own_host: &own_host };
    Ok(seen.through(response).await)
}

/// Relative links of the page at the root would lead out of the proxy if its path did not end with a slash.
fn slash_is_missing(request: &AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
    let uri = &request.parts.uri;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Response::builder()
        .status(StatusCode::MOVED_PERMANENTLY)
        .header(LOCATION, format!("{}/{query}", uri.path()))
        .body(Body::Empty)
        .map_err(Status::internal)
}

pub(super) async fn connect(kubelets: &Kubelets, location: &Location) -> Result<Box<dyn Connection>, Status> {
    let addresses = addresses(location).await?;
    let stream = tokio::time::timeout(DIAL_TIME, TcpStream::connect(&addresses[..]))
        .await
        .map_err(|_| unreachable(location, &"i/o timeout"))?
        .map_err(|error| unreachable(location, &error))?;
    stream.set_nodelay(true).map_err(Status::internal)?;
    if !location.tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(location.host.clone()).map_err(Status::internal)?;
    let config = match &location.peer {
        Peer::Kubelet { node } => kubelets.config(node),
        Peer::Workload => any_certificate(),
    };
    let connector = TlsConnector::from(config.map_err(|error| unreachable(location, &error))?);
    let stream = tokio::time::timeout(DIAL_TIME, connector.connect(name, stream))
        .await
        .map_err(|_| unreachable(location, &"TLS handshake timeout"))?
        .map_err(|error| unreachable(location, &error))?;
    Ok(Box::new(stream))
}

/// The addresses to connect to: looked up once, and checked where a user chose them.
async fn addresses(location: &Location) -> Result<Vec<SocketAddr>, Status> {
    let looked_up = tokio::time::timeout(DIAL_TIME, lookup(&location.host, location.port))
        .await
        .map_err(|_| unreachable(location, &"i/o timeout"))?;
    let checked = looked_up.and_then(|addresses| {
        if location.global_only {
            check_addresses(&addresses)?;
        }
        Ok(addresses)
    });
    checked.map_err(|error| match error {
        _ if location.global_only => Status::bad_request(error.to_string()),
        error => unreachable(location, &error),
    })
}

fn url(location: &Location) -> String {
    let scheme = if location.tls { "https" } else { "http" };
    format!("{scheme}://{}{}", host_and_port(location), location.path)
}

fn unreachable(location: &Location, error: &dyn std::fmt::Display) -> Status {
    let text = format!("error trying to reach service: {}: {error}", url(location));
    match location.peer {
        Peer::Kubelet { .. } => Status::internal(text),
        Peer::Workload => Status::unavailable(text),
    }
}

/// The client's headers without its credentials and without what concerns only its own connection.
fn headers_for(own: &HeaderMap, location: &Location) -> HeaderMap {
    let is_secret = |name: &HeaderName| name == AUTHORIZATION || name.as_str().starts_with("impersonate-");
    let mut headers = onward_headers(own, |name| !is_secret(name) && name != HOST);
    if let Ok(host) = HeaderValue::from_str(&host_and_port(location)) {
        headers.insert(HOST, host);
    }
    remove_token_protocols(&mut headers);
    headers
}

/// A WebSocket subprotocol may carry the client's token to this server, and to nobody else.
fn remove_token_protocols(headers: &mut HeaderMap) {
    let Some(offered) = headers.get(SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok()) else { return };
    let kept: Vec<&str> = offered.split(',').map(str::trim).filter(|name| !is_token_protocol(name)).collect();
    let kept = kept.join(", ");
    match HeaderValue::try_from(&kept) {
        Ok(value) if !kept.is_empty() => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, value)),
        _ => drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)),
    }
}

fn host_and_port(location: &Location) -> String {
    if location.host.contains(':') {
        format!("[{}]:{}", location.host, location.port)
    } else {
        format!("{}:{}", location.host, location.port)
    }
}

/// What a kubelet says about a log it cannot give, as the API says it.
async fn log_failure(answer: Response<Incoming>) -> Status {
    use http_body_util::BodyExt;
    let code = answer.status().as_u16();
    let text = match answer.into_body().collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    match code {
        400 => Status::bad_request(text),
        404 => Status::new(404, "NotFound", text).with_empty_details(),
        _ => Status::internal(text),
    }
}
