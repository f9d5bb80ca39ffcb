//! The serving certificate, and verification of client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_identity::{Authorities, TlsAlgorithms, TlsAlgorithmsError};
use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {message}")]
    File { path: PathBuf, message: String },
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

/// Reads the authorities in a file.
pub fn client_authorities(path: &Path) -> Result<Authorities, TlsError> {
    let failed = |message: String| TlsError::File { path: path.to_path_buf(), message };
    let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    Authorities::from_pem(&pem, &Arc::new(provider())).map_err(|error| failed(error.to_string()))
}

/// The certificate that a connection's client presented.
pub struct ClientCertificate {
    authorities: Option<Authorities>,
    chain: Vec<CertificateDer<'static>>,
    is_good: bool,
    /// Until then the result of the handshake is valid.
    good_until: Option<UnixTime>,
}

impl ClientCertificate {
    pub fn new(authorities: Option<Authorities>, chain: &[CertificateDer<'static>], now: UnixTime) -> Self {
        let is_good = authorities.as_ref().is_some_and(|authorities| authorities.verify(chain, now).is_ok());
        Self { authorities, chain: chain.to_vec(), is_good, good_until: knarr_identity::valid_until(chain) }
    }

    /// The client's certificate while it is valid. A connection or a resumed session may outlive it.
    pub fn certificate(&self, now: UnixTime) -> Option<&CertificateDer<'static>> {
        let still_holds = self.good_until.is_some_and(|end| now <= end);
        let again =
            || self.authorities.as_ref().is_some_and(|authorities| authorities.verify(&self.chain, now).is_ok());
        let is_good = if still_holds { self.is_good } else { again() };
        self.chain.first().filter(|_| is_good)
    }
}

/// Client certificates are verified per request; see [`ClientCertificate`].
pub fn server_config(
    certificate: ServingCertificate,
    clients: Option<&Authorities>,
    algorithms: &TlsAlgorithms,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let provider = Arc::new(algorithms.provider()?);
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&algorithms.versions()?)?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(knarr_identity::any_certificate(&[clients], &provider)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_certificate_is_good_until_it_expires() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut authority = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = authority.self_signed(&key).expect("an authority").pem();
        let issuer = rcgen::Issuer::new(authority, key);
        let mut client = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        client.not_before = rcgen::date_time_ymd(2026, 1, 1);
        client.not_after = rcgen::date_time_ymd(2026, 1, 11);
        let own = rcgen::KeyPair::generate().expect("a key");
        let chain = [client.signed_by(&own, &issuer).expect("a certificate").der().clone()];
        let strange = [client.self_signed(&own).expect("a certificate").der().clone()];
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.crt");
        std::fs::write(&path, pem).expect("written");
        let authorities = client_authorities(&path).expect("authorities");
        // The second and the twelfth of January 2026.
        let at = |day: u64| UnixTime::since_unix_epoch(std::time::Duration::from_secs((20_453 + day) * 24 * 3600));
        let presented = ClientCertificate::new(Some(authorities.clone()), &chain, at(2));
        assert!(presented.certificate(at(2)).is_some());
        assert!(presented.certificate(at(12)).is_none());
        assert!(ClientCertificate::new(Some(authorities.clone()), &strange, at(2)).certificate(at(2)).is_none());
        assert!(ClientCertificate::new(None, &chain, at(2)).certificate(at(2)).is_none());
        assert!(ClientCertificate::new(Some(authorities), &[], at(2)).certificate(at(2)).is_none());
    }
}
