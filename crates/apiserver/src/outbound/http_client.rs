//! A client for servers that the administrator configured: issuers of tokens and webhooks of kubeconfig files.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

use super::egress::{self, Network, Route};
use super::pool::Connection;
use super::tls::describe_tls_error;

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_IDLE: usize = 16;
/// How many redirects are followed where they are followed at all.
const MAX_REDIRECTS: usize = 10;

/// One request.
pub struct Call {
    pub method: Method,
    pub url: Uri,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
    /// For the whole exchange, redirects included.
    pub timeout: Duration,
    /// Larger responses are an error.
    pub max_response: usize,
}

/// A response with its whole body.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// No response, with the message of Go's client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{method} \"{url}\": {why}")]
pub struct CallFailed {
    method: &'static str,
    url: String,
    pub why: String,
}

/// A place to connect to.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    is_tls: bool,
    host: String,
    port: u16,
}

/// Whether redirects are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    Refuse,
    /// Of GET requests, to HTTPS only.
    Follow,
}

pub struct HttpClient {
    tls: Arc<ClientConfig>,
    /// The name that a server's certificate must have, if it is not the host of the URL.
    server_name: Option<String>,
    redirects: Redirects,
    /// The network of the servers, if another way may lead there.
    network: Option<Network>,
    idle: Mutex<HashMap<Place, Vec<(Connection, Instant)>>>,
}

impl HttpClient {
    pub fn new(tls: Arc<ClientConfig>, server_name: Option<String>, redirects: Redirects) -> Self {
        HttpClient { tls, server_name, redirects, network: None, idle: Mutex::default() }
    }

    /// Connects on the way into this network.
    pub fn into_network(self, network: Network) -> Self {
        HttpClient { network: Some(network), ..self }
    }

    pub async fn send(&self, call: Call) -> Result<Reply, CallFailed> {
        let failed = |why: String| CallFailed {
            method: if call.method == Method::GET { "Get" } else { "Post" },
            url: call.url.to_string(),
            why,
        };
        match tokio::time::timeout(call.timeout, self.follow(&call)).await {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    async fn follow(&self, call: &Call) -> Result<Reply, String> {
        let mut url = call.url.clone();
        let own = Place::of(&url)?;
        for _ in 0..=MAX_REDIRECTS {
            // The headers may hold credentials, which are for the server that was called.
            let headers = if Place::of(&url)? == own { &call.headers[..] } else { &[] };
            let reply = self.exchange(call, &url, headers).await?;
            let follows = self.redirects == Redirects::Follow && call.method == Method::GET;
            if !follows || !matches!(reply.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(reply);
            }
            let location = reply.headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
            url = redirected(&url, location)?;
        }
        Err(format!("stopped after {MAX_REDIRECTS} redirects"))
    }

    async fn exchange(&self, call: &Call, url: &Uri, headers: &[(HeaderName, HeaderValue)]) -> Result<Reply, String> {
        let place = Place::of(url)?;
        loop {
            let (mut connection, is_fresh) = match self.idle(&place) {
                Some(connection) => (connection, false),
                None => (self.connect(&place).await?, true),
            };
            let response = match connection.send_request(request(call, url, headers)?).await {
                Ok(response) => response,
                // The server may have closed an idle connection.
                Err(_) if !is_fresh => continue,
                Err(error) => return Err(super::describe_http_error(&error)),
            };
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, call.max_response).collect().await.map_err(|error| {
                if error.downcast_ref::<LengthLimitError>().is_some() {
                    format!("the response is larger than {} bytes", call.max_response)
                } else {
                    error.to_string()
                }
            })?;
            self.put(place, connection);
            return Ok(Reply { status: parts.status, headers: parts.headers, body: body.to_bytes() });
        }
    }

    fn idle(&self, place: &Place) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(place)?;
        while let Some((connection, since)) = connections.pop() {
            if since.elapsed() < IDLE_TIMEOUT && connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, place: Place, connection: Connection) {
        let mut idle = self.idle.lock();
        let connections = idle.entry(place).or_default();
        connections.retain(|(connection, since)| since.elapsed() < IDLE_TIMEOUT && !connection.is_closed());
        if connections.len() < MAX_IDLE {
            connections.push((connection, Instant::now()));
        }
    }

    async fn connect(&self, place: &Place) -> Result<Connection, String> {
        let stream = match self.network {
            Some(network) => egress::dial(network, &place.host, place.port).await?,
            None => Route::default().dial(&place.host, place.port).await?,
        };
        if !place.is_tls {
            return handshake(stream).await;
        }
        let host = self.server_name.as_ref().unwrap_or(&place.host);
        let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
        let connected = TlsConnector::from(self.tls.clone()).connect(name, stream).await;
        handshake(UnannouncedEnd(connected.map_err(|error| describe_tls_error(&error, host))?)).await
    }
}

/// A TLS stream whose end counts even if the server did not announce it, as Go's does: many servers close at once. A body
/// with a length is still known to be incomplete.
struct UnannouncedEnd<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for UnannouncedEnd<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UnannouncedEnd<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Connection, String> {
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    knarr_supervisor::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "a connection failed");
        }
    });
    Ok(sender)
}

impl Place {
    fn of(url: &Uri) -> Result<Place, String> {
        let is_tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            other => return Err(format!("unsupported protocol scheme {:?}", other.unwrap_or_default())),
        };
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("http: no Host in request URL".to_owned());
        }
        Ok(Place { is_tls, host, port: url.port_u16().unwrap_or(if is_tls { 443 } else { 80 }) })
    }
}

