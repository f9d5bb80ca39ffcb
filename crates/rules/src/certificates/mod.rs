//! Rules of the group `certificates.k8s.io`.

pub mod certificate_signing_request;
mod pem;
mod signer_name;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "CertificateSigningRequest" => Some(&certificate_signing_request::CertificateSigningRequest),
        _ => None,
    }
}
