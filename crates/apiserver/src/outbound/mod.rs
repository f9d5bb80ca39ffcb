//! Requests to other servers: webhooks, aggregated API servers and kubelets.
//!
//! Errors use the messages of Kubernetes, which clients see. Connections to webhooks are pooled.

mod address;
mod destination;
pub mod egress;
mod http_client;
mod kubeconfig;
pub mod kubelet_tls;
mod pool;
mod retry;
#[cfg(test)]
pub(crate) mod test_server;
mod tls;

pub use address::{AddressError, check as check_addresses, is_global_unicast, lookup};
pub use destination::Destination;
pub(crate) use destination::decode_bundle;
pub use http_client::{Call, CallFailed, HttpClient, Redirects, Reply};
#[cfg(test)]
pub(crate) use kubeconfig::tests::kubeconfig as test_kubeconfig;
pub use kubeconfig::{ConfiguredWebhook, KubeconfigError, Presented, User, WebhookFailure, WebhookUsers};
pub use pool::{Connection, dial};
pub use retry::with_backoff;
pub use tls::{Identity, Trust, client_config, describe_tls_error};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use knarr_traces::TraceContext;

use crate::object_reader::ObjectReader;
use pool::Pool;

/// The largest response of a webhook.
const MAX_RESPONSE_SIZE: usize = 16 * 1024 * 1024;
const USER_AGENT_VALUE: &str = "kube-apiserver-admission";

/// Calls webhooks.
#[derive(Default)]
pub struct WebhookClient {
    pool: Pool,
    /// Connections that nodes have opened to this server.
    tunnels: Arc<knarr_tunnel::Tunnels>,
}

/// A request to a webhook.
pub struct Outgoing<'a> {
    pub body: Bytes,
    /// For the whole exchange.
    pub timeout: Duration,
    pub trace: Option<TraceContext>,
    /// Whose credentials are shown.
    pub user: Option<&'a User>,
}

impl Outgoing<'_> {
    /// A request without credentials.
    pub fn new(body: Bytes, timeout: Duration) -> Self {
        Outgoing { body, timeout, trace: None, user: None }
    }
}

/// A webhook sent no usable response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No response.
    #[error("Post \"{url}\": {why}")]
    Unreachable { url: String, why: String },
    /// The response is an error.
    #[error("{text}")]
    Refused { code: u16, text: String },
}

impl WebhookClient {
    pub fn new(tunnels: Arc<knarr_tunnel::Tunnels>) -> Self {
        WebhookClient { pool: Pool::default(), tunnels }
    }

    /// Sends JSON and returns the body of a successful response.
    pub async fn post(
        &self,
        objects: &dyn ObjectReader,
        to: &Destination,
        request: Outgoing<'_>,
    ) -> Result<Bytes, CallError> {
        let path = with_timeout(&to.path, request.timeout);
        let unreachable =
            |why: String| CallError::Unreachable { url: format!("https://{}{path}", to.authority()), why };
        let exchanged = tokio::time::timeout(request.timeout, self.exchange(objects, to, &path, &request)).await;
        let (code, body) = match exchanged {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => return Err(unreachable(why)),
            Err(_) => return Err(unreachable("context deadline exceeded".to_owned())),
        };
        if code.is_success() {
            return Ok(body);
        }
        Err(CallError::Refused { code: code.as_u16(), text: describe_failure(code, &body) })
    }

    async fn exchange(
        &self,
        objects: &dyn ObjectReader,
        to: &Destination,
        path: &str,
        outgoing: &Outgoing<'_>,
    ) -> Result<(StatusCode, Bytes), String> {
        let presented = match outgoing.user {
            Some(user) => user.present().await?,
            None => Presented::default(),
        };
        let identity = presented.identity.as_ref();
        loop {
            let (mut connection, fresh) = match self.pool.take(to, identity) {
                Some(connection) => (connection, false),
                None => (pool::connect(objects, &self.tunnels, to, identity).await?, true),
            };
            let mut request = request(to, path, outgoing.body.clone())?;
            if let Some(trace) = outgoing.trace {
                request.headers_mut().insert("traceparent", trace.header());
            }
            for (name, value) in &presented.headers {
                request.headers_mut().append(name.clone(), value.clone());
            }
            let response = match connection.send_request(request).await {
                Ok(response) => response,
                // The webhook may have closed an idle connection.
                Err(_) if !fresh => continue,
                Err(error) => return Err(describe_http_error(&error)),
            };
            let code = response.status();
            let body = Limited::new(response.into_body(), MAX_RESPONSE_SIZE).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            self.pool.put(to, identity.cloned(), connection);
            if let (StatusCode::UNAUTHORIZED, Some(user)) = (code, outgoing.user) {
                user.refused(&presented).await;
            }
            return Ok((code, body));
        }
    }
}

