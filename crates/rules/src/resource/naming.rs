//! Validation of names of drivers, pools, attributes and shares, and of lists whose members have unique names.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use serde_json::Value;

const MAX_DRIVER_LENGTH: usize = 63;
const MAX_POOL_LENGTH: usize = 253;
const MAX_IDENTIFIER_LENGTH: usize = 32;

/// Validates the name of a driver.
pub fn validate_driver(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > MAX_DRIVER_LENGTH {
        errors.too_long(path, MAX_DRIVER_LENGTH);
    }
    for wrong in names::dns_subdomain(&name.to_lowercase()) {
        errors.invalid(path, name, wrong);
    }
}

/// Validates the name of a pool: DNS subdomains separated by slashes.
pub fn validate_pool(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > MAX_POOL_LENGTH {
        errors.too_long(path, MAX_POOL_LENGTH);
    }
    for part in name.split('/') {
        names::check(errors, path, part, names::dns_subdomain);
    }
}

/// Validates the name of an attribute or capacity: a C identifier with an optional domain.
pub fn validate_qualified(errors: &mut Errors, path: &Path<'_>, name: &str) {
    match name.split('/').collect::<Vec<_>>()[..] {
        [name] => validate_identifier(errors, path, name),
        [domain, name] => {
            match domain {
                "" => errors.invalid(path, "", "the domain must not be empty"),
                domain => validate_driver(errors, path, domain),
            }
            match name {
                "" => errors.invalid(path, "", "the name must not be empty"),
                name => validate_identifier(errors, path, name),
            }
        }
        _ => {}
    }
}

/// The same, with a mandatory domain.
pub fn validate_fully_qualified(errors: &mut Errors, path: &Path<'_>, name: &str) {
    validate_qualified(errors, path, name);
    if !name.contains('/') {
        errors.invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

fn validate_identifier(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.len() > MAX_IDENTIFIER_LENGTH {
        errors.too_long(path, MAX_IDENTIFIER_LENGTH);
    }
    let starts = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    if !starts || !name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()) {
        let detail = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
                    characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
                    '[A-Za-z_][A-Za-z0-9_]*')";
        errors.invalid(path, name, detail);
    }
}

/// Validates the ID of a share of a device.
pub fn validate_share(errors: &mut Errors, path: &Path<'_>, id: &str) {
    let is_uuid = |id: &str| {
        id.char_indices().all(|(at, c)| if matches!(at, 8 | 13 | 18 | 23) { c == '-' } else { c.is_ascii_hexdigit() })
    };
    match id.len() {
        36 if is_uuid(id) => {}
        32 if id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {}
        36 | 32 => {
            errors.invalid(path, id, "error validating uid: invalid UUID format");
            return;
        }
        length => {
            errors.invalid(path, id, format!("error validating uid: invalid UUID length: {length}"));
            return;
        }
    }
    if id.len() != 36 || id != id.to_lowercase() {
        let detail = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal \
                    characters";
        errors.invalid(path, id, detail);
    }
}

/// Checks the length of a list. Returns whether its members should be validated.
pub fn within(errors: &mut Errors, path: &Path<'_>, count: usize, max: usize) -> bool {
    if count > max {
        errors.too_many(path, count, max);
    }
    count <= max
}

/// Reports duplicate members.
pub fn validate_distinct(errors: &mut Errors, path: &Path<'_>, keys: &[Value]) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (index, key) in keys.iter().enumerate() {
        if !seen.insert(key.to_string()) {
            errors.duplicate(&path.index(index), key.clone());
        }
    }
}
