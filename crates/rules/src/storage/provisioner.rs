//! Validation of provisioner names and parameters.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use serde_json::{Map, Value};

const MAX_PARAMETERS: usize = 512;
const MAX_BYTES: usize = 256 << 10;
const MAX_DRIVER_NAME_LENGTH: usize = 63;

/// Validates the name of a provisioner, ignoring case.
pub fn validate_name(errors: &mut Errors, path: &Path, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        names::check(errors, path, &name.to_lowercase(), names::qualified_name);
    }
}

/// Validates a reference to a CSI driver.
pub fn validate_driver_name(errors: &mut Errors, path: &Path, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > MAX_DRIVER_NAME_LENGTH {
        errors.too_long(path, MAX_DRIVER_NAME_LENGTH);
    }
    for wrong in names::dns_subdomain(&name.to_lowercase()) {
        errors.invalid(path, name, wrong);
    }
}

/// Validates the parameters for a provisioner.
pub fn validate_parameters(errors: &mut Errors, parameters: Option<&Map<String, Value>>, may_be_empty: bool) {
    let path = Path::root("parameters");
    let count = parameters.map_or(0, Map::len);
    if count > MAX_PARAMETERS {
        errors.too_long(&path, MAX_PARAMETERS);
        return;
    }
    let mut size = 0;
    for (key, value) in parameters.into_iter().flatten() {
        if key.is_empty() {
            errors.invalid(&path, "", "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_BYTES {
        errors.too_long(&path, MAX_BYTES);
    }
    if !may_be_empty && count == 0 {
        errors.required(&path, "must contain at least one key/value pair");
    }
}