fn request(to: &Destination, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::post(path).body(Full::new(body)).map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(&to.authority()).map_err(|error| error.to_string())?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
    headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
    Ok(request)
}

fn with_timeout(path: &str, timeout: Duration) -> String {
    let sign = if path.contains('?') { '&' } else { '?' };
    let path = if path.is_empty() { "/" } else { path };
    format!("{path}{sign}timeout={}s", timeout.as_secs())
}

fn describe_http_error(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        "EOF".to_owned()
    } else {
        error.to_string()
    }
}

/// The message of Kubernetes clients for an error response.
fn describe_failure(code: StatusCode, body: &[u8]) -> String {
    match code.as_u16() {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => "forbidden".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        413 => "the request is too large".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        code if code >= 500 => {
            let text = String::from_utf8_lossy(body);
            let text = match text.trim() {
                "" => "unknown",
                text => text,
            };
            format!("an error on the server ({text:?}) has prevented the request from succeeding")
        }
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2020-8561.
    #[tokio::test]
    async fn redirects_of_webhooks_are_not_followed() {
        let elsewhere = test_server::TestServer::start(|_, _| serde_json::json!({"ok": true})).await;
        for code in [301, 302, 307, 308] {
            let target = format!("https://localhost:{}/", elsewhere.port);
            let webhook = test_server::TestServer::respond(None, move |_| {
                http::Response::builder()
                    .status(code)
                    .header(http::header::LOCATION, &target)
                    .body(Full::new(Bytes::from_static(b"a secret")))
                    .unwrap()
            })
            .await;
            let to = Destination::of_webhook(&webhook.client_config("//admit")).unwrap();
            let objects = crate::object_reader::tests::Fixed::new(Vec::new());
            let client = WebhookClient::default();
            let error =
                client.post(&objects, &to, Outgoing::new(Bytes::new(), Duration::from_secs(10))).await.unwrap_err();
            let text = format!("the server responded with the status code {code} but did not return more information");
            assert_eq!(error, CallError::Refused { code, text });
            let paths: Vec<String> = webhook.received().into_iter().map(|request| request.path).collect();
            assert_eq!(paths, ["/admit?timeout=10s"]);
        }
        assert_eq!(elsewhere.connections(), 0);
    }

    /// The files are read for each call, since certificates are renewed.
    #[tokio::test]
    async fn webhooks_are_called_with_client_certificates() {
        let directory = tempfile::tempdir().unwrap();
        let now = jiff::Timestamp::now();
        let pki = crate::pki::Pki::open(&directory.path().join("pki"), Default::default(), now).unwrap();
        let admin = pki.admin(now).unwrap();
        let webhook = test_server::TestServer::respond(Some(&pki.authority.certificate), |_| {
            http::Response::new(Full::new(Bytes::from_static(b"{}")))
        })
        .await;
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("crt", &admin.certificate);
        write("key", &admin.key);
        write(
            "kubeconfig",
            &format!(
                "users: [{{name: 'localhost:{}', user: {{client-certificate: crt, client-key: key}}}}]",
                webhook.port
            ),
        );
        let users = WebhookUsers::read(&directory.path().join("kubeconfig")).unwrap();
        let to = Destination::of_webhook(&webhook.client_config("/admit")).unwrap();
        let objects = crate::object_reader::tests::Fixed::new(Vec::new());
        let client = WebhookClient::default();
        let outgoing = || Outgoing::new(Bytes::from_static(b"{}"), Duration::from_secs(10));
        for user in [None, users.of(&to.host, to.port)] {
            client.post(&objects, &to, Outgoing { user: user.map(Arc::as_ref), ..outgoing() }).await.unwrap();
        }
        client.post(&objects, &to, outgoing()).await.unwrap();
        let shown: Vec<bool> = webhook.received().iter().map(|request| request.certificate).collect();
        assert_eq!(shown, [false, true, false]);
        // Connections are used again, but only for the same certificate.
        assert_eq!(webhook.connections(), 2);
        write("crt", "no certificate");
        let user = users.of(&to.host, to.port).map(Arc::as_ref);
        let failed = client.post(&objects, &to, Outgoing { user, ..outgoing() }).await.unwrap_err();
        assert!(matches!(failed, CallError::Unreachable { .. }), "{failed}");
    }

    #[test]
    fn the_timeout_is_sent_to_the_webhook() {
        assert_eq!(with_timeout("/admit", Duration::from_secs(10)), "/admit?timeout=10s");
        assert_eq!(with_timeout("", Duration::from_secs(3)), "/?timeout=3s");
    }
}
