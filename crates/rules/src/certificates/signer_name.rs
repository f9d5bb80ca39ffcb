//! Validation of signer names: `example.com/signer`.

use knarr_api::field::{Errors, Path};
use knarr_api::names;

const MAX_DOMAIN_LENGTH: usize = 253;
const MAX_LENGTH: usize = MAX_DOMAIN_LENGTH + (253 + 63 + 1) + 1;

/// Validates the name of a signer.
pub fn validate(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let [domain, rest] = name.split('/').collect::<Vec<_>>()[..] else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid(path, name, detail);
        return;
    };
    if domain.len() > MAX_DOMAIN_LENGTH {
        errors.too_long(path, MAX_DOMAIN_LENGTH);
    }
    validate_labels(errors, path, domain, names::dns_label);
    if !domain.contains('.') {
        errors.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    validate_labels(errors, path, rest, names::dns_subdomain);
    if name.len() > MAX_LENGTH {
        errors.too_long(path, MAX_LENGTH);
    }
}

/// Reports the errors of the first invalid label.
fn validate_labels(errors: &mut Errors, path: &Path<'_>, text: &str, check: names::Check) {
    if let Some(label) = text.split('.').find(|label| !check(label).is_empty()) {
        for wrong in check(label) {
            errors.invalid(path, text, format!("validating label {label:?}: {wrong}"));
        }
    }
}
