//! Whom a certificate, or a request for one, stands for. Whoever approves, signs or believes certificates asks here: were
//! there two readers, a subject that they read differently would be approved as one user and used as another.
//!
//! A subject that could be read in more than one way stands for nobody.

mod client;

pub use client::{Authorities, any_certificate, valid_until};

use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::der_parser::asn1_rs::{Tag, oid};
use x509_parser::der_parser::oid::Oid;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

/// The user and the groups that a subject names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The common name.
    pub name: String,
    /// Kubernetes' own attribute for it; empty where the subject has none.
    pub uid: String,
    /// The organizations, in their order.
    pub groups: Vec<String>,
}

/// Why a subject names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("malformed certificate")]
    Certificate,
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    RequestType,
    #[error("malformed certificate request")]
    Request,
    #[error("subject has no common name")]
    NoCommonName,
    #[error("subject has more than one {0}")]
    Repeated(&'static str),
    #[error("subject has a {0} in a multi-valued relative distinguished name")]
    MultiValued(&'static str),
    #[error("subject has an empty {0}")]
    Empty(&'static str),
    #[error("subject has a {0} that is not a plain string")]
    Text(&'static str),
}

const COMMON_NAME: &str = "common name";
const ORGANIZATION: &str = "organization";
const UID: &str = "UID";

/// Of a certificate in DER. Its signature is not checked here.
pub fn of_certificate(der: &[u8]) -> Result<Identity, IdentityError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => of_subject(certificate.subject()),
        _ => Err(IdentityError::Certificate),
    }
}

/// Of a certificate request in PEM. Its signature is not checked here.
pub fn of_request(pem: &[u8]) -> Result<Identity, IdentityError> {
    let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
    let block = block.filter(|block| block.label == "CERTIFICATE REQUEST").ok_or(IdentityError::RequestType)?;
    match X509CertificationRequest::from_der(&block.contents) {
        Ok(([], request)) => of_subject(&request.certification_request_info.subject),
        _ => Err(IdentityError::Request),
    }
}

/// Whether a certificate (DER) is a node's, or might be taken for one: such a certificate never stands for the API
/// server, which the same authority signs for.
pub fn is_nodes(der: &[u8]) -> bool {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => {
            let mut groups = certificate.subject().iter_organization();
            groups.any(|group| group.as_slice().eq_ignore_ascii_case(NODES.as_bytes()) || group.as_str().is_err())
        }
        _ => true,
    }
}

/// The group of all nodes.
const NODES: &str = "system:nodes";

pub fn of_subject(subject: &X509Name<'_>) -> Result<Identity, IdentityError> {
    let mut identity = Identity::default();
    for part in subject.iter_rdn() {
        for attribute in part.iter() {
            let Some(kind) = kind(attribute.attr_type()) else { continue };
            check_company(part, attribute, kind)?;
            let text = text(attribute, kind)?;
            match kind {
                COMMON_NAME => set(&mut identity.name, text, kind)?,
                UID => set(&mut identity.uid, text, kind)?,
                _ if identity.groups.contains(&text) => {
                    return Err(IdentityError::Repeated("organization of one name"));
                }
                _ => identity.groups.push(text),
            }
        }
    }
    if identity.name.is_empty() { Err(IdentityError::NoCommonName) } else { Ok(identity) }
}

/// What an attribute says about the user; `None` for those that say nothing, like a country.
fn kind(attribute: &Oid<'_>) -> Option<&'static str> {
    if *attribute == oid!(2.5.4.3) {
        Some(COMMON_NAME)
    } else if *attribute == oid!(2.5.4.10) {
        Some(ORGANIZATION)
    } else if *attribute == oid!(1.3.6.1.4.1.57683.2) {
        Some(UID)
    } else {
        None
    }
}

/// Go writes all organizations into one set; no other attributes share one.
fn check_company(
    part: &RelativeDistinguishedName<'_>,
    attribute: &AttributeTypeAndValue<'_>,
    kind: &'static str,
) -> Result<(), IdentityError> {
    let is_alone = part.iter().count() == 1;
    let are_alike = part.iter().all(|other| other.attr_type() == attribute.attr_type());
    if is_alone || (kind == ORGANIZATION && are_alike) { Ok(()) } else { Err(IdentityError::MultiValued(kind)) }
}

fn set(field: &mut String, text: String, kind: &'static str) -> Result<(), IdentityError> {
    if !field.is_empty() {
        return Err(IdentityError::Repeated(kind));
    }
    *field = text;
    Ok(())
}

/// Strings of the types that everybody reads alike, without control characters: a NUL ends the name for some readers.
fn text(attribute: &AttributeTypeAndValue<'_>, kind: &'static str) -> Result<String, IdentityError> {
    let value = attribute.attr_value();
    let unreadable = IdentityError::Text(kind);
    if value.header.is_constructed() {
        return Err(unreadable);
    }
    let Ok(text) = std::str::from_utf8(value.data) else { return Err(unreadable) };
    let is_plain = match value.tag() {
        Tag::Utf8String => true,
        Tag::Ia5String => text.is_ascii(),
        Tag::PrintableString => text.bytes().all(is_printable),
        _ => false,
    };
    if !is_plain || text.chars().any(char::is_control) {
        return Err(unreadable);
    }
    if text.is_empty() { Err(IdentityError::Empty(kind)) } else { Ok(text.to_owned()) }
}

/// What a PrintableString may hold, with the two characters that authorities have always put there besides.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
}

#[cfg(test)]
mod tests;
