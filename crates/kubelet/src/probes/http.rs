//! A small HTTP client for probes and hooks: one connection per request, no certificate verification, redirects on the
//! same host only.

use std::sync::{Arc, LazyLock};

use http::{HeaderName, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connect::connect;

#[derive(Clone, Debug)]
pub struct HttpTarget {
    /// Of the pod that names the host.
    pub namespace: String,
    pub scheme: String,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub headers: Vec<(String, String)>,
}

pub struct HttpResponse {
    pub status: u16,
    pub body: String,
    /// The response is a redirect to another host, which is not requested.
    pub redirected_away: bool,
}

const MAX_REDIRECTS: usize = 10;
const MAX_BODY_SIZE: usize = 10 << 10;

pub async fn http_get(target: &HttpTarget, user_agent: &str) -> Result<HttpResponse, String> {
    let mut tls = target.scheme.eq_ignore_ascii_case("https");
    let mut port = target.port;
    let mut path = if target.path.starts_with('/') { target.path.clone() } else { format!("/{}", target.path) };
    for _ in 0..MAX_REDIRECTS {
        let (status, body, location) = request_once(target, tls, port, &path, user_agent).await?;
        let response = |redirected_away| HttpResponse { status: status.as_u16(), body: body.clone(), redirected_away };
        let Some(location) = location.filter(|_| status.is_redirection()) else { return Ok(response(false)) };
        let next: Uri = location.parse().map_err(|_| format!("cannot parse the redirect to {location}"))?;
        if let Some(host) = next.host()
            && host.trim_matches(['[', ']']) != target.host
        {
            return Ok(response(true));
        }
        if let Some(scheme) = next.scheme_str() {
            tls = scheme == "https";
            port = next.port_u16().unwrap_or(if tls { 443 } else { 80 });
        }
        let next_path = next.path_and_query().map_or("/", |path| path.as_str());
        path = if next_path.starts_with('/') { next_path.to_string() } else { format!("/{next_path}") };
    }
    Err(format!("stopped after {MAX_REDIRECTS} redirects"))
}

async fn request_once(
    target: &HttpTarget,
    tls: bool,
    port: u16,
    path: &str,
    user_agent: &str,
) -> Result<(StatusCode, String, Option<String>), String> {
    let url = format!("{}://{}{path}", if tls { "https" } else { "http" }, authority(&target.host, port));
    let failed = |error: &dyn std::fmt::Display| format!("Get \"{url}\": {error}");
    let stream = connect(&target.namespace, &target.host, port)
        .await
        .map_err(|error| failed(&format!("dial tcp {}: {}", authority(&target.host, port), lower(&error))))?;
    let request = request(target, port, path, user_agent)?;
    if tls {
        let name = ServerName::try_from(target.host.clone()).map_err(|error| failed(&error))?;
        let connector = tokio_rustls::TlsConnector::from(TLS_WITHOUT_VERIFICATION.clone());
        let stream = connector.connect(name, stream).await.map_err(|error| failed(&tls_text(&error)))?;
        send(stream, request).await.map_err(|error| failed(&error))
    } else {
        send(stream, request).await.map_err(|error| failed(&error))
    }
}

fn lower(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_string(),
        _ => error.to_string(),
    }
}

/// A server without TLS, the most frequent mistake, gets its own message.
fn tls_text(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            "http: server gave HTTP response to HTTPS client".to_string()
        }
        _ => error.to_string(),
    }
}

/// The message for a connection that closes without a response, or breaks.
fn broken(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    match source.map(std::io::Error::kind) {
        None if error.is_incomplete_message() => "EOF".to_string(),
        Some(std::io::ErrorKind::UnexpectedEof) => "EOF".to_string(),
        Some(std::io::ErrorKind::ConnectionReset) => "read: connection reset by peer".to_string(),
        Some(_) => source.map_or_else(String::new, ToString::to_string),
        None => error.to_string(),
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn request(target: &HttpTarget, port: u16, path: &str, user_agent: &str) -> Result<Request<Empty<Bytes>>, String> {
    let mut request = Request::get(path).body(Empty::new()).map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    let own = [("user-agent", user_agent), ("accept", "*/*"), ("connection", "close")];
    for (name, value) in own {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).map_err(|error| error.to_string())?);
    }
    let host = HeaderValue::from_str(&authority(&target.host, port)).map_err(|error| error.to_string())?;
    headers.insert(http::header::HOST, host);
    let mut given = std::collections::HashSet::new();
    for (name, value) in &target.headers {
        let name = HeaderName::try_from(name.as_str()).map_err(|error| error.to_string())?;
        let value = HeaderValue::from_str(value).map_err(|error| error.to_string())?;
        if value.is_empty() && (name == "accept" || name == "user-agent") {
            headers.remove(&name);
        } else if given.insert(name.clone()) {
            headers.insert(name, value);
        } else {
            headers.append(name, value);
        }
    }
    Ok(request)
}

async fn send<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<(StatusCode, String, Option<String>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let driver = knarr_supervisor::spawn(connection);
    let result = async {
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = response.status();
        let location = response.headers().get(http::header::LOCATION).and_then(|value| value.to_str().ok());
        let location = location.map(ToString::to_string);
        // Bodies beyond the limit are not needed.
        let body = Limited::new(response.into_body(), MAX_BODY_SIZE).collect().await;
        let body = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
        Ok((status, body, location))
    }
    .await;
    driver.abort();
    result
}

static TLS_WITHOUT_VERIFICATION: LazyLock<Arc<rustls::ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has what the default versions need")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NoVerification(provider)))
        .with_no_client_auth();
    Arc::new(config)
});

/// A probe checks that a program responds, not its identity.
#[derive(Debug)]
struct NoVerification(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn serve(responses: Vec<&'static str>) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            for response in responses {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut buffer = [0; 1024];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn redirects_on_the_same_host_are_requested() {
        let port = serve(vec![
            "HTTP/1.1 302 Found\r\nlocation: /two\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "HTTP/1.1 302 Found\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
        ])
        .await;
        let target = HttpTarget {
            namespace: "default".into(),
            scheme: "HTTP".into(),
            host: "127.0.0.1".into(),
            port,
            path: "one".into(),
            headers: vec![("X-A".into(), "1".into())],
        };
        let response = http_get(&target, "test").await.expect("an response");
        assert_eq!((response.status, response.body.as_str(), response.redirected_away), (200, "ok", false));
        let response = http_get(&target, "test").await.expect("an response");
        assert!(response.redirected_away);
    }
}
