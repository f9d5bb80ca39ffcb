//! A listening server with short timeouts, and clients of it, for tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::listen::{Limits, serve_with_limits};
use crate::pki::{Identity, Leaf, Pki};
use crate::request_tests::{Cluster, MAPS, map};

pub const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// Far longer than any step takes; a test that reaches it has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A listening server with short timeouts.
pub struct ListeningServer {
    pub cluster: Cluster,
    pub address: SocketAddr,
    pub pki: Pki,
    pub serving: tokio::task::JoinHandle<()>,
    _directory: tempfile::TempDir,
}

pub type Stream = TlsStream<TcpStream>;

impl ListeningServer {
    pub async fn new() -> ListeningServer {
        let cluster = Cluster::new().await;
        cluster.json("POST", MAPS, map("m", json!({}))).await;
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Identity::default(), jiff::Timestamp::now()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = cluster.server().clone();
        let limits = Limits {
            handshake: SHORT_TIMEOUT,
            head: SHORT_TIMEOUT,
            ping_interval: SHORT_TIMEOUT,
            ping: SHORT_TIMEOUT,
            ..Limits::default()
        };
        let stopping = server.backend.stopping.clone();
        let serving = tokio::spawn(serve_with_limits(server, listener, pki.serving.clone(), stopping, limits));
        ListeningServer { cluster, address, pki, serving, _directory: directory }
    }

    pub async fn connect(&self, protocol: &str) -> Stream {
        let admin = self.pki.admin(jiff::Timestamp::now()).unwrap();
        self.connect_with(&self.client(protocol, &admin)).await
    }

    /// The configuration of a client with a certificate.
    pub fn client(&self, protocol: &str, leaf: &Leaf) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pki.authority.certificate.as_bytes()).unwrap()).unwrap();
        let chain = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Arc::new(config)
    }

    pub async fn connect_with(&self, config: &Arc<rustls::ClientConfig>) -> Stream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::clone(config)).connect(name, stream).await.unwrap()
    }

    /// Sends bytes over HTTP/1.1 and reads until the server closes the connection.
    pub async fn send(&self, bytes: &[u8]) -> String {
        let (mut reader, mut writer) = tokio::io::split(self.connect("http/1.1").await);
        let bytes = bytes.to_vec();
        let writing = tokio::spawn(async move {
            // The server may close the connection before everything is sent.
            let _ = writer.write_all(&bytes).await;
            let _ = writer.flush().await;
            writer
        });
        let mut response = Vec::new();
        let _ = tokio::time::timeout(TEST_TIMEOUT, reader.read_to_end(&mut response))
            .await
            .expect("the connection stays open");
        drop(writing.await);
        String::from_utf8_lossy(&response).into_owned()
    }

    pub async fn http2(&self) -> http2::SendRequest<Full<Bytes>> {
        Self::http2_over(self.connect("h2").await).await
    }

    pub async fn http2_over(stream: Stream) -> http2::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(stream);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        // The sender sees errors of the connection.
        tokio::spawn(async move { drop(connection.await) });
        sender
    }

    pub fn request(&self, method: &str, path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap()
    }

    /// Whether a well-behaved client is served by either protocol.
    pub async fn check_alive(&self) {
        let response =
            self.send(format!("GET {MAPS}/m HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        let path = format!("{MAPS}/m");
        let response = self.http2().await.send_request(self.request("GET", &path, vec![])).await.unwrap();
        assert_eq!(response.status(), 200);
    }

    pub async fn stop(self) {
        self.cluster.started.stop.send_replace(true);
        tokio::time::timeout(TEST_TIMEOUT, self.serving).await.expect("the server stops").unwrap();
    }
}

/// Waits until the server has closed the connection.
pub async fn is_closed(mut stream: impl tokio::io::AsyncRead + Unpin) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut rest)).await.is_ok()
}
