//! One HTTP/2 connection to the server, shared by all who ask.

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

use crate::server::Server;

#[derive(Clone)]
pub struct Client {
    sender: http2::SendRequest<Full<Bytes>>,
    base: Arc<str>,
    bearer: Arc<str>,
}

impl Client {
    pub async fn connect(server: &Server) -> anyhow::Result<Client> {
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
        // How the connection ends, its requests tell.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Client {
            sender,
            base: format!("https://{}", server.address).into(),
            bearer: format!("Bearer {}", server.token).into(),
        })
    }

    pub async fn create(&self, path: &str, body: Bytes) -> anyhow::Result<()> {
        self.ask(Method::POST, path, body).await?.into_body().collect().await?;
        Ok(())
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        Ok(self.open(path).await?.collect().await?.to_bytes())
    }

    /// Begins to read: the answer's head is there, its body is to come.
    pub async fn open(&self, path: &str) -> anyhow::Result<Incoming> {
        Ok(self.ask(Method::GET, path, Bytes::new()).await?.into_body())
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("authorization", &*self.bearer)
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let answer = self.sender.clone().send_request(request).await.with_context(|| path.to_owned())?;
        if !answer.status().is_success() {
            let status = answer.status();
            let told = answer.into_body().collect().await?.to_bytes();
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&told));
        }
        Ok(answer)
    }
}
