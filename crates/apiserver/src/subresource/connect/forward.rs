//! Passing a request on and its answer back.

use std::time::Duration;

use futures::StreamExt;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyStream, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_api::status::Status;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::location::Location;
use super::trust::{Kubelets, any_certificate};
use crate::answer::Body;
use crate::server::Admitted;

const DIAL_TIME: Duration = Duration::from_secs(10);

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Asks the location what the client asks, and answers with its answer.
pub async fn forward(
    kubelets: &Kubelets,
    request: &mut Admitted<'_>,
    location: &Location,
    is_log: bool,
) -> Result<Response<Body>, Status> {
    let upgrade = request.parts.headers.get(UPGRADE).cloned();
    let connection = connect(kubelets, location).await?;
    let (mut sender, driver) =
        http1::handshake(TokioIo::new(connection)).await.map_err(|error| unreachable(location, &error))?;
    tokio::spawn(async move {
        if let Err(error) = driver.with_upgrades().await {
            tracing::debug!(%error, "a connection into the cluster ended");
        }
    });
    let mut onward = Request::builder()
        .method(request.parts.method.clone())
        .uri(&location.path)
        .body(Full::new(std::mem::take(&mut request.body)))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    *onward.headers_mut() = headers_for(&request.parts.headers, location, upgrade.as_ref());
    let answer = sender.send_request(onward).await.map_err(|error| unreachable(location, &error))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return join(request, answer);
    }
    if is_log && !answer.status().is_success() {
        return Err(log_failure(answer).await);
    }
    // The sender lives as long as the body, since dropping it would end the connection.
    let (parts, body) = answer.into_parts();
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

async fn connect(kubelets: &Kubelets, location: &Location) -> Result<Box<dyn Connection>, Status> {
    let dial = TcpStream::connect((location.host.as_str(), location.port));
    let stream = tokio::time::timeout(DIAL_TIME, dial)
        .await
        .map_err(|_| unreachable(location, &"i/o timeout"))?
        .map_err(|error| unreachable(location, &error))?;
    stream.set_nodelay(true).map_err(Status::internal)?;
    if !location.tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(location.host.clone()).map_err(Status::internal)?;
    let config = if location.kubelet { kubelets.config() } else { any_certificate() };
    let connector = TlsConnector::from(config.map_err(|error| unreachable(location, &error))?);
    let stream = tokio::time::timeout(DIAL_TIME, connector.connect(name, stream))
        .await
        .map_err(|_| unreachable(location, &"TLS handshake timeout"))?
        .map_err(|error| unreachable(location, &error))?;
    Ok(Box::new(stream))
}

fn unreachable(location: &Location, error: &dyn std::fmt::Display) -> Status {
    let scheme = if location.tls { "https" } else { "http" };
    let Location { host, port, path, .. } = location;
    let text = format!("error trying to reach service: {scheme}://{host}:{port}{path}: {error}");
    if location.kubelet { Status::internal(text) } else { Status::unavailable(text) }
}

/// The client's headers without its credentials and without what concerns only its own connection.
fn headers_for(own: &HeaderMap, location: &Location, upgrade: Option<&HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in own {
        let secret = name == AUTHORIZATION || name.as_str().starts_with("impersonate-");
        if !is_hop(name) && !secret && name != HOST {
            headers.append(name.clone(), value.clone());
        }
    }
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    let host = if location.host.contains(':') {
        format!("[{}]:{}", location.host, location.port)
    } else {
        format!("{}:{}", location.host, location.port)
    };
    if let Ok(host) = HeaderValue::from_str(&host) {
        headers.insert(HOST, host);
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
fn join(request: &mut Admitted<'_>, answer: Response<Incoming>) -> Result<Response<Body>, Status> {
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
            let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
            // How a stream ends is between the two of them.
            let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
            Ok::<(), hyper::Error>(())
        };
        if let Err(error) = joined.await {
            tracing::debug!(%error, "a stream into a node was not opened");
        }
    });
    Ok(response)
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
