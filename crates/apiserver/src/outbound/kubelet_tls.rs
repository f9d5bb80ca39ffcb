//! TLS of connections to kubelets, pods and services: the client certificate, and which server certificates are accepted.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use knarr_identity::{AnyServer, ServerTrust, ServerVerifier, ShownCertificate};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Which certificates of kubelets are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those signed by one of these authorities (PEM) for the address of the connection.
    Authorities(String),
    /// Any: the network is trusted to lead to the kubelet.
    Anyone,
}

/// The TLS configuration of connections to kubelets, and the tunnels that lead to them. None can be opened before [`Kubelets::set_credentials`].
#[derive(Default)]
pub struct Kubelets {
    /// Connections that nodes have opened to this server.
    pub tunnels: Arc<knarr_tunnel::Tunnels>,
    credentials: ArcSwapOption<Credentials>,
}

struct Credentials {
    certificate: Arc<ClientCertificate>,
    verifiers: Option<Verifiers>,
}

impl Kubelets {
    /// Sets the client certificate and key (both PEM) for kubelets that are trusted.
    pub fn set_credentials(&self, certificate: &str, key: &str, trust: &Trust) -> Result<(), Error> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(unreadable)?;
        let provider = provider();
        let verifiers = match trust {
            Trust::Anyone => None,
            Trust::Authorities(authorities) => Some(Verifiers::new(&certificates(authorities)?, &chain, &provider)?),
        };
        let certificate = Arc::new(ClientCertificate(Arc::new(CertifiedKey::from_der(chain, key, &provider)?)));
        self.credentials.store(Some(Arc::new(Credentials { certificate, verifiers })));
        Ok(())
    }

    /// The configuration for the kubelet of a node.
    pub(crate) fn config(&self, node: &str) -> Result<Arc<ClientConfig>, Error> {
        let credentials = self.credentials.load_full();
        let credentials =
            credentials.ok_or_else(|| Error::General("no certificate to call kubelets with".to_owned()))?;
        let provider = provider();
        let trust = NodeTrust { user: format!("system:node:{node}"), verifiers: credentials.verifiers.clone() };
        let verifier = ServerVerifier::new(trust, &provider);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(credentials.certificate.clone());
        // A resumed session would not be verified again.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Presents one certificate to every server that requests one.
#[derive(Debug)]
struct ClientCertificate(Arc<CertifiedKey>);

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[derive(Clone, Debug)]
struct Verifiers {
    all: Arc<WebPkiServerVerifier>,
    /// Verifies against the authority of this server's own certificate: that of the cluster, which signs not only for nodes.
    cluster: Option<Arc<WebPkiServerVerifier>>,
}

impl Verifiers {
    fn new(
        authorities: &[CertificateDer<'static>],
        own: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Verifiers, Error> {
        let verifier = |authorities: &mut dyn Iterator<Item = &CertificateDer<'static>>| {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority.clone())?;
            }
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| Error::General(error.to_string()))
        };
        let signed_ours = |authority: &&CertificateDer<'static>| own.first().is_some_and(|own| signed(authority, own));
        let cluster: Vec<_> = authorities.iter().filter(signed_ours).collect();
        Ok(Verifiers {
            all: verifier(&mut authorities.iter())?,
            cluster: if cluster.is_empty() { None } else { Some(verifier(&mut cluster.into_iter())?) },
        })
    }
}

fn signed(authority: &CertificateDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    match (X509Certificate::from_der(authority), X509Certificate::from_der(certificate)) {
        (Ok((_, authority)), Ok((_, certificate))) => {
            certificate.verify_signature(Some(authority.public_key())).is_ok()
        }
        _ => false,
    }
}

/// Verifies the certificate of the kubelet of a node. A certificate of the authority of the cluster must name the node:
/// otherwise a node could claim the address of another server.
#[derive(Debug)]
struct NodeTrust {
    user: String,
    verifiers: Option<Verifiers>,
}

impl ServerTrust for NodeTrust {
    fn verify(&self, shown: ShownCertificate<'_>) -> Result<(), Error> {
        let Some(verifiers) = &self.verifiers else { return Ok(()) };
        shown.verify_with(&verifiers.all)?;
        let is_clusters = verifiers.cluster.as_ref().is_some_and(|cluster| shown.verify_with(cluster).is_ok());
        if is_clusters && !is_named(shown.certificate, &self.user) {
            return Err(Error::General(format!("the certificate is not that of {:?}", self.user)));
        }
        Ok(())
    }
}

