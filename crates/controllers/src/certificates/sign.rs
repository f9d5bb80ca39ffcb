//! Creates certificates from approved requests.
//!
//! Subject and key are copied from the request byte for byte; of its extensions only the alternative names are.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{KeyPair, SignatureAlgorithm, SigningKey};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::der::{self, BOOLEAN, OCTETS, SEQUENCE, element, sequence};
use super::request::{names, parse};

const BACKDATED: SignedDuration = SignedDuration::from_mins(5);
/// A certificate valid for at least this long expires earlier by as much as it is backdated.
const LONG: Duration = Duration::from_secs(8 * 3600);

#[derive(Debug, thiserror::Error)]
pub(super) enum SignError {
    #[error("the authority's key cannot be read")]
    Key(#[source] rcgen::Error),
    #[error("the authority's certificate cannot be read")]
    Certificate,
    #[error("the authority's key is of a kind that cannot sign certificates")]
    KindOfKey,
    #[error("the request cannot be read")]
    Request,
    #[error("the request has no usable subject: {0}")]
    Subject(knarr_identity::IdentityError),
    #[error("the request is not signed by its own key")]
    Signature,
    #[error("the authority's certificate has expired")]
    Expired,
    #[error("the certificate cannot be signed")]
    Sign(#[source] rcgen::Error),
}

pub(super) struct Authority {
    key: KeyPair,
    algorithm: Vec<u8>,
    subject: Vec<u8>,
    key_id: Option<Vec<u8>>,
    expires: Timestamp,
}

impl Authority {
    pub fn new(certificate: &str, key: &str) -> Result<Self, SignError> {
        let key = KeyPair::from_pem(key).map_err(SignError::Key)?;
        let algorithm = algorithm(key.algorithm()).ok_or(SignError::KindOfKey)?;
        let (_, block) =
            x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|_| SignError::Certificate)?;
        let own = block.parse_x509().map_err(|_| SignError::Certificate)?;
        let key_id = own.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let expires = Timestamp::from_second(own.validity().not_after.timestamp());
        let expires = expires.map_err(|_| SignError::Certificate)?;
        Ok(Self { key, algorithm, subject: own.subject().as_raw().to_vec(), key_id, expires })
    }

    /// A PEM certificate for the requested usages, slightly backdated and valid no longer than the authority itself.
    pub fn sign(
        &self,
        spec: &CertificateSigningRequestSpec,
        length: Duration,
        now: Timestamp,
    ) -> Result<String, SignError> {
        if now >= self.expires {
            return Err(SignError::Expired);
        }
        let end = now.saturating_add(length).unwrap_or(self.expires);
        let end = if length < LONG { end } else { end.saturating_sub(BACKDATED).unwrap_or(end) }.min(self.expires);
        let start = now.saturating_sub(BACKDATED).unwrap_or(now);
        let usages = spec.usages.as_deref().unwrap_or_default();
        let body = parse(spec, |request| {
            request.verify_signature().map_err(|_| SignError::Signature)?;
            knarr_identity::of_subject(&request.certification_request_info.subject).map_err(SignError::Subject)?;
            Ok(self.body(request, usages, start, end))
        });
        let body = body.ok_or(SignError::Request)??;
        let signature = der::bits(&self.key.sign(&body).map_err(SignError::Sign)?);
        Ok(pem(&sequence(&[&body, &self.algorithm, &signature])))
    }

    /// The part of the certificate that is signed.
    fn body(&self, request: &X509CertificationRequest, usages: &[String], start: Timestamp, end: Timestamp) -> Vec<u8> {
        let info = &request.certification_request_info;
        let version = element(0xa0, &der::integer(&[2]));
        let serial = der::integer(&rand::random::<[u8; 16]>());
        let validity = sequence(&[&der::time(start), &der::time(end)]);
        let extensions = element(0xa3, &element(SEQUENCE, &self.extensions(request, usages).concat()));
        sequence(&[
            &version,
            &serial,
            &self.algorithm,
            &self.subject,
            &validity,
            info.subject.as_raw(),
            info.subject_pki.raw,
            &extensions,
        ])
    }

    fn extensions(&self, request: &X509CertificationRequest, usages: &[String]) -> Vec<Vec<u8>> {
        const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
        const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
        const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
        const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
        const OTHER_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
        let has = |usage: &str| usages.iter().any(|requested| requested == usage);
        let mut extensions = Vec::new();
        let bits = [("digital signature", 0x80), ("key encipherment", 0x20)];
        let bits: u8 = bits.iter().filter(|(usage, _)| has(usage)).map(|(_, bit)| bit).sum();
        if bits != 0 {
            extensions.push(extension(KEY_USAGE, true, &der::named_bits(bits)));
        }
        let purposes = [("server auth", 1), ("client auth", 2)].into_iter().filter(|(usage, _)| has(usage));
        let purposes = purposes.map(|(_, number)| object(&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, number]));
        let purposes: Vec<u8> = purposes.flatten().collect();
        if !purposes.is_empty() {
            extensions.push(extension(EXTENDED_KEY_USAGE, false, &element(SEQUENCE, &purposes)));
        }
        extensions.push(extension(BASIC_CONSTRAINTS, true, &sequence(&[])));
        if let Some(id) = &self.key_id {
            extensions.push(extension(AUTHORITY_KEY_ID, false, &sequence(&[&element(0x80, id)])));
        }
        let names = written_names(request);
        if !names.is_empty() {
            // Without a subject the alternative names are critical.
            let is_all = request.certification_request_info.subject.iter().next().is_none();
            extensions.push(extension(OTHER_NAMES, is_all, &element(SEQUENCE, &names)));
        }
        extensions
    }
}

