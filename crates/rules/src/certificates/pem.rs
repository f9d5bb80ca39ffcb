//! Validation of PEM-encoded certificates and certificate requests.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

/// Returns the error of a certificate request, in its encoding or its signature.
pub fn request_error(text: &[u8]) -> Option<String> {
    let block = Pem::iter_from_buffer(text).next().and_then(Result::ok);
    let Some(block) = block.filter(|block| block.label == "CERTIFICATE REQUEST") else {
        return Some("PEM block type must be CERTIFICATE REQUEST".to_owned());
    };
    match X509CertificationRequest::from_der(&block.contents) {
        Err(_) => Some("asn1: structure error: malformed certificate request".to_owned()),
        Ok((rest, _)) if !rest.is_empty() => Some("asn1: syntax error: trailing data".to_owned()),
        Ok((_, request)) => {
            request.verify_signature().is_err().then(|| "x509: certificate request has an invalid signature".to_owned())
        }
    }
}

/// Returns the error of a certificate chain.
pub fn chain_error(text: &[u8]) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let mut blocks = 0;
    for block in Pem::iter_from_buffer(text).map_while(Result::ok) {
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        blocks += 1;
        if block.parse_x509().is_err() {
            return Some("x509: malformed certificate".to_owned());
        }
    }
    (blocks == 0).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}
