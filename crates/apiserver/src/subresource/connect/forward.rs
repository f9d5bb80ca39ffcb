//! Forwards a request to a kubelet, pod or service, and its response back.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION, UPGRADE};
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use knarr_api::status::Status;
use knarr_tunnel::{Dial, Stream};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::html_links::ProxiedPage;
use super::location::{Location, Peer};
use crate::authorized_request::AuthorizedRequest;
use crate::outbound::egress::{Egress, Network};
use crate::outbound::kubelet_tls::{Kubelets, any_certificate};
use crate::outbound::{check_addresses, lookup};
use crate::response::Body;
use crate::reverse_proxy::{failed_upgrade, forward_request, forwarded_headers};
use crate::route::target::tail;
use crate::ui::forward::ProxyPath;

/// How much of an error response is passed on, as in Kubernetes.
const MAX_ERROR_BYTES: usize = 50_000;

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Forwards a request to a location and returns its response.
pub async fn forward(
    kubelets: &Kubelets,
    request: &mut AuthorizedRequest<'_>,
    location: &Location,
    is_log: bool,
) -> Result<Response<Body>, Status> {
    let connection = connect(kubelets, location).await?;
    let headers = headers_for(&request.parts.headers, location);
    let is_upgrade = headers.contains_key(UPGRADE);
    let proxied = forward_request(request, connection, &location.path, headers).await;
    let proxied = proxied.map_err(|error| unreachable(location, &error))?;
    let status = proxied.response.status();
    if is_log && status.is_redirection() {
        return Err(plain_error(format!("Get \"{}\": redirects forbidden", url(location))));
    }
    if is_log && !status.is_success() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(log_failure(proxied.response).await);
    }
    if is_upgrade && let Some(why) = failed_upgrade(status) {
        return Err(plain_error(why));
    }
    proxied.into_response(request)
}

/// An error without a reason, as untyped errors of Kubernetes.
fn plain_error(message: String) -> Status {
    Status::new(500, "", message)
}

