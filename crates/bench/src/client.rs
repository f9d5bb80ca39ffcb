//! A client with one HTTP/2 connection to the API server, shared by its clones.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How to reach and authenticate to a server.
#[derive(Clone)]
pub struct Endpoint {
    /// Its address and port.
    pub address: SocketAddr,
    /// The bearer token.
    pub token: &'static str,
    /// The PEM file of the CA that signed the server's certificate.
    pub authority: PathBuf,
}

/// A connection to the API server.
#[derive(Clone)]
pub struct Client {
    sender: http2::SendRequest<Full<Bytes>>,
    base: Arc<str>,
    bearer: Arc<str>,
}

impl Endpoint {
    /// The same server for another user.
    pub fn with_token(&self, token: &'static str) -> Endpoint {
        Endpoint { token, ..self.clone() }
    }
}

impl Client {
    /// Connects to a server.
    pub async fn connect(server: &Endpoint) -> anyhow::Result<Client> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&server.authority)?)?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(server.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::from(server.address.ip());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // A failure of the connection shows in its requests.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Client {
            sender,
            base: format!("https://{}", server.address).into(),
            bearer: format!("Bearer {}", server.token).into(),
        })
    }

    /// A client of another user on the same connection.
    pub fn with_token(&self, token: &str) -> Client {
        Client { bearer: format!("Bearer {token}").into(), ..self.clone() }
    }

    /// Creates an object.
    pub async fn create(&self, path: &str, body: Bytes) -> anyhow::Result<()> {
        self.request(Method::POST, path, body).await?.into_body().collect().await?;
        Ok(())
    }

    /// Reads a whole response.
    pub async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        Ok(self.open(path).await?.collect().await?.to_bytes())
    }

    /// Starts to read: returns the response's body after its head has arrived.
    pub async fn open(&self, path: &str) -> anyhow::Result<Incoming> {
        Ok(self.request(Method::GET, path, Bytes::new()).await?.into_body())
    }

    /// Replaces an object and reads the response.
    pub async fn replace(&self, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        Ok(self.request(Method::PUT, path, body).await?.into_body().collect().await?.to_bytes())
    }

    /// Sends a request and returns the response, whatever its status.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("authorization", &*self.bearer);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body))?;
        self.sender.clone().send_request(request).await.with_context(|| path.to_owned())
    }

    async fn request(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let headers = [("accept", "application/json"), ("content-type", "application/json")];
        let response = self.send(method, path, &headers, body).await?;
        if !response.status().is_success() {
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(response)
    }
}
