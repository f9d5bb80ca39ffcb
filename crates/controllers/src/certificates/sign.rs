//! Makes certificates of approved requests.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use k8s_openapi::jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SerialNumber};

use super::request::parse;

#[derive(Debug, thiserror::Error)]
pub(super) enum SignError {
    #[error("the authority's key or certificate cannot be read")]
    Authority(#[source] rcgen::Error),
    #[error("the request cannot be read")]
    Request,
    #[error("the certificate cannot be made")]
    Sign(#[source] rcgen::Error),
}

pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    expires: Option<i64>,
}

impl Authority {
    pub fn new(certificate: &str, key: &str) -> Result<Self, SignError> {
        let key = KeyPair::from_pem(key).map_err(SignError::Authority)?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key).map_err(SignError::Authority)?;
        Ok(Self { issuer, expires: expiry(certificate.as_bytes()) })
    }

    /// A certificate as PEM, for the usages asked, valid from a little before now and no longer than the authority itself.
    pub fn sign(
        &self,
        spec: &CertificateSigningRequestSpec,
        length: Duration,
        now: Timestamp,
    ) -> Result<String, SignError> {
        const BACKDATED: i64 = 5 * 60;
        let mut request = parse(spec).ok_or(SignError::Request)?;
        let start = now.as_second() - BACKDATED;
        let end = now.as_second() + i64::try_from(length.as_secs()).unwrap_or(i64::MAX / 2) - BACKDATED;
        let end = self.expires.map_or(end, |expires| end.min(expires));
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let seconds = |second: i64| Duration::from_secs(u64::try_from(second).unwrap_or(0));
        request.params.not_before = epoch + seconds(start);
        request.params.not_after = epoch + seconds(end);
        request.params.serial_number = Some(SerialNumber::from(rand::random::<[u8; 16]>().to_vec()));
        request.params.is_ca = rcgen::IsCa::ExplicitNoCa;
        request.params.key_usages.clear();
        request.params.extended_key_usages.clear();
        for usage in spec.usages.iter().flatten() {
            match usage.as_str() {
                "digital signature" | "signing" => request.params.key_usages.push(KeyUsagePurpose::DigitalSignature),
                "key encipherment" => request.params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                "client auth" => request.params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth),
                "server auth" => request.params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth),
                _ => {}
            }
        }
        Ok(request.signed_by(&self.issuer).map_err(SignError::Sign)?.pem())
    }
}

fn expiry(pem: &[u8]) -> Option<i64> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    Some(block.parse_x509().ok()?.validity().not_after.timestamp())
}

pub(super) fn has_expired(pem: &[u8], now: Timestamp) -> bool {
    expiry(pem).is_some_and(|expires| expires < now.as_second())
}

#[cfg(test)]
mod tests {
    use super::super::request::KUBELET_CLIENT;
    use super::super::request::tests::spec;
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa};

    #[test]
    fn signed_certificates_say_what_was_asked() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap();
        let authority = Authority::new(&own.pem(), &key.serialize_pem()).unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let asked = spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &[], &["digital signature", "client auth"]);
        let pem = authority.sign(&asked, Duration::from_secs(3600), now).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let certificate = block.parse_x509().unwrap();
        assert!(certificate.subject().to_string().contains("system:node:a"));
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        assert_eq!(certificate.validity().not_after.timestamp(), 1_800_000_000 + 3300);
        assert!(!certificate.is_ca());
        assert!(!has_expired(pem.as_bytes(), now));
        assert!(has_expired(pem.as_bytes(), Timestamp::from_second(1_800_010_000).unwrap()));
    }
}
