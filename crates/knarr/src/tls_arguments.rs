//! Flags of all servers: which versions and cipher suites of TLS they use.

use clap::Args;
use knarr_identity::{TlsAlgorithms, TlsAlgorithmsError};

#[derive(Args, Clone, Debug, Default)]
pub struct TlsArguments {
    /// Oldest TLS version: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "")]
    pub tls_min_version: String,
    /// Cipher suites of TLS 1.2.
    #[arg(long, value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
}

impl TlsArguments {
    pub fn algorithms(&self) -> TlsAlgorithms {
        TlsAlgorithms { min_version: self.tls_min_version.clone(), cipher_suites: self.tls_cipher_suites.clone() }
    }

    /// The same, or which name is unknown.
    pub fn checked(&self) -> Result<TlsAlgorithms, TlsAlgorithmsError> {
        let algorithms = self.algorithms();
        algorithms.provider()?;
        algorithms.versions()?;
        Ok(algorithms)
    }
}
