//! The TLS configuration of the server: its serving certificate and the authorities of client certificates.

use std::sync::Arc;

use arc_swap::ArcSwap;
use knarr_identity::{Authorities, any_certificate};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{Authority, Error, Leaf};
use crate::authenticate::ClientAuthorities;

/// The server's TLS state.
pub struct Serving {
    resolver: Arc<CertificateResolver>,
    /// PEM of the authority, sent in the chain so that clients that know only its hash can verify it.
    authority: String,
    config: Arc<ServerConfig>,
    clients: Arc<ClientAuthorities>,
}

#[derive(Debug)]
struct CertificateResolver(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Serving {
    pub fn new(leaf: &Leaf, clients: &Authority, proxies: &Authority) -> Result<Self, Error> {
        let resolver = Arc::new(CertificateResolver(ArcSwap::new(certified(leaf, &clients.certificate)?)));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authorities = |authority: &Authority| Authorities::from_pem(authority.certificate.as_bytes(), &provider);
        let authorities_of_clients = ClientAuthorities { users: authorities(clients)?, proxies: authorities(proxies)? };
        let verifier = any_certificate(&[&authorities_of_clients.users, &authorities_of_clients.proxies], &provider);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&resolver) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let authority = clients.certificate.clone();
        Ok(Serving { resolver, authority, config: Arc::new(config), clients: Arc::new(authorities_of_clients) })
    }

    /// The configuration for new connections. It stays the same when certificates are renewed.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// The authorities of client certificates.
    pub fn clients(&self) -> Arc<ClientAuthorities> {
        Arc::clone(&self.clients)
    }

    /// Uses a renewed certificate for new connections.
    pub fn set_certificate(&self, leaf: &Leaf) -> Result<(), Error> {
        self.resolver.0.store(certified(leaf, &self.authority)?);
        Ok(())
    }
}

fn certified(leaf: &Leaf, authority: &str) -> Result<Arc<CertifiedKey>, Error> {
    let unreadable = |error: rustls_pki_types::pem::Error| rustls::Error::General(error.to_string());
    let chain = [leaf.certificate.as_str(), authority].map(str::as_bytes);
    let chain: Result<Vec<_>, _> = chain.into_iter().flat_map(CertificateDer::pem_slice_iter).collect();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).map_err(unreadable)?;
    let provider = aws_lc_rs::default_provider();
    Ok(Arc::new(CertifiedKey::from_der(chain.map_err(unreadable)?, key, &provider)?))
}
