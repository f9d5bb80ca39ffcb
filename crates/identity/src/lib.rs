//! The user and groups that the subject of a certificate, or of a certificate request, names. Approval, signing and
//! authentication all use this parser: with two parsers, a subject that they read differently would be approved as one user
//! and used as another.
//!
//! A subject that is ambiguous names no user.

mod algorithms;
mod client;
mod server;

pub use algorithms::{TlsAlgorithms, TlsAlgorithmsError};
pub use client::{Authorities, any_certificate, valid_until};
pub use server::{AnyServer, ServerTrust, ServerVerifier, ShownCertificate};

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
    /// The attribute that Kubernetes defines for the UID; empty when the subject has none.
    pub uid: String,
    /// The organizations, in order.
    pub groups: Vec<String>,
}

/// Why a subject names no user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not a certificate in DER.
    #[error("malformed certificate")]
    Certificate,
    /// Not a certificate request in PEM.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    RequestType,
    /// The certificate request can't be parsed.
    #[error("malformed certificate request")]
    Request,
    /// The common name is missing.
    #[error("subject has no common name")]
    NoCommonName,
    /// An attribute occurs twice.
    #[error("subject has more than one {0}")]
    Repeated(&'static str),
    /// An attribute shares its relative distinguished name with another.
    #[error("subject has a {0} in a multi-valued relative distinguished name")]
    MultiValued(&'static str),
    /// An attribute is empty.
    #[error("subject has an empty {0}")]
    Empty(&'static str),
    /// An attribute has a string type or characters that implementations read differently.
    #[error("subject has a {0} that is not a plain string")]
    Text(&'static str),
}

const COMMON_NAME: &str = "common name";
const ORGANIZATION: &str = "organization";
const UID: &str = "UID";

/// The identity of a certificate in DER. Does not verify its signature.
pub fn of_certificate(der: &[u8]) -> Result<Identity, IdentityError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => of_subject(certificate.subject()),
        _ => Err(IdentityError::Certificate),
    }
}

/// The identity of a certificate request in PEM. Does not verify its signature.
pub fn of_request(pem: &[u8]) -> Result<Identity, IdentityError> {
    let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
    let block = block.filter(|block| block.label == "CERTIFICATE REQUEST").ok_or(IdentityError::RequestType)?;
    match X509CertificationRequest::from_der(&block.contents) {
        Ok(([], request)) => of_subject(&request.certification_request_info.subject),
        _ => Err(IdentityError::Request),
    }
}

/// Whether a certificate (DER) is a node's, or might be read as one. Such a certificate must never authenticate the API
/// server, whose certificate the same CA signs.
pub fn is_node_certificate(der: &[u8]) -> bool {
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

/// The identity of a subject.
pub fn of_subject(subject: &X509Name<'_>) -> Result<Identity, IdentityError> {
    let mut identity = Identity::default();
    for rdn in subject.iter_rdn() {
        for attribute in rdn.iter() {
            let Some(kind) = kind(attribute.attr_type()) else { continue };
            check_multi_valued(rdn, attribute, kind)?;
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

/// The meaning of an attribute for the user; `None` for irrelevant ones such as a country.
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

/// Allows several values in one relative distinguished name only for organizations, which Go writes so.
fn check_multi_valued(
    rdn: &RelativeDistinguishedName<'_>,
    attribute: &AttributeTypeAndValue<'_>,
    kind: &'static str,
) -> Result<(), IdentityError> {
    let is_single = rdn.iter().count() == 1;
    let same_type = rdn.iter().all(|other| other.attr_type() == attribute.attr_type());
    if is_single || (kind == ORGANIZATION && same_type) { Ok(()) } else { Err(IdentityError::MultiValued(kind)) }
}

fn set(field: &mut String, text: String, kind: &'static str) -> Result<(), IdentityError> {
    if !field.is_empty() {
        return Err(IdentityError::Repeated(kind));
    }
    *field = text;
    Ok(())
}

/// The text of an attribute. Accepts only string types that all implementations read alike, without control characters: a
/// NUL terminates the name for some.
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

/// The characters of a PrintableString, and the two more that CAs have always used.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
}

#[cfg(test)]
mod tests;
