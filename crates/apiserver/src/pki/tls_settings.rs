//! What an administrator may choose of the server's TLS: certificates, versions, cipher suites and client authorities.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_identity::{TlsAlgorithms, TlsAlgorithmsError};
use rustls::crypto::aws_lc_rs;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;

/// The administrator's choices. Without any, the cluster's own certificates are used.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// `--tls-cert-file` and `--tls-private-key-file`.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `--tls-sni-cert-key`.
    pub by_name: Vec<NamedCertificate>,
    /// Whether clients that ask for no name, or for one of the cluster's, get the cluster's own certificate.
    pub keeps_own: bool,
    /// `--tls-min-version` and `--tls-cipher-suites`.
    pub algorithms: TlsAlgorithms,
    /// `--disable-http2-serving`.
    pub without_http2: bool,
    /// `--client-ca-file`.
    pub client_authorities: Option<PathBuf>,
    /// `--requestheader-client-ca-file` and the allowed names.
    pub proxy_authorities: Option<(PathBuf, Vec<String>)>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TlsSettingsError {
    #[error(transparent)]
    Algorithms(#[from] TlsAlgorithmsError),
    #[error("expected comma separated certificate and key file paths")]
    Pair,
    #[error("{0}: {1}")]
    File(PathBuf, String),
    #[error("failed to load SNI cert and key: {0}")]
    Named(String),
}

/// A certificate for some names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Empty for those of the certificate.
    pub names: Vec<String>,
}

impl std::str::FromStr for NamedCertificate {
    type Err = TlsSettingsError;

    /// Reads `certificate,key[:name,name]`.
    fn from_str(text: &str) -> Result<Self, TlsSettingsError> {
        let (files, names) = text.split_once(':').unwrap_or((text, ""));
        let [certificate, key] = files.split(',').map(str::trim).collect::<Vec<_>>()[..] else {
            return Err(TlsSettingsError::Pair);
        };
        if certificate.is_empty() || key.is_empty() {
            return Err(TlsSettingsError::Pair);
        }
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(NamedCertificate { certificate: certificate.into(), key: key.into(), names })
    }
}

impl TlsSettings {
    /// Refuses files and names that cannot be used, in the order of Kubernetes.
    pub fn check(&self) -> Result<(), TlsSettingsError> {
        if let Some((certificate, key)) = &self.certificate {
            LoadedCertificate::load(certificate, key, &[])?;
        }
        self.algorithms.provider()?;
        self.algorithms.versions()?;
        for named in &self.by_name {
            LoadedCertificate::load(&named.certificate, &named.key, &named.names)
                .map_err(|error| TlsSettingsError::Named(error.to_string()))?;
        }
        Ok(())
    }
}

/// A certificate and the names it is used for.
#[derive(Debug)]
pub struct LoadedCertificate {
    pub key: Arc<CertifiedKey>,
    names: Vec<String>,
}

impl LoadedCertificate {
    pub fn load(certificate: &Path, key: &Path, names: &[String]) -> Result<Self, TlsSettingsError> {
        let failed = |path: &Path, error: String| TlsSettingsError::File(path.to_owned(), error);
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|error| failed(certificate, error.to_string()))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error.to_string()))?;
        let names = match names {
            [] => chain.first().map(|leaf| names_of(leaf)).unwrap_or_default(),
            names => names.iter().map(|name| name.to_ascii_lowercase()).collect(),
        };
        let provider = aws_lc_rs::default_provider();
        let key = CertifiedKey::from_der(chain, private, &provider);
        let key = key.map_err(|error| failed(certificate, error.to_string()))?;
        Ok(LoadedCertificate { key: Arc::new(key), names })
    }

    /// Whether the certificate is for a name; `*.example.com` is for the names one level below.
    pub fn is_for(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.names.iter().any(|own| match own.strip_prefix("*.") {
            Some(domain) => name.split_once('.').is_some_and(|(first, rest)| !first.is_empty() && rest == domain),
            None => *own == name,
        })
    }
}

fn names_of(certificate: &[u8]) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let named = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_or_refused() {
        let read = |text: &str| text.parse::<NamedCertificate>();
        let named = read("a.crt,a.key:*.example.com,b").unwrap();
        assert_eq!((named.key.to_str(), named.names.join(" ").as_str()), (Some("a.key"), "*.example.com b"));
        assert!(read("a.crt,a.key").unwrap().names.is_empty());
        for wrong in ["", "a", "a,", "a,b,c", ":x"] {
            assert_eq!(read(wrong), Err(TlsSettingsError::Pair), "{wrong}");
        }
    }
}
