//! Fetches a cluster's certificate authority from its server, and trusts it only if it matches the pin.
//!
//! The server sends its authority's certificate in its chain. The TLS handshake succeeds only if that authority has the pinned
//! key and signed the server's certificate, so nothing is ever sent to another server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use knarr_identity::{ServerTrust, ServerVerifier, ShownCertificate};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Pin;

/// The timeout of a connection; a server that does not respond is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The certificate (DER) of the server's certificate authority.
pub async fn fetch(server: &http::Uri, pin: Pin) -> anyhow::Result<Vec<u8>> {
    Ok(connect(server, pin, CONNECT_TIMEOUT).await?.authority)
}

/// A connection to a server of the pinned cluster.
pub struct PinnedConnection {
    pub stream: TlsStream<TcpStream>,
    /// The certificate (DER) of its certificate authority.
    authority: Vec<u8>,
}

/// Connects to a server. Nobody else receives what is sent over this connection, not even a node of the cluster.
pub async fn connect(server: &http::Uri, pin: Pin, limit: Duration) -> anyhow::Result<PinnedConnection> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let trust = PinnedAuthority { pin, provider: Arc::clone(&provider), found: Mutex::new(None) };
    let verifier = Arc::new(ServerVerifier::new(trust, &provider));
    let stream = open(server, Arc::clone(&verifier), provider, limit).await?;
    let found = verifier.trust.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let authority = found.ok_or_else(|| anyhow!("{server} sent no certificate"))?;
    Ok(PinnedConnection { stream, authority })
}

/// The same for a host that knows the authorities (DER) of the cluster, which may have replaced the pinned one.
pub async fn connect_known(server: &http::Uri, authorities: &[Vec<u8>]) -> anyhow::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone().into())?;
    }
    let known = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let verifier = Arc::new(ServerVerifier::new(KnownAuthorities(known), &provider));
    open(server, verifier, provider, CONNECT_TIMEOUT).await
}

async fn open<T: ServerTrust + 'static>(
    server: &http::Uri,
    verifier: Arc<ServerVerifier<T>>,
    provider: Arc<CryptoProvider>,
    limit: Duration,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let host = server.host().ok_or_else(|| anyhow!("{server} has no host"))?;
    let port = server.port_u16().unwrap_or(443);
    match tokio::time::timeout(limit, connect_to(host, port, verifier, provider)).await {
        Ok(connected) => connected,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut))
            .with_context(|| format!("{host}:{port} does not respond")),
    }
}

async fn connect_to(
    host: &str,
    port: u16,
    verifier: Arc<dyn ServerCertVerifier>,
    provider: Arc<CryptoProvider>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(bare.to_owned()).with_context(|| format!("{host} is not a valid host name"))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect((bare, port)).await.with_context(|| format!("cannot reach {host}:{port}"))?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => Ok(stream),
        Err(error) => {
            let reason = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            if let Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) = reason {
                bail!(
                    "{host}:{port} is not the server of the cluster that the token is for \
                     (its authority does not have the hash in the token): check --server, or make a new token there"
                );
            }
            Err(error).with_context(|| format!("{host}:{port} does not respond like an API server"))
        }
    }
}

#[derive(Debug)]
struct PinnedAuthority {
    pin: Pin,
    provider: Arc<CryptoProvider>,
    found: Mutex<Option<Vec<u8>>>,
}

impl ServerTrust for PinnedAuthority {
    fn verify(&self, shown: ShownCertificate<'_>) -> Result<(), Error> {
        let authority = shown.chain.iter().find(|certificate| Pin::of(certificate).is_ok_and(|pin| pin == self.pin));
        let authority = authority.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        // The pinned authority may have been replaced: then it signed the next one.
        shown.verify_with(&verifier)?;
        refuse_nodes(shown)?;
        *self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(authority.to_vec());
        Ok(())
    }
}

#[derive(Debug)]
struct KnownAuthorities(Arc<WebPkiServerVerifier>);

impl ServerTrust for KnownAuthorities {
    fn verify(&self, shown: ShownCertificate<'_>) -> Result<(), Error> {
        shown.verify_with(&self.0)?;
        refuse_nodes(shown)
    }
}

/// The authority of the servers signs the serving certificates of nodes, too.
fn refuse_nodes(shown: ShownCertificate<'_>) -> Result<(), Error> {
    match knarr_identity::is_node_certificate(shown.certificate) {
        true => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apiserver::pki::{Identity, Pki};
    use rustls_pki_types::{CertificateDer, UnixTime};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    /// A server with its own authority; returns its address and pin.
    async fn server(pki: &Pki) -> (http::Uri, Pin) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(pki.serving.config());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        let (_, pem) = x509_parser::pem::parse_x509_pem(pki.authority.certificate.as_bytes()).unwrap();
        (format!("https://{address}").parse().unwrap(), Pin::of(&pem.contents).unwrap())
    }

    /// A node that impersonates the API server could send its own certificate and the authority's.
    #[test]
    fn a_node_is_not_the_api_server() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Identity::default(), jiff::Timestamp::now()).unwrap();
        let key = rcgen::KeyPair::from_pem(&pki.authority.key()).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&pki.authority.certificate, key).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pki.authority.certificate.as_bytes()).unwrap();
        let authority = CertificateDer::from(pem.contents.clone());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let pin = Pin::of(&pem.contents).unwrap();
        for (group, is_believed) in [("system:nodes", false), ("servers", true)] {
            let mut params = rcgen::CertificateParams::new(vec!["api.example".to_owned()]).unwrap();
            params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
            let shown = params.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap();
            let trust = PinnedAuthority { pin, provider: Arc::clone(&provider), found: Mutex::new(None) };
            let verifier = ServerVerifier::new(trust, &provider);
            let name = ServerName::try_from("api.example").unwrap();
            let chain = [authority.clone()];
            let verdict = verifier.verify_server_cert(shown.der(), &chain, &name, &[], UnixTime::now());
            assert_eq!(verdict.is_ok(), is_believed, "{group}: {verdict:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_respond_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: http::Uri = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let pin = "ab".repeat(32).parse().unwrap();
        let connecting = connect(&address, pin, Duration::from_millis(50));
        let connected = tokio::time::timeout(Duration::from_secs(60), connecting).await.expect("an end");
        let Err(error) = connected else { panic!("nobody responds") };
        let cause = error.root_cause().downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(cause.kind(), std::io::ErrorKind::TimedOut, "so that it is tried again");
    }

    #[tokio::test]
    async fn only_the_pinned_authority_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let open =
            |name: &str| Pki::open(&directory.path().join(name), Identity::default(), jiff::Timestamp::now()).unwrap();
        let (here, there) = (open("here"), open("there"));
        let (address, pin) = server(&here).await;
        let (_, other) = server(&there).await;
        assert_eq!(Pin::of(&fetch(&address, pin).await.unwrap()).unwrap(), pin);
        let refused = fetch(&address, other).await.unwrap_err().to_string();
        assert!(refused.contains("is not the server of the cluster that the token is for"), "{refused}");
    }
}
