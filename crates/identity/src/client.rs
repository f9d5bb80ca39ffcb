//! Verification of client certificates in a TLS server.
//!
//! The handshake only proves that a client holds the key of its certificate. The issuer and the validity are checked after
//! the handshake and again while the connection lasts: a resumed session or a long connection may use an old certificate,
//! and certificates of different CAs have different meanings.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The CAs that client certificates must be signed by.
#[derive(Clone, Debug)]
pub struct Authorities(Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// Parses CA certificates in PEM.
    pub fn from_pem(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|error| Error::General(error.to_string()))?)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
        Ok(Self(verifier.map_err(|error| Error::General(error.to_string()))?))
    }

    /// Verifies that a chain, the client's certificate first, is signed by one of the CAs for client authentication and is
    /// valid now.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        let (leaf, intermediates) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.0.verify_client_cert(leaf, intermediates, now).map(drop)
    }
}

/// A verifier for the handshake: accepts any certificate whose key the client holds, and hints at the accepted CAs.
pub fn any_certificate(accepted: &[&Authorities], provider: &CryptoProvider) -> Arc<dyn ClientCertVerifier> {
    let hints = accepted.iter().flat_map(|authorities| authorities.0.root_hint_subjects()).cloned().collect();
    Arc::new(AnyCertificate { hints, algorithms: provider.signature_verification_algorithms })
}

/// When the first certificate of a chain expires; `None` when one can't be parsed.
pub fn valid_until(chain: &[CertificateDer<'_>]) -> Option<UnixTime> {
    let end = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    };
    chain.iter().map(end).collect::<Option<Vec<_>>>()?.into_iter().min()
}

#[derive(Debug)]
struct AnyCertificate {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyCertificate {
    /// Clients without a certificate may have a token.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    fn params(usage: ExtendedKeyUsagePurpose) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 11);
        params.extended_key_usages = vec![usage];
        params
    }

    fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), pem)
    }

    #[test]
    fn only_valid_client_certificates_of_the_ca_are_accepted() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let ((own, pem), (other, _)) = (authority("own"), authority("other"));
        let (mimic, _) = authority("own");
        let trusted = Authorities::from_pem(pem.as_bytes(), &provider).unwrap();
        let key = KeyPair::generate().unwrap();
        let signed = |params: CertificateParams, issuer: &Issuer<'static, KeyPair>| {
            params.signed_by(&key, issuer).unwrap().der().clone()
        };
        let client = signed(params(ClientAuth), &own);
        let leaf = Issuer::new(params(ClientAuth), KeyPair::try_from(key.serialize_der()).unwrap());
        let within = "2026-01-02";
        for (case, chain, at, is_accepted) in [
            ("a client's", vec![client.clone()], within, true),
            ("before it is valid", vec![client.clone()], "2025-12-31", false),
            ("expired", vec![client.clone()], "2026-01-12", false),
            ("a server's", vec![signed(params(ServerAuth), &own)], within, false),
            ("of another authority", vec![signed(params(ClientAuth), &other)], within, false),
            ("of an authority with the same name", vec![signed(params(ClientAuth), &mimic)], within, false),
            ("signed by itself", vec![params(ClientAuth).self_signed(&key).unwrap().der().clone()], within, false),
            ("signed by a client's", vec![signed(params(ClientAuth), &leaf), client.clone()], within, false),
            ("nothing", vec![], within, false),
            ("nonsense", vec![CertificateDer::from(vec![1, 2, 3])], within, false),
        ] {
            let day: u64 = match at {
                "2025-12-31" => 20_453,
                "2026-01-02" => 20_455,
                _ => 20_465,
            };
            let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(day * 24 * 3600));
            assert_eq!(trusted.verify(&chain, at).is_ok(), is_accepted, "{case}: {:?}", trusted.verify(&chain, at));
        }
        assert_eq!(valid_until(&[client]).unwrap().as_secs(), 20_464 * 24 * 3600);
        assert_eq!(valid_until(&[CertificateDer::from(vec![1, 2, 3])]), None);
    }
}
