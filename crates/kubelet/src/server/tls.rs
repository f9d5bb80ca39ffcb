//! Certificates of the endpoints, and whose client certificates are accepted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {message}")]
    File { path: PathBuf, message: String },
    #[error("a certificate can't be made")]
    Generate(#[from] rcgen::Error),
    #[error("the certificate can't be used")]
    Unusable(#[from] rustls::Error),
    #[error("client certificates can't be verified")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// The certificate in use; a renewed one takes its place without a restart.
#[derive(Clone, Debug)]
pub struct ServingCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl ServingCertificate {
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(read_pair(certificate, key)?))))
    }

    /// A certificate of our own for clients that know us by other means, until a signed one is there.
    pub fn self_signed(names: Vec<String>) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
            .map_err(|message| TlsError::File { path: PathBuf::new(), message: message.to_string() })?;
        let pair = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider())?;
        Ok(Self(Arc::new(RwLock::new(Arc::new(pair)))))
    }

    pub fn replace(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        *self.0.write() = read_pair(certificate, key)?;
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
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

pub fn server_config(
    certificate: ServingCertificate,
    client_ca: Option<&Path>,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let provider = Arc::new(provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let failed = |error: rustls_pki_types::pem::Error| TlsError::File {
                path: path.to_path_buf(),
                message: error.to_string(),
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
                roots.add(certificate.map_err(failed)?)?;
            }
            // Who has no certificate may still have a token.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
