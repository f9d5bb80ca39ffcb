//! A server for tests: answers JSON with JSON over TLS, on a port of this machine.

use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub struct TestServer {
    pub port: u16,
    /// The certificate it signed itself.
    pub certificate: String,
    serving: tokio::task::JoinHandle<()>,
}

impl TestServer {
    /// Answers every request with what `answer` makes of its path and body.
    pub async fn start(answer: impl Fn(&str, Value) -> Value + Send + Sync + 'static) -> TestServer {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(answer);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request: Request<Incoming>| {
                        let answer = answer.clone();
                        async move {
                            let path = request.uri().path().to_owned();
                            let body = request.into_body().collect().await.unwrap().to_bytes();
                            let told = serde_json::from_slice(&body).unwrap_or(Value::Null);
                            let said = Bytes::from(answer(&path, told).to_string());
                            Ok::<_, Infallible>(Response::new(Full::new(said)))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        TestServer { port, certificate: made.cert.pem(), serving }
    }

    /// How objects name it.
    pub fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("https://localhost:{}{path}", self.port), "caBundle": STANDARD.encode(&self.certificate)})
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
