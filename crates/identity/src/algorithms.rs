//! Which versions and cipher suites of TLS a server uses, by the names that Go and Kubernetes' flags have for them.

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ProtocolVersion, SupportedProtocolVersion};

/// What an administrator may choose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsAlgorithms {
    /// The oldest version, such as `VersionTLS13`; empty for the default.
    pub min_version: String,
    /// The cipher suites of TLS 1.2; empty for the default.
    pub cipher_suites: Vec<String>,
}

/// A name that is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsAlgorithmsError {
    /// Not a version of TLS.
    #[error("unknown tls version {0:?}")]
    Version(String),
    /// Not a cipher suite that Go knows.
    #[error("Cipher suite {0} not supported or doesn't exist")]
    Cipher(String),
}

/// Cipher suites that Go knows and that are not implemented here: weak ones, which nothing negotiates.
const WITHOUT_EFFECT: [&str; 14] = [
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
];

impl TlsAlgorithms {
    /// The algorithms to use. Those of TLS 1.3 cannot be chosen, as in Go.
    pub fn provider(&self) -> Result<CryptoProvider, TlsAlgorithmsError> {
        let mut provider = aws_lc_rs::default_provider();
        if self.cipher_suites.is_empty() {
            return Ok(provider);
        }
        let name_of = |suite: &rustls::SupportedCipherSuite| {
            let name = format!("{:?}", suite.suite());
            name.strip_prefix("TLS13_").map(|rest| format!("TLS_{rest}")).unwrap_or(name)
        };
        // Go knows these two by an older name as well.
        let canonical = |name: &str| match name {
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256".to_owned(),
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256".to_owned(),
            name => name.to_owned(),
        };
        let asked: Vec<String> = self.cipher_suites.iter().map(|name| canonical(name)).collect();
        for name in &asked {
            let is_known = provider.cipher_suites.iter().any(|suite| name_of(suite) == *name);
            if !is_known && !WITHOUT_EFFECT.contains(&name.as_str()) {
                return Err(TlsAlgorithmsError::Cipher(name.clone()));
            }
        }
        provider
            .cipher_suites
            .retain(|suite| suite.version().version == ProtocolVersion::TLSv1_3 || asked.contains(&name_of(suite)));
        Ok(provider)
    }

    /// The versions to use; older ones than 1.2 are not implemented.
    pub fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsAlgorithmsError> {
        match self.min_version.as_str() {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => {
                Ok(vec![&rustls::version::TLS13, &rustls::version::TLS12])
            }
            "VersionTLS13" => Ok(vec![&rustls::version::TLS13]),
            other => Err(TlsAlgorithmsError::Version(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_chosen_by_name_or_refused() {
        let versions = |text: &str| TlsAlgorithms { min_version: text.into(), ..Default::default() }.versions();
        assert_eq!(versions("VersionTLS13").unwrap().len(), 1);
        assert_eq!(versions("VersionTLS12").unwrap().len(), 2);
        assert_eq!(versions("TLS9").unwrap_err().to_string(), "unknown tls version \"TLS9\"");
        let suites = |names: &[&str]| {
            let cipher_suites = names.iter().map(|name| (*name).to_owned()).collect();
            TlsAlgorithms { cipher_suites, ..Default::default() }
                .provider()
                .map(|provider| provider.cipher_suites.len())
        };
        assert_eq!(suites(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"]), Ok(4));
        let refused = suites(&["TLS_NULL"]).unwrap_err().to_string();
        assert_eq!(refused, "Cipher suite TLS_NULL not supported or doesn't exist");
    }
}
