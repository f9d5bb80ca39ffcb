//! Verification of server certificates in a TLS client.
//!
//! Verifiers differ in whom they trust. That the server holds the key of its certificate is always verified.

use std::fmt::Debug;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// What a server shows in a handshake.
#[derive(Clone, Copy, Debug)]
pub struct ShownCertificate<'a> {
    /// The certificate of the server.
    pub certificate: &'a CertificateDer<'a>,
    /// The certificates that lead to an authority.
    pub chain: &'a [CertificateDer<'a>],
    /// The name that the client connects to.
    pub server_name: &'a ServerName<'a>,
    /// The time of the handshake.
    pub now: UnixTime,
    ocsp_response: &'a [u8],
}

impl ShownCertificate<'_> {
    /// Verifies the chain, the name and the validity.
    pub fn verify_with(&self, verifier: &WebPkiServerVerifier) -> Result<(), Error> {
        let Self { certificate, chain, server_name, now, ocsp_response } = self;
        verifier.verify_server_cert(certificate, chain, server_name, ocsp_response, *now).map(drop)
    }
}

/// Whom a client trusts.
pub trait ServerTrust: Debug + Send + Sync {
    /// An error if the server is not trusted.
    fn verify(&self, shown: ShownCertificate<'_>) -> Result<(), Error>;
}

/// Trusts every server, for `insecureSkipTLSVerify` and the like.
#[derive(Clone, Copy, Debug)]
pub struct AnyServer;

impl ServerTrust for AnyServer {
    fn verify(&self, _: ShownCertificate<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// A verifier for the handshake.
#[derive(Debug)]
pub struct ServerVerifier<T> {
    /// Whom it trusts.
    pub trust: T,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<T: ServerTrust> ServerVerifier<T> {
    /// Verifies signatures with the algorithms of the provider.
    pub fn new(trust: T, provider: &CryptoProvider) -> Self {
        ServerVerifier { trust, algorithms: provider.signature_verification_algorithms }
    }
}

impl<T: ServerTrust> ServerCertVerifier for ServerVerifier<T> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trust.verify(ShownCertificate { certificate, chain, server_name, now, ocsp_response })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
