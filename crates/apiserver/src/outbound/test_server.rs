//! A TLS server on loopback for tests, which records the requests it received.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub struct TestServer {
    pub port: u16,
    /// Its self-signed certificate.
    pub certificate: String,
    recorded: Arc<Recorded>,
    serving: tokio::task::JoinHandle<()>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// With its parameters.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether the client presented a certificate of the requested authority.
    pub certificate: bool,
}

#[derive(Default)]
struct Recorded {
    connections: AtomicUsize,
    requests: Mutex<Vec<Received>>,
}

impl TestServer {
    /// Responds to every request with the JSON that `respond` returns for its path and body.
    pub async fn start(respond: impl Fn(&str, Value) -> Value + Send + Sync + 'static) -> TestServer {
        TestServer::respond(None, move |request| {
            let path = request.path.split('?').next().unwrap_or_default();
            let json = respond(path, serde_json::from_slice(&request.body).unwrap_or(Value::Null));
            Response::new(Full::new(Bytes::from(json.to_string())))
        })
        .await
    }

    /// Responds with whole responses. `client_authority` is the PEM of the authority whose client certificates it requests.
    pub async fn respond(
        client_authority: Option<&str>,
        respond: impl Fn(&Received) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> TestServer {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(generated.signing_key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(client_verifier(client_authority))
            .with_single_cert(vec![generated.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (respond, recorded) = (Arc::new(respond), Arc::new(Recorded::default()));
        let all = recorded.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                all.connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, respond, all) = (acceptor.clone(), respond.clone(), all.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let certificate = stream.get_ref().1.peer_certificates().is_some();
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (respond, all) = (respond.clone(), all.clone());
                        async move {
                            let path = request.uri().to_string();
                            let headers = request.headers().clone();
                            let body = request.into_body().collect().await.unwrap().to_bytes();
                            let received = Received { path, headers, body, certificate };
                            all.requests.lock().push(received.clone());
                            Ok::<_, Infallible>(respond(&received))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        TestServer { port, certificate: generated.cert.pem(), recorded, serving }
    }

    /// The client configuration of a webhook that calls this server.
    pub fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("https://localhost:{}{path}", self.port), "caBundle": STANDARD.encode(&self.certificate)})
    }

    /// The number of connections, successful or not.
    pub fn connections(&self) -> usize {
        self.recorded.connections.load(Ordering::SeqCst)
    }

    /// Removes and returns the requests so far.
    pub fn received(&self) -> Vec<Received> {
        std::mem::take(&mut *self.recorded.requests.lock())
    }
}

fn client_verifier(authority: Option<&str>) -> Arc<dyn ClientCertVerifier> {
    let Some(authority) = authority else { return WebPkiClientVerifier::no_client_auth() };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(aws_lc_rs::default_provider()))
        .allow_unauthenticated()
        .build()
        .unwrap()
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
