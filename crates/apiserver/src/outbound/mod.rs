//! Calls to servers that the cluster names: webhooks and aggregated APIs.
//!
//! In: a destination, as an object of the API names it, and what to send. Out: the answer, or why there is none, in the
//! words that clients of Kubernetes know. Connections are kept and used again.

mod address;
mod destination;
mod pass;
mod pool;
#[cfg(test)]
pub(crate) mod testing;
mod tls;

pub use address::{AddressError, check as check_addresses, is_global_unicast, lookup};
pub use destination::Destination;
pub(crate) use destination::decode_bundle;
pub use pass::{Passed, failed_upgrade, onward_headers, pass};
pub use pool::{Connection, dial};
pub use tls::{Identity, Trust, client_config, shown_tls_error};

pub(crate) use tls::AnyCertificate;

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};

use crate::object_reader::ObjectReader;
use pool::Pool;

/// No answer of a webhook is larger.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;
const AGENT: &str = "kube-apiserver-admission";

/// What keeps connections to webhooks.
#[derive(Default)]
pub struct Outbound {
    pool: Pool,
}

/// Why a webhook gave no answer that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nobody answered.
    #[error("Post \"{url}\": {why}")]
    Unreachable { url: String, why: String },
    /// The answer is a failure.
    #[error("{text}")]
    Refused { code: u16, text: String },
}

impl Outbound {
    /// Sends JSON and gives the body of a successful answer.
    pub async fn post(
        &self,
        objects: &dyn ObjectReader,
        to: &Destination,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, CallError> {
        let path = with_timeout(&to.path, limit);
        let unreachable =
            |why: String| CallError::Unreachable { url: format!("https://{}{path}", to.authority()), why };
        let answered = tokio::time::timeout(limit, self.exchange(objects, to, &path, body)).await;
        let (code, body) = match answered {
            Ok(Ok(answered)) => answered,
            Ok(Err(why)) => return Err(unreachable(why)),
            Err(_) => return Err(unreachable("context deadline exceeded".to_owned())),
        };
        if code.is_success() {
            return Ok(body);
        }
        Err(CallError::Refused { code: code.as_u16(), text: shown_failure(code, &body) })
    }

    async fn exchange(
        &self,
        objects: &dyn ObjectReader,
        to: &Destination,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        loop {
            let (mut connection, fresh) = match self.pool.take(to) {
                Some(connection) => (connection, false),
                None => (pool::connect(objects, to).await?, true),
            };
            let request = request(to, path, body.clone())?;
            let answer = match connection.send_request(request).await {
                Ok(answer) => answer,
                // The other end may have closed a connection that nobody used for a while.
                Err(_) if !fresh => continue,
                Err(error) => return Err(shown_http_error(&error)),
            };
            let code = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            self.pool.keep(to, connection);
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
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Ok(request)
}

fn with_timeout(path: &str, limit: Duration) -> String {
    let sign = if path.contains('?') { '&' } else { '?' };
    let path = if path.is_empty() { "/" } else { path };
    format!("{path}{sign}timeout={}s", limit.as_secs())
}

fn shown_http_error(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        "EOF".to_owned()
    } else {
        error.to_string()
    }
}

/// What a client says of an answer that is no success.
fn shown_failure(code: StatusCode, body: &[u8]) -> String {
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
    async fn a_webhook_redirects_no_call() {
        let elsewhere = testing::TestServer::start(|_, _| serde_json::json!({"ok": true})).await;
        for code in [301, 302, 307, 308] {
            let target = format!("https://localhost:{}/", elsewhere.port);
            let webhook = testing::TestServer::respond(None, move |_| {
                http::Response::builder()
                    .status(code)
                    .header(http::header::LOCATION, &target)
                    .body(Full::new(Bytes::from_static(b"a secret")))
                    .unwrap()
            })
            .await;
            let to = Destination::of_webhook(&webhook.client_config("//admit")).unwrap();
            let objects = crate::object_reader::tests::Fixed::new(Vec::new());
            let outbound = Outbound::default();
            let error = outbound.post(&objects, &to, Bytes::new(), Duration::from_secs(10)).await.unwrap_err();
            let text = format!("the server responded with the status code {code} but did not return more information");
            assert_eq!(error, CallError::Refused { code, text });
            let asked: Vec<String> = webhook.received().into_iter().map(|request| request.path).collect();
            assert_eq!(asked, ["/admit?timeout=10s"]);
        }
        assert_eq!(elsewhere.connections(), 0);
    }

    #[test]
    fn timeouts_are_told_to_the_other_end() {
        assert_eq!(with_timeout("/admit", Duration::from_secs(10)), "/admit?timeout=10s");
        assert_eq!(with_timeout("", Duration::from_secs(3)), "/?timeout=3s");
    }
}