/// DNS names, mail addresses, IP addresses and URIs, in this order.
fn written_names(request: &X509CertificationRequest) -> Vec<u8> {
    let mut written: Vec<(usize, Vec<u8>)> = names(request)
        .into_iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((0, element(0x82, name.as_bytes()))),
            GeneralName::RFC822Name(address) => Some((1, element(0x81, address.as_bytes()))),
            GeneralName::IPAddress(address) if matches!(address.len(), 4 | 16) => Some((2, element(0x87, address))),
            GeneralName::URI(uri) => Some((3, element(0x86, uri.as_bytes()))),
            _ => None,
        })
        .collect();
    written.sort_by_key(|(place, _)| *place);
    written.into_iter().flat_map(|(_, name)| name).collect()
}

fn extension(id: &[u8], is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if is_critical { element(BOOLEAN, &[0xff]) } else { Vec::new() };
    sequence(&[&object(id), &critical, &element(OCTETS, value)])
}

fn object(id: &[u8]) -> Vec<u8> {
    element(0x06, id)
}

/// The signature algorithm of the key.
fn algorithm(kind: &SignatureAlgorithm) -> Option<Vec<u8>> {
    const NOTHING: &[u8] = &[0x05, 0x00];
    let curve = |number: u8| object(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, number]);
    let rsa = |number: u8| [&object(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, number]), NOTHING].concat();
    let named = [
        (&rcgen::PKCS_RSA_SHA256, rsa(11)),
        (&rcgen::PKCS_RSA_SHA384, rsa(12)),
        (&rcgen::PKCS_RSA_SHA512, rsa(13)),
        (&rcgen::PKCS_ECDSA_P256_SHA256, curve(2)),
        (&rcgen::PKCS_ECDSA_P384_SHA384, curve(3)),
        (&rcgen::PKCS_ECDSA_P521_SHA512, curve(4)),
        (&rcgen::PKCS_ED25519, object(&[0x2b, 0x65, 0x70])),
    ];
    let found = named.into_iter().find(|(known, _)| **known == *kind);
    found.map(|(_, name)| element(SEQUENCE, &name))
}

fn pem(certificate: &[u8]) -> String {
    use base64::Engine;
    const WIDTH: usize = 64;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(WIDTH).map(String::from_utf8_lossy).collect::<Vec<_>>().join("\n");
    format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
}

