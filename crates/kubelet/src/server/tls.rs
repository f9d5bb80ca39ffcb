//! The serving certificate, and the TLS configuration that uses it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_identity::{TlsAlgorithms, TlsAlgorithmsError};
use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub use super::client_certificate::{AuthoritiesError, ClientAuthorities, ClientCertificate};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {message}")]
    File { path: PathBuf, message: String },
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    #[error(transparent)]
    Algorithms(#[from] TlsAlgorithmsError),
    #[error("cannot create a certificate")]
    Generate(#[from] rcgen::Error),
    #[error("cannot use the certificate")]
    Unusable(#[from] rustls::Error),
}

/// The certificate in use; a renewed one replaces it without a restart.
#[derive(Clone, Debug)]
pub struct ServingCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl ServingCertificate {
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(read_pair(certificate, key)?))))
    }

    /// A self-signed certificate, used until a signed one is available.
    pub fn self_signed(names: Vec<String>) -> Result<Self, TlsError> {
        let generated = rcgen::generate_simple_self_signed(names)?;
        let key = PrivateKeyDer::try_from(generated.signing_key.serialize_der())
            .map_err(|message| TlsError::File { path: PathBuf::new(), message: message.to_string() })?;
        let pair = CertifiedKey::from_der(vec![generated.cert.der().clone()], key, &provider())?;
        Ok(Self(Arc::new(RwLock::new(Arc::new(pair)))))
    }

    /// The pair that new connections are served with.
    pub fn current(&self) -> Arc<CertifiedKey> {
        self.0.read().clone()
    }

    pub fn replace(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        *self.0.write() = read_pair(certificate, key)?;
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

fn provider() -> rustls::crypto::CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

fn read_pair(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error: rustls_pki_types::pem::Error| TlsError::File { path, message: error.to_string() }
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).map_err(failed(certificate))?.collect();
    let key = PrivateKeyDer::from_pem_file(key).map_err(failed(key))?;
    Ok(Arc::new(CertifiedKey::from_der(chain.map_err(failed(certificate))?, key, &provider())?))
}

/// Client certificates are verified per request; see [`ClientCertificate`].
pub fn server_config(
    certificate: ServingCertificate,
    clients: Option<&ClientAuthorities>,
    algorithms: &TlsAlgorithms,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let provider = Arc::new(algorithms.provider()?);
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&algorithms.versions()?)?;
    let builder = match clients {
        Some(clients) => {
            builder.with_client_cert_verifier(knarr_identity::any_certificate(&[&*clients.current()], &provider))
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