/// Read as everywhere: a subject with two names is nobody's.
fn is_named(certificate: &CertificateDer<'_>, name: &str) -> bool {
    knarr_identity::of_certificate(certificate).is_ok_and(|own| own.name == name)
}

/// Accepts any certificate, for pods and services: as in Kubernetes, their certificates are not verified.
pub(crate) fn any_certificate() -> Result<Arc<ClientConfig>, Error> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let provider = provider();
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier::new(AnyServer, &provider)))
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())).clone()
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(unreadable)
}

fn unreadable(error: rustls_pki_types::pem::Error) -> Error {
    Error::General(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Identity, Pki, Purpose};
    use jiff::Timestamp;
    use rustls::ServerConfig;
    use rustls_pki_types::ServerName;
    use std::net::IpAddr;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    fn pki() -> (tempfile::TempDir, Pki) {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Identity::default(), Timestamp::now()).unwrap();
        (directory, pki)
    }

    /// Whether a caller of `ours` finishes a handshake with a kubelet at 127.0.0.1 whose certificate `signer` signed for an
    /// address.
    async fn reaches(ours: &Pki, trust: Trust, signer: &Pki, address: [u8; 4]) -> bool {
        reaches_one(ours, trust, signer, "system:node:a", address).await
    }

    async fn reaches_one(ours: &Pki, trust: Trust, signer: &Pki, user: &str, address: [u8; 4]) -> bool {
        let purpose = Purpose::Serving { name: user.into(), names: vec![], addresses: vec![IpAddr::from(address)] };
        let leaf = signer.authority.sign(&purpose, Timestamp::now()).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                certificates(&leaf.certificate).unwrap(),
                PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            TlsAcceptor::from(Arc::new(server)).accept(stream).await.is_ok()
        });
        let kubelets = Kubelets::default();
        let own = ours.kubelet_client(Timestamp::now()).unwrap();
        kubelets.set_credentials(&own.certificate, &own.key, &trust).unwrap();
        let connector = TlsConnector::from(kubelets.config("a").unwrap());
        let stream = TcpStream::connect(at).await.unwrap();
        let reached = connector.connect(ServerName::from(at.ip()), stream).await.is_ok();
        assert_eq!(accepting.await.unwrap(), reached);
        reached
    }

    #[tokio::test]
    async fn only_kubelets_of_a_trusted_authority_are_called() {
        let ((_here, ours), (_there, theirs)) = (pki(), pki());
        let own = || Trust::Authorities(ours.authority.certificate.clone());
        let both = || Trust::Authorities([&*ours.authority.certificate, &*theirs.authority.certificate].concat());
        let local = [127, 0, 0, 1];
        assert!(reaches(&ours, own(), &ours, local).await);
        assert!(!reaches(&ours, own(), &theirs, local).await);
        assert!(!reaches(&ours, own(), &ours, [10, 0, 0, 9]).await, "signed for another address");
        assert!(reaches(&ours, both(), &theirs, local).await);
        assert!(reaches(&ours, Trust::Anyone, &theirs, local).await);
    }

    /// A node whose status names the address of another server, such as the API server, is not that server.
    #[tokio::test]
    async fn a_certificate_of_the_clusters_authority_must_name_the_node() {
        let ((_here, ours), (_there, theirs)) = (pki(), pki());
        let trust = || Trust::Authorities([&*ours.authority.certificate, &*theirs.authority.certificate].concat());
        let local = [127, 0, 0, 1];
        assert!(reaches_one(&ours, trust(), &ours, "system:node:a", local).await);
        for user in ["system:node:b", "kube-apiserver", "system:node:ab", ""] {
            assert!(!reaches_one(&ours, trust(), &ours, user, local).await, "{user:?}");
        }
        assert!(
            reaches_one(&ours, trust(), &theirs, "host.example", local).await,
            "other authorities need not name the node"
        );
    }

    #[test]
    fn without_a_certificate_of_its_own_the_server_calls_no_kubelet() {
        assert!(Kubelets::default().config("a").is_err());
        assert!(Kubelets::default().set_credentials("", "", &Trust::Anyone).is_err());
    }
}