pub(super) fn has_expired(pem: &[u8], now: Timestamp) -> bool {
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(pem) else { return false };
    block.parse_x509().is_ok_and(|certificate| certificate.validity().not_after.timestamp() < now.as_second())
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::spec;
    use super::super::request::{CLIENT, KUBELET_SERVING};
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{BasicConstraints, CertificateParams, IsCa};

    const NOW: i64 = 1_800_000_000;

    fn authority(kind: &'static SignatureAlgorithm) -> (Authority, String) {
        let key = KeyPair::generate_for(kind).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap().pem();
        (Authority::new(&own, &key.serialize_pem()).unwrap(), own)
    }

    fn certificate<T>(pem: &str, check: impl FnOnce(&x509_parser::certificate::X509Certificate) -> T) -> T {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        check(&block.parse_x509().unwrap())
    }

    #[test]
    fn signed_certificates_have_the_requested_fields() {
        let now = Timestamp::from_second(NOW).unwrap();
        let usages = ["digital signature", "key encipherment", "server auth"];
        let requested = spec(KUBELET_SERVING, "system:node:a", "system:nodes", &["a", "10.0.0.1"], &usages);
        for kind in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let (authority, own) = authority(kind);
            let pem = authority.sign(&requested, Duration::from_secs(3600), now).unwrap();
            certificate(&pem, |cert| {
                assert_eq!(cert.subject().to_string(), "CN=system:node:a, O=system:nodes");
                assert!(!cert.is_ca());
                let usage = cert.extended_key_usage().unwrap().unwrap().value;
                assert!(usage.server_auth && !usage.client_auth);
                let usage = cert.key_usage().unwrap().unwrap().value;
                assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
                let names = &cert.subject_alternative_name().unwrap().unwrap().value.general_names;
                assert_eq!(*names, [GeneralName::DNSName("a"), GeneralName::IPAddress(&[10, 0, 0, 1])]);
                certificate(&own, |own| cert.verify_signature(Some(own.public_key())).unwrap());
            });
            assert!(!has_expired(pem.as_bytes(), now));
            assert!(has_expired(pem.as_bytes(), Timestamp::from_second(NOW + 10_000).unwrap()));
        }
    }

    #[test]
    fn long_certificates_end_earlier_as_they_start_earlier() {
        let now = Timestamp::from_second(NOW).unwrap();
        let requested = spec(CLIENT, "jane", "team", &[], &["client auth"]);
        let (authority, _) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
        for (length, end) in [(3600, 3600), (8 * 3600 - 1, 8 * 3600 - 1), (8 * 3600, 8 * 3600 - 300)] {
            let pem = authority.sign(&requested, Duration::from_secs(length), now).unwrap();
            let validity = certificate(&pem, |cert| cert.validity().clone());
            assert_eq!(validity.not_before.timestamp(), NOW - 300);
            assert_eq!(validity.not_after.timestamp(), NOW + end, "{length}");
        }
    }

    #[test]
    fn a_request_that_names_two_users_is_not_signed() {
        let request = include_str!("two_names.csr");
        let spec = CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            ..spec(CLIENT, "", "", &[], &["client auth"])
        };
        let (authority, _) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
        let refused = authority.sign(&spec, Duration::from_secs(3600), Timestamp::from_second(NOW).unwrap());
        assert!(matches!(refused, Err(SignError::Subject(_))), "{refused:?}");
    }

    /// Created by openssl: several groups, and an extension that is not accepted.
    #[test]
    fn all_organizations_are_copied() {
        let request = include_str!("two_groups.csr");
        let spec = CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            ..spec(CLIENT, "", "", &[], &["client auth"])
        };
        let (authority, _) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
        let pem = authority.sign(&spec, Duration::from_secs(3600), Timestamp::from_second(NOW).unwrap()).unwrap();
        certificate(&pem, |cert| {
            assert_eq!(cert.subject().to_string(), "O=team-a, O=team-b, CN=jane");
            assert!(!cert.is_ca());
        });
    }
}
