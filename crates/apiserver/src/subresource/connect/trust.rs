//! How this server calls into the cluster over TLS: what it shows, and whose certificates it takes.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ConfigBuilder, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::outbound::AnyCertificate;

/// Whose certificates are taken for those of kubelets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those signed by one of these authorities (PEM) for the address that is called.
    Authorities(String),
    /// Any: what is behind a node's address is trusted by the network alone.
    Anyone,
}

/// How kubelets are called. Before [`Kubelets::show`] none is.
#[derive(Default)]
pub struct Kubelets {
    config: ArcSwapOption<ClientConfig>,
}

impl Kubelets {
    /// From now on shows this certificate (both PEM) to kubelets that prove to be trusted.
    pub fn show(&self, certificate: &str, key: &str, trust: &Trust) -> Result<(), Error> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(unreadable)?;
        self.config.store(Some(Arc::new(builder(trust)?.with_client_auth_cert(chain, key)?)));
        Ok(())
    }

    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        self.config.load_full().ok_or_else(|| Error::General("no certificate to call kubelets with".to_owned()))
    }
}

/// For pods and services, which show whatever they like: as in Kubernetes, who asks for a proxy to them trusts the network.
pub(super) fn any_certificate() -> Result<Arc<ClientConfig>, Error> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let config = Arc::new(builder(&Trust::Anyone)?.with_no_client_auth());
    Ok(CONFIG.get_or_init(|| config).clone())
}

fn builder(trust: &Trust) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    Ok(match trust {
        Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        Trust::Authorities(authorities) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authorities)? {
                roots.add(certificate)?;
            }
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
            builder.with_webpki_verifier(verifier)
        }
    })
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

    /// Whether a caller of `ours` finishes a handshake with a kubelet at 127.0.0.1 whose certificate `signer` made for an
    /// address.
    async fn reaches(ours: &Pki, trust: Trust, signer: &Pki, address: [u8; 4]) -> bool {
        let purpose =
            Purpose::Serving { name: "system:node:a".into(), names: vec![], addresses: vec![IpAddr::from(address)] };
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
        kubelets.show(&own.certificate, &own.key, &trust).unwrap();
        let connector = TlsConnector::from(kubelets.config().unwrap());
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
        assert!(!reaches(&ours, own(), &ours, [10, 0, 0, 9]).await, "made for another address");
        assert!(reaches(&ours, both(), &theirs, local).await);
        assert!(reaches(&ours, Trust::Anyone, &theirs, local).await);
    }

    #[test]
    fn without_a_certificate_of_its_own_the_server_calls_no_kubelet() {
        assert!(Kubelets::default().config().is_err());
        assert!(Kubelets::default().show("", "", &Trust::Anyone).is_err());
    }
}
