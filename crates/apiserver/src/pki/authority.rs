//! A certificate authority and the certificates it signs.

use std::net::IpAddr;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use super::{Error, files};

const DAY: SignedDuration = SignedDuration::from_hours(24);
const AUTHORITY_DAYS: i32 = 3650;
const LEAF_DAYS: i32 = 365;
/// A certificate is renewed when a third of its lifetime is left.
const RENEW_DAYS: i32 = LEAF_DAYS / 3;
/// Tolerates slow clocks of other hosts.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

pub struct Authority {
    /// PEM: the certificate of this authority, and then those of others that are trusted beside it.
    pub certificate: String,
    /// PEM of this authority's certificate by the one before it, sent with what this one signs to those who know only that.
    pub cross: Option<String>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

pub enum Purpose {
    Serving {
        name: String,
        names: Vec<String>,
        addresses: Vec<IpAddr>,
    },
    Client {
        user: String,
        group: String,
    },
    /// A server that is also a client of others like it.
    Peer {
        name: String,
        names: Vec<String>,
        addresses: Vec<IpAddr>,
    },
}

impl Authority {
    pub fn open(directory: &Path, file: &str, name: &str, now: Timestamp) -> Result<Self, Error> {
        let certificate_path = directory.join(format!("{file}.crt"));
        let key_path = directory.join(format!("{file}.key"));
        let key_text = files::read_or_create(&key_path, || Ok(KeyPair::generate()?.serialize_pem()))?;
        let key = KeyPair::from_pem(&key_text)
            .map_err(|error| Error::Content { path: key_path.clone(), why: error.to_string() })?;
        let certificate =
            files::read_or_create(&certificate_path, || Ok(authority_params(name, now)?.self_signed(&key)?.pem()))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)
            .map_err(|error| Error::Content { path: certificate_path, why: error.to_string() })?;
        let cross = files::read(&directory.join(format!("{file}-cross.crt")))?;
        Ok(Authority { certificate, cross, issuer })
    }

    /// A new authority that is not stored anywhere.
    pub fn create(name: &str, now: Timestamp) -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let certificate = authority_params(name, now)?.self_signed(&key)?.pem();
        Self::with_key(certificate, key)
    }

    /// An authority of a certificate, which may be followed by others, and its key.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, Error> {
        Self::with_key(certificate.to_owned(), KeyPair::from_pem(key)?)
    }

    fn with_key(certificate: String, key: KeyPair) -> Result<Self, Error> {
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)?;
        Ok(Authority { certificate, cross: None, issuer })
    }

    /// PEM of a certificate of this authority for another one: who trusts this one accepts what that one signs.
    pub fn cross_sign(&self, other: &Authority, now: Timestamp) -> Result<String, Error> {
        let unreadable = || Error::Make(rcgen::Error::CouldNotParseCertificate);
        let (_, pem) = x509_parser::pem::parse_x509_pem(other.certificate.as_bytes()).map_err(|_| unreadable())?;
        let parsed = pem.parse_x509().map_err(|_| unreadable())?;
        let name = parsed.subject().iter_common_name().find_map(|name| name.as_str().ok()).ok_or_else(unreadable)?;
        let mut params = authority_params(name, now)?;
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(other.issuer.key(), &self.issuer)?.pem())
    }

    /// PEM of the private key, for the controller that signs certificate requests.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The certificate stored under a file name. Issues a new one if it is missing, due for renewal, or has another
    /// authority, user or names.
    pub fn leaf(&self, directory: &Path, file: &str, purpose: &Purpose, now: Timestamp) -> Result<Leaf, Error> {
        let certificate_path = directory.join(format!("{file}.crt"));
        let key_path = directory.join(format!("{file}.key"));
        if let (Some(certificate), Some(key)) = (files::read(&certificate_path)?, files::read(&key_path)?)
            && self.is_current(&certificate, purpose, now)
        {
            return Ok(Leaf { certificate, key });
        }
        let leaf = self.sign(purpose, now)?;
        files::write(&key_path, &leaf.key)?;
        files::write(&certificate_path, &leaf.certificate)?;
        Ok(leaf)
    }

    pub fn sign(&self, purpose: &Purpose, now: Timestamp) -> Result<Leaf, Error> {
        let key = KeyPair::generate()?;
        let certificate = leaf_params(purpose, now)?.signed_by(&key, &self.issuer)?;
        let chain = certificate.pem() + self.cross.as_deref().unwrap_or_default();
        Ok(Leaf { certificate: chain, key: key.serialize_pem() })
    }

    fn is_current(&self, certificate: &str, purpose: &Purpose, now: Timestamp) -> bool {
        let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()) else { return false };
        let Ok(parsed) = pem.parse_x509() else { return false };
        let Ok((_, own)) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes()) else { return false };
        let Ok(own) = own.parse_x509() else { return false };
        let days_left = (parsed.validity().not_after.timestamp() - now.as_second()) / DAY.as_secs();
        // A clock that was ahead when the certificate was made must not make it useless for months.
        let is_early = parsed.validity().not_before.timestamp() > now.as_second();
        if is_early || days_left < i64::from(RENEW_DAYS) || parsed.verify_signature(Some(own.public_key())).is_err() {
            return false;
        }
        match purpose {
            Purpose::Client { user, group } => {
                let names = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
                let groups = parsed.subject().iter_organization().filter_map(|name| name.as_str().ok());
                names.eq([user.as_str()]) && groups.eq(Some(group.as_str()).filter(|group| !group.is_empty()))
            }
            Purpose::Serving { names, addresses, .. } | Purpose::Peer { names, addresses, .. } => {
                let Ok(Some(alternatives)) = parsed.subject_alternative_name() else { return false };
                let certified: Vec<String> = alternatives.value.general_names.iter().map(general_name).collect();
                let required = names.iter().cloned().chain(addresses.iter().map(IpAddr::to_string));
                required.into_iter().all(|name| certified.contains(&name))
            }
        }
    }
}

fn general_name(name: &x509_parser::extensions::GeneralName<'_>) -> String {
    use x509_parser::extensions::GeneralName;
    match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => IpAddr::from([a, b, c, d]).to_string(),
            _ => <[u8; 16]>::try_from(*bytes).map(|bytes| IpAddr::from(bytes).to_string()).unwrap_or_default(),
        },
        _ => String::new(),
    }
}

fn authority_params(name: &str, now: Timestamp) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = subject(name, None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, DAY * AUTHORITY_DAYS);
    Ok(params)
}

fn leaf_params(purpose: &Purpose, now: Timestamp) -> Result<CertificateParams, Error> {
    let mut params = match purpose {
        Purpose::Serving { name, names, addresses } | Purpose::Peer { name, names, addresses } => {
            let mut params = CertificateParams::new(names.clone())?;
            params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
            params.distinguished_name = subject(name, None);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            if matches!(purpose, Purpose::Peer { .. }) {
                params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
            }
            params
        }
        Purpose::Client { user, group } => {
            let mut params = CertificateParams::new(Vec::new())?;
            params.distinguished_name = subject(user, Some(group.as_str()).filter(|group| !group.is_empty()));
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params
        }
    };
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, DAY * LEAF_DAYS);
    Ok(params)
}

fn subject(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if let Some(organization) = organization {
        subject.push(DnType::OrganizationName, organization);
    }
    subject.push(DnType::CommonName, common_name);
    subject
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, validity: SignedDuration) {
    let moment =
        |at: Timestamp| OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    params.not_before = moment(now.saturating_sub(BACKDATE).unwrap_or(now));
    params.not_after = moment(now.saturating_add(validity).unwrap_or(now));
}
