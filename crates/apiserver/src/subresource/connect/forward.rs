//! Passing a request on and its answer back.

use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use knarr_api::status::Status;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::location::Location;
use super::trust::{Kubelets, any_certificate};
use crate::answer::Body;
use crate::outbound::{onward_headers, pass};
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
    let connection = connect(kubelets, location).await?;
    let headers = headers_for(&request.parts.headers, location);
    let passed = pass(request, connection, &location.path, headers).await;
    let passed = passed.map_err(|error| unreachable(location, &error))?;
    let status = passed.answer.status();
    if is_log && !status.is_success() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(log_failure(passed.answer).await);
    }
    passed.into_response(request)
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
fn headers_for(own: &HeaderMap, location: &Location) -> HeaderMap {
    let is_secret = |name: &HeaderName| name == AUTHORIZATION || name.as_str().starts_with("impersonate-");
    let mut headers = onward_headers(own, |name| !is_secret(name) && name != HOST);
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
