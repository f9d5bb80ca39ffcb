//! Sends a signed request: with a timeout, and again after failures that pass.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use url::Url;

use crate::{Error, Settings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A part may be uploaded over a slow line.
const MIN_BYTES_PER_SECOND: usize = 64 << 10;
const ATTEMPTS: u32 = 4;
/// Lists have up to a thousand keys of up to a thousand bytes each.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
const MAX_CODE_BYTES: usize = 200;

/// How long the storage is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Timeouts {
    /// For the start of a response, in addition to the time in which a slow line carries the request.
    pub(crate) response: Duration,
    /// Between two pieces of a response, and for a whole response that is held in memory.
    pub(crate) stall: Duration,
    /// Before the second attempt.
    pub(crate) backoff: Duration,
}

const TIMEOUTS: Timeouts =
    Timeouts { response: Duration::from_secs(60), stall: Duration::from_secs(60), backoff: Duration::from_millis(500) };

/// Sends requests to the storage.
#[derive(Clone)]
pub(crate) struct Sender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The endpoint without path and query, for messages.
    server: String,
    pub(crate) timeouts: Timeouts,
}

impl Sender {
    pub(crate) fn new(settings: &Settings, server: String) -> Result<Self, Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.map_err(Error::Tls)?.with_root_certificates(roots(settings)?).with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.wrap_connector(tcp));
        Ok(Self { client, server, timeouts: TIMEOUTS })
    }

    /// The response to a request, once it is a success. `sign` is called for each attempt: signatures expire.
    pub(crate) async fn send(
        &self,
        method: &Method,
        sign: impl Fn() -> Result<Url, Error>,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let mut backoff = self.timeouts.backoff;
        for attempt in 1.. {
            let error = match self.attempt(method, &sign()?, body.clone()).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            if attempt >= ATTEMPTS || !is_temporary(&error) {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "retrying a request to the object storage");
            tokio::time::sleep(backoff).await;
            backoff *= 2;
        }
        unreachable!("the last attempt returns")
    }

    async fn attempt(&self, method: &Method, url: &Url, body: Bytes) -> Result<Response<Incoming>, Error> {
        let sent_within = Duration::from_secs((body.len() / MIN_BYTES_PER_SECOND) as u64);
        let request = Request::builder().method(method).uri(url.as_str()).body(Full::new(body));
        let request = request.map_err(|_| Error::Endpoint)?;
        let pending = tokio::time::timeout(self.timeouts.response + sent_within, self.client.request(request));
        let response = pending.await.map_err(|_| Error::Timeout(self.server.clone()))?;
        // The error of the client does not contain the URL.
        let response =
            response.map_err(|source| Error::Connect { server: self.server.clone(), source: Box::new(source) })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = self.text(response).await.unwrap_or_default();
        Err(Error::Status { server: self.server.clone(), status, code: code(&text) })
    }

    /// A whole response of limited size.
    pub(crate) async fn text(&self, response: Response<Incoming>) -> Result<String, Error> {
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect();
        let body = tokio::time::timeout(self.timeouts.stall, body).await;
        let body = body.map_err(|_| Error::Timeout(self.server.clone()))?.map_err(|source| {
            let is_too_large = source.is::<LengthLimitError>();
            if is_too_large { self.unexpected() } else { Error::Connect { server: self.server.clone(), source } }
        })?;
        String::from_utf8(body.to_bytes().into()).map_err(|_| self.unexpected())
    }

    /// The next piece of a response.
    pub(crate) async fn piece(&self, body: &mut Incoming) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(self.timeouts.stall, body.frame()).await;
            let frame = frame.map_err(|_| Error::Timeout(self.server.clone()))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame =
                frame.map_err(|source| Error::Connect { server: self.server.clone(), source: Box::new(source) })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn unexpected(&self) -> Error {
        Error::Response(self.server.clone())
    }

    /// The error in the body of a response whose status is a success: completing an upload reports its failures so.
    pub(crate) fn failure(&self, status: StatusCode, text: &str) -> Error {
        Error::Status { server: self.server.clone(), status, code: code(text) }
    }
}

fn roots(settings: &Settings) -> Result<rustls::RootCertStore, Error> {
    let mut roots = rustls::RootCertStore::empty();
    match &settings.authority {
        Some(path) => {
            let pem = std::fs::read(path).map_err(|source| Error::File { path: path.clone(), source })?;
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            for certificate in certificates.map_err(|_| Error::Authority(path.clone()))? {
                roots.add(certificate).map_err(Error::Tls)?;
            }
            if roots.is_empty() {
                return Err(Error::Authority(path.clone()));
            }
        }
        // A host without any can still use storage over plain HTTP.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    Ok(roots)
}

fn is_temporary(error: &Error) -> bool {
    match error {
        Error::Connect { .. } | Error::Timeout(_) => true,
        Error::Status { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
        _ => false,
    }
}

/// What went wrong, from an error in XML: `NoSuchBucket (The specified bucket does not exist)`.
fn code(text: &str) -> String {
    let element = |name: &str| {
        let rest = text.split_once(&format!("<{name}>"))?.1;
        let value = rest.split_once("</")?.0;
        let short: String = value.chars().filter(|letter| !letter.is_control()).take(MAX_CODE_BYTES).collect();
        Some(short)
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code} ({message})"),
        (Some(code), None) => code,
        _ => "no reason was given".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_storage_are_read() {
        for (text, expected) in [
            ("<Error><Code>NoSuchKey</Code><Message>It is\ngone</Message></Error>", "NoSuchKey (It isgone)"),
            ("<Error><Code>SlowDown</Code></Error>", "SlowDown"),
            ("<html>Bad gateway</html>", "no reason was given"),
            ("<Code>", "no reason was given"),
            ("", "no reason was given"),
        ] {
            assert_eq!(code(text), expected);
        }
    }
}
