//! A registry on a host that serves its only image to authenticated clients.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;

use super::host::TestHost;
use super::image;

pub const USER: &str = "reader";
pub const PASSWORD: &str = "sesame";

/// Serves until dropped.
pub struct Registry {
    runtime: Option<tokio::runtime::Runtime>,
    /// The image's name for pods on its host.
    pub image: String,
}

const REPOSITORY: &str = "private/busybox";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

struct Shelf {
    authorization: String,
    manifest: String,
    blobs: HashMap<String, Bytes>,
}

impl Registry {
    pub fn serve(host: &TestHost, port: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        // A socket stays in the network namespace in which it was created. containerd connects to loopback registries
        // without TLS.
        let socket = host.within(|| std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))));
        let socket = socket.expect("a free port");
        socket.set_nonblocking(true).expect("a socket");
        let image = format!("127.0.0.1:{port}/{REPOSITORY}:1");
        let shelf = Arc::new(Shelf::with(&image));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(socket).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let shelf = shelf.clone();
                let service = tower::service_fn(move |request| {
                    let response = shelf.response(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(async move {
                    let service = TowerToHyperService::new(service);
                    // A closed connection is not an error.
                    let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Registry { runtime: Some(runtime), image }
    }
}

impl Shelf {
    fn with(image: &str) -> Self {
        let files = files(&image::private(image));
        let index: serde_json::Value = serde_json::from_slice(&files["index.json"]).expect("an index");
        let manifest = index["manifests"][0]["digest"].as_str().expect("a digest").to_owned();
        let blobs = files.into_iter().filter_map(|(path, content)| {
            path.strip_prefix("blobs/sha256/").map(|digest| (format!("sha256:{digest}"), Bytes::from(content)))
        });
        let word = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
        Shelf { authorization: format!("Basic {word}"), manifest, blobs: blobs.collect() }
    }

    fn response<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let with_status = |status: StatusCode| {
            let mut response = Response::new(Full::default());
            *response.status_mut() = status;
            response
        };
        if request.headers().get(AUTHORIZATION).is_none_or(|shown| shown != self.authorization.as_str()) {
            let mut response = with_status(StatusCode::UNAUTHORIZED);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"private\""));
            return response;
        }
        let path = request.uri().path();
        let (digest, kind) = match path.strip_prefix("/v2/").and_then(|rest| rest.strip_prefix(REPOSITORY)) {
            Some("/manifests/1") => (self.manifest.as_str(), MANIFEST),
            Some(rest) => {
                let digest = rest.rsplit('/').next().unwrap_or_default();
                (digest, if digest == self.manifest { MANIFEST } else { "application/octet-stream" })
            }
            None => return with_status(StatusCode::NOT_FOUND),
        };
        let Some(blob) = self.blobs.get(digest) else { return with_status(StatusCode::NOT_FOUND) };
        let mut response = Response::new(Full::new(blob.clone()));
        let digest = HeaderValue::from_str(digest).expect("a digest");
        response.headers_mut().insert("docker-content-digest", digest);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }
}

/// The files of a tar archive with short names.
fn files(archive: &[u8]) -> HashMap<String, Vec<u8>> {
    const BLOCK: usize = 512;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let mut found = HashMap::new();
    let mut rest = archive;
    while rest.len() >= BLOCK && rest[0] != 0 {
        let (name, size) = (text(&rest[..100]), usize::from_str_radix(&text(&rest[124..136]), 8).expect("a size"));
        found.insert(name, rest[BLOCK..BLOCK + size].to_vec());
        rest = &rest[BLOCK + size.next_multiple_of(BLOCK)..];
    }
    found
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