fn request(call: &Call, url: &Uri, headers: &[(HeaderName, HeaderValue)]) -> Result<Request<Full<Bytes>>, String> {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(path)
        .body(Full::new(call.body.clone()))
        .map_err(|error| error.to_string())?;
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    request.headers_mut().insert(HOST, HeaderValue::from_str(authority).map_err(|error| error.to_string())?);
    for (name, value) in headers {
        request.headers_mut().append(name.clone(), value.clone());
    }
    Ok(request)
}

/// Where a redirect leads: an absolute URL, or a path of the same server.
fn redirected(from: &Uri, location: &str) -> Result<Uri, String> {
    let to: Uri = location.parse().map_err(|error| format!("failed to parse Location header {location:?}: {error}"))?;
    let to = if to.authority().is_some() {
        to
    } else {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = to.into_parts().path_and_query;
        Uri::from_parts(parts).map_err(|error| error.to_string())?
    };
    if to.scheme_str() == Some("https") {
        Ok(to)
    } else {
        Err(format!("redirect to {to} refused: only https is allowed"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_server::TestServer;
    use super::super::tls::{Trust, client_config};
    use super::*;
    use http::Response;

    fn client(server: &TestServer, redirects: Redirects) -> HttpClient {
        let tls = client_config(&Trust::Authorities(server.certificate.clone()), None).unwrap();
        HttpClient::new(tls, None, redirects)
    }

    fn get(url: String) -> Call {
        Call {
            method: Method::GET,
            url: url.parse().unwrap(),
            headers: Vec::new(),
            body: Bytes::new(),
            timeout: Duration::from_secs(10),
            max_response: 1000,
        }
    }

    #[tokio::test]
    async fn large_responses_other_authorities_and_plain_redirects_are_errors() {
        let server = TestServer::respond(None, |request| match request.path.as_str() {
            "/large" => Response::new(Full::new(Bytes::from(vec![b'a'; 2000]))),
            "/plain" => redirect("http://127.0.0.1:1/"),
            "/loop" => redirect("/loop"),
            "/elsewhere" => redirect("/here"),
            _ => Response::new(Full::new(Bytes::from_static(b"here"))),
        })
        .await;
        let url = |path: &str| format!("https://localhost:{}{path}", server.port);
        let following = client(&server, Redirects::Follow);
        assert_eq!(following.send(get(url("/elsewhere"))).await.unwrap().body, "here");
        for (path, why) in
            [("/large", "larger than 1000 bytes"), ("/plain", "only https"), ("/loop", "stopped after 10")]
        {
            let failed = following.send(get(url(path))).await.err().unwrap().to_string();
            assert!(failed.contains(why), "{path}: {failed}");
        }
        let refusing = client(&server, Redirects::Refuse);
        assert_eq!(refusing.send(get(url("/elsewhere"))).await.unwrap().status, 302);
        let other = TestServer::start(|_, _| serde_json::json!({})).await;
        let failed = client(&other, Redirects::Refuse).send(get(url("/"))).await.err().unwrap().to_string();
        let expected = format!(
            "Get \"{}\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
            url("/")
        );
        assert_eq!(failed, expected);
    }

    #[tokio::test]
    async fn credentials_do_not_go_where_a_redirect_leads() {
        let server = TestServer::respond(None, |request| match request.path.as_str() {
            "/same" => redirect("/here"),
            // The same server by another name.
            "/other" => redirect(&format!("https://127.0.0.1:{}/here", host_port(request))),
            _ => Response::new(Full::default()),
        })
        .await;
        let following = client(&server, Redirects::Follow);
        for (path, expected) in [("/same", vec![true, true]), ("/other", vec![true, false])] {
            let mut call = get(format!("https://localhost:{}{path}", server.port));
            call.headers.push((http::header::AUTHORIZATION, HeaderValue::from_static("Bearer secret")));
            assert_eq!(following.send(call).await.unwrap().status, 200, "{path}");
            let received = server.received();
            let with_token: Vec<bool> = received.iter().map(|one| one.headers.contains_key("authorization")).collect();
            assert_eq!(with_token, expected, "{path}");
        }
    }

    fn host_port(request: &super::super::test_server::Received) -> &str {
        request.headers[HOST].to_str().unwrap().rsplit(':').next().unwrap()
    }

    #[tokio::test]
    async fn the_end_of_a_body_need_not_be_announced() {
        struct Ends(&'static [u8]);
        impl AsyncRead for Ends {
            fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                if self.0.is_empty() {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                to.put_slice(self.0);
                self.0 = &[];
                Poll::Ready(Ok(()))
            }
        }
        let mut read = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut UnannouncedEnd(Ends(b"body")), &mut read).await.unwrap();
        assert_eq!(read, b"body");
    }

    fn redirect(to: &str) -> Response<Full<Bytes>> {
        Response::builder().status(302).header(LOCATION, to).body(Full::default()).unwrap()
    }

    #[tokio::test]
    async fn a_silent_server_does_not_hold_a_request_for_longer_than_its_timeout() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls = client_config(&Trust::Anyone, None).unwrap();
        let mut call = get(format!("https://127.0.0.1:{port}/"));
        call.timeout = Duration::from_millis(50);
        let failed = HttpClient::new(tls, None, Redirects::Refuse).send(call).await.err().unwrap();
        assert_eq!(failed.why, "context deadline exceeded");
    }
}