/// Forwards a request through a proxy. Links of HTML pages are rewritten to lead through the proxy.
pub async fn proxy(
    kubelets: &Kubelets,
    request: &mut AuthorizedRequest<'_>,
    location: &Location,
) -> Result<Response<Body>, Status> {
    let target = &request.routed.target;
    let path = target.path.clone();
    let proxy_path = path.strip_suffix(tail(&path, target)).unwrap_or(&path);
    let seen_path = request.parts.extensions.get::<ProxyPath>().cloned();
    let is_read = matches!(request.parts.method, Method::GET | Method::HEAD);
    if proxy_path == path && is_read && !request.parts.headers.contains_key(UPGRADE) {
        return redirect_to_slash(request);
    }
    let own_host = request.parts.headers.get(HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let own_host = own_host.or_else(|| request.parts.uri.authority().map(ToString::to_string)).unwrap_or_default();
    if let Ok(uri) = HeaderValue::from_str(&path) {
        request.parts.headers.insert("x-forwarded-uri", uri);
    }
    let response = forward(kubelets, request, location, false).await?;
    let proxy_path = seen_path.as_ref().map_or(proxy_path, |seen| &seen.0);
    let page = ProxiedPage { proxy_path, page_host: &host_and_port(location), own_host: &own_host };
    Ok(page.rewrite(response).await)
}

/// Redirects to the path with a trailing slash: without it, relative links of the page would lead outside the proxy.
fn redirect_to_slash(request: &AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
    let uri = &request.parts.uri;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Response::builder()
        .status(StatusCode::MOVED_PERMANENTLY)
        .header(LOCATION, format!("{}/{query}", uri.path()))
        .body(Body::Empty)
        .map_err(Status::internal)
}

/// Connects to a location, with TLS if it needs it.
pub(super) async fn connect(kubelets: &Kubelets, location: &Location) -> Result<Box<dyn Stream>, Status> {
    let route = Egress::current().route(Network::Cluster);
    // A proxy may know names that are unknown here; addresses that users choose are checked here.
    if !route.is_direct() && location.node.is_none() && !location.global_only {
        let stream = route.dial(&location.host, location.port).await.map_err(|why| unreachable(location, &why))?;
        return secure(kubelets, location, stream).await;
    }
    let addresses = addresses(location).await?;
    let stream = match (&location.node, addresses.first()) {
        (Some(node), Some(address)) => kubelets.tunnels.dial(node, *address).await,
        _ => Dial::None,
    };
    let stream = match stream {
        Dial::Open(stream) => stream,
        Dial::Failed(why) => return Err(unreachable(location, &why)),
        Dial::None if route.is_direct() => connect_directly(location, &addresses).await?,
        Dial::None => {
            let address = addresses.first().ok_or_else(|| unreachable(location, &"no addresses for hostname"))?;
            let dialed = route.dial(&address.ip().to_string(), address.port()).await;
            dialed.map_err(|why| unreachable(location, &why))?
        }
    };
    secure(kubelets, location, stream).await
}

/// The stream with TLS, if the location needs it.
async fn secure(kubelets: &Kubelets, location: &Location, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, Status> {
    if !location.tls {
        return Ok(stream);
    }
    let name = ServerName::try_from(location.host.clone()).map_err(Status::internal)?;
    let config = match &location.peer {
        Peer::Kubelet { node } => kubelets.config(node),
        Peer::Workload => any_certificate(),
    };
    let connector = TlsConnector::from(config.map_err(|error| unreachable(location, &error))?);
    let stream = tokio::time::timeout(DIAL_TIMEOUT, connector.connect(name, stream))
        .await
        .map_err(|_| unreachable(location, &"TLS handshake timeout"))?
        .map_err(|error| unreachable(location, &error))?;
    Ok(Box::new(stream))
}

async fn connect_directly(location: &Location, addresses: &[SocketAddr]) -> Result<Box<dyn Stream>, Status> {
    let stream = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(addresses))
        .await
        .map_err(|_| unreachable(location, &"i/o timeout"))?
        .map_err(|error| unreachable(location, &error))?;
    stream.set_nodelay(true).map_err(Status::internal)?;
    Ok(Box::new(stream))
}

/// The addresses to connect to: resolved once, and checked if a user chose them.
async fn addresses(location: &Location) -> Result<Vec<SocketAddr>, Status> {
    let resolved = tokio::time::timeout(DIAL_TIMEOUT, lookup(&location.host, location.port))
        .await
        .map_err(|_| unreachable(location, &"i/o timeout"))?;
    let checked = resolved.and_then(|addresses| {
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

/// The headers of the client without its credentials and those of its connection.
fn headers_for(own: &HeaderMap, location: &Location) -> HeaderMap {
    let is_secret = |name: &HeaderName| name == AUTHORIZATION || name.as_str().starts_with("impersonate-");
    let mut headers = forwarded_headers(own, |name| !is_secret(name) && name != HOST);
    if let Ok(host) = HeaderValue::from_str(&host_and_port(location)) {
        headers.insert(HOST, host);
    }
    headers
}

fn host_and_port(location: &Location) -> String {
    if location.host.contains(':') {
        format!("[{}]:{}", location.host, location.port)
    } else {
        format!("{}:{}", location.host, location.port)
    }
}

/// The first bytes of a body: a kubelet may send without end.
async fn start_of(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    use http_body_util::BodyExt;
    let mut start = Vec::new();
    while start.len() < MAX_ERROR_BYTES
        && let Some(frame) = body.frame().await
    {
        if let Some(data) = frame?.data_ref() {
            start.extend_from_slice(&data[..data.len().min(MAX_ERROR_BYTES - start.len())]);
        }
    }
    Ok(start)
}

/// The Status of an error response of a kubelet to a log request.
async fn log_failure(response: Response<Incoming>) -> Status {
    let code = response.status().as_u16();
    let text = match start_of(response.into_body()).await {
        Ok(text) => String::from_utf8_lossy(&text).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    match code {
        400 => Status::bad_request(text),
        404 => Status::new(404, "NotFound", text).with_empty_details(),
        _ => Status::internal(text),
    }
}
