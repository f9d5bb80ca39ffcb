//! TLS of outbound connections: trusted authorities, client certificates and error messages.

use std::sync::{Arc, OnceLock};

use knarr_identity::{AnyServer, ServerTrust, ServerVerifier, ShownCertificate};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Files with the authorities that the system trusts.
const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Which server certificates are accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Those of these authorities (PEM), or of the system if it is empty.
    Authorities(String),
    Anyone,
}

/// A client certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// A TLS configuration for HTTP/1.1.
pub fn client_config(trust: &Trust, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Authorities(pem) => Arc::new(ServerVerifier::new(AuthoritiesOrNamed::new(pem, &provider)?, &provider)),
        Trust::Anyone => Arc::new(ServerVerifier::new(AnyServer, &provider)),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let unreadable = |error: rustls_pki_types::pem::Error| Error::General(error.to_string());
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(unreadable)?;
            builder.with_client_auth_cert(chain.map_err(unreadable)?, key)?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn system_authorities() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| SYSTEM_BUNDLES.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default())
}

/// Accepts certificates signed by an authority, and the authorities themselves: a server may use a self-signed one.
#[derive(Debug)]
struct AuthoritiesOrNamed {
    chains: Option<Arc<WebPkiServerVerifier>>,
    named: Vec<CertificateDer<'static>>,
}

impl AuthoritiesOrNamed {
    fn new(pem: &str, provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let text = if pem.trim().is_empty() { system_authorities() } else { pem };
        let named: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(named.iter().cloned());
        let chains = if roots.is_empty() {
            None
        } else {
            let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
            Some(built.map_err(|error| Error::General(error.to_string()))?)
        };
        let named = if pem.trim().is_empty() { Vec::new() } else { named };
        Ok(Self { chains, named })
    }
}

impl ServerTrust for AuthoritiesOrNamed {
    fn verify(&self, shown: ShownCertificate<'_>) -> Result<(), Error> {
        if self.named.iter().any(|named| named == shown.certificate) {
            return rustls::client::verify_server_name(
                &ParsedCertificate::try_from(shown.certificate)?,
                shown.server_name,
            );
        }
        match &self.chains {
            Some(chains) => shown.verify_with(chains),
            None => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }
}

/// The message of Kubernetes for a failed handshake.
pub fn describe_tls_error(error: &std::io::Error, host: &str) -> String {
    const FAILED: &str = "tls: failed to verify certificate: x509:";
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        // Another authority of the same name signed it.
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            format!("{FAILED} certificate signed by unknown authority")
        }
        Some(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            format!("{FAILED} certificate has expired or is not yet valid")
        }
        Some(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })) => {
            let names: Vec<&str> =
                presented.iter().map(|name| name.trim_start_matches("DnsName(\"").trim_end_matches("\")")).collect();
            format!("{FAILED} certificate is valid for {}, not {host}", names.join(", "))
        }
        Some(error) => format!("tls: {error}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => error.to_string(),
    }
}
