//! A small S3 server on loopback for tests: verifies signatures, keeps objects in memory, and fails on request.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

pub const KEY: &str = "test-key";
pub const SECRET: &str = "test-secret";
pub const REGION: &str = "us-east-1";
pub const BUCKET: &str = "backups";
/// Few, so that lists have several pages.
const PAGE: usize = 2;
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<String, Bytes>,
    /// The parts of unfinished uploads, by upload.
    pub uploads: BTreeMap<String, BTreeMap<u16, Bytes>>,
    /// The responses to the next requests; the rest succeeds.
    pub failures: VecDeque<StatusCode>,
    /// Completing an upload responds with a success that contains an error.
    pub fails_to_complete: bool,
    pub requests: usize,
}

pub struct FakeStorage {
    pub address: SocketAddr,
    pub state: Arc<Mutex<State>>,
}

impl FakeStorage {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| respond(shared.clone(), request));
                    // Clients may go away.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(connection), service)
                        .await;
                });
            }
        });
        Self { address, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a credentials file.
    pub fn credentials(path: &std::path::Path, secret: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::write(path, format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n"))
            .unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn keys(&self) -> Vec<String> {
        self.state.lock().unwrap().objects.keys().cloned().collect()
    }
}

async fn respond(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut state = state.lock().unwrap();
    state.requests += 1;
    if let Some(status) = state.failures.pop_front() {
        return Ok(refused(status, "SlowDown"));
    }
    if !is_signed(&head) {
        return Ok(refused(StatusCode::FORBIDDEN, "SignatureDoesNotMatch"));
    }
    let query = query(head.uri.query().unwrap_or_default());
    let Some(key) = head.uri.path().strip_prefix(&format!("/{BUCKET}")) else {
        return Ok(refused(StatusCode::NOT_FOUND, "NoSuchBucket"));
    };
    let key = decoded(key.trim_start_matches('/'));
    Ok(state.respond(&head.method, &key, &query, body))
}

impl State {
    fn respond(
        &mut self,
        method: &Method,
        key: &str,
        query: &BTreeMap<String, String>,
        body: Bytes,
    ) -> Response<Full<Bytes>> {
        let upload = query.get("uploadId").map(String::as_str);
        match (method.as_str(), upload) {
            ("GET", _) if query.contains_key("list-type") => self.list(query),
            ("GET", _) => match self.objects.get(key) {
                Some(object) => Response::new(Full::new(object.clone())),
                None => refused(StatusCode::NOT_FOUND, "NoSuchKey"),
            },
            ("POST", None) if query.contains_key("uploads") => {
                let id = format!("upload+{}/=", self.uploads.len());
                self.uploads.insert(id.clone(), BTreeMap::new());
                xml("InitiateMultipartUploadResult", &format!("<UploadId>{id}</UploadId>"))
            }
            ("PUT", Some(upload)) => {
                let number = query["partNumber"].parse().unwrap();
                self.uploads.get_mut(upload).unwrap().insert(number, body);
                Response::builder().header("etag", format!("\"part {number}\"")).body(Full::default()).unwrap()
            }
            ("POST", Some(_)) if self.fails_to_complete => xml("Error", "<Code>InternalError</Code>"),
            ("POST", Some(upload)) => {
                let parts = self.uploads.remove(upload).unwrap();
                let text = String::from_utf8(body.into()).unwrap().replace("&quot;", "\"");
                assert!(parts.keys().all(|number| text.contains(&format!("\"part {number}\""))), "{text}");
                self.objects.insert(key.to_owned(), parts.into_values().flatten().collect());
                xml("CompleteMultipartUploadResult", "<ETag>whole</ETag>")
            }
            ("DELETE", Some(upload)) => {
                self.uploads.remove(upload);
                Response::builder().status(204).body(Full::default()).unwrap()
            }
            ("PUT", None) => {
                self.objects.insert(key.to_owned(), body);
                Response::new(Full::default())
            }
            ("DELETE", None) => {
                self.objects.remove(key);
                Response::builder().status(204).body(Full::default()).unwrap()
            }
            _ => refused(StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
        }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Response<Full<Bytes>> {
        let prefix = query.get("prefix").map(String::as_str).unwrap_or_default();
        let after = query.get("continuation-token").map(String::as_str).unwrap_or_default();
        let mut keys = self.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let page: Vec<_> = keys.by_ref().take(PAGE).collect();
        let mut text: String = page
            .iter()
            .map(|(key, value)| {
                let key = encoded(key);
                format!("<Contents><Key>{key}</Key><Size>{}</Size></Contents>", value.len())
            })
            .collect();
        let is_truncated = keys.next().is_some();
        if let Some((last, _)) = page.last().filter(|_| is_truncated) {
            text += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
        }
        xml(
            "ListBucketResult",
            &format!("<EncodingType>url</EncodingType><IsTruncated>{is_truncated}</IsTruncated>{text}"),
        )
    }
}

fn xml(name: &str, content: &str) -> Response<Full<Bytes>> {
    let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><{name} xmlns=\"{NAMESPACE}\">{content}</{name}>");
    Response::new(Full::new(text.into()))
}

fn refused(status: StatusCode, code: &str) -> Response<Full<Bytes>> {
    let text = format!("<Error><Code>{code}</Code><Message>as the test says</Message></Error>");
    Response::builder().status(status).body(Full::new(text.into())).unwrap()
}

fn query(text: &str) -> BTreeMap<String, String> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let letter = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(letter).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next().unwrap()).to_digit(16).unwrap() as u8;
        plain.push(if byte == b'%' { digit() * 16 + digit() } else { byte });
    }
    String::from_utf8(plain).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// Signature version 4, in the query.
fn is_signed(head: &http::request::Parts) -> bool {
    let text = head.uri.query().unwrap_or_default();
    let values = query(text);
    let (Some(date), Some(signature)) = (values.get("X-Amz-Date"), values.get("X-Amz-Signature")) else { return false };
    let mut pairs: Vec<&str> = text.split('&').filter(|pair| !pair.starts_with("X-Amz-Signature=")).collect();
    pairs.sort_unstable();
    let host = head.headers["host"].to_str().unwrap();
    let canonical =
        format!("{}\n{}\n{}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD", head.method, head.uri.path(), pairs.join("&"));
    let scope = format!("{}/{REGION}/s3/aws4_request", &date[..8]);
    if values.get("X-Amz-Credential") != Some(&format!("{KEY}/{scope}")) {
        return false;
    }
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let key = [&date[..8], REGION, "s3", "aws4_request"]
        .iter()
        .fold(format!("AWS4{SECRET}").into_bytes(), |key, text| mac(&key, text));
    hex(&mac(&key, &format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}"))) == *signature
}
