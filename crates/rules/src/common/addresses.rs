//! Validation of IP addresses and CIDRs, in the strict form and in the lax form that old fields accept.

use std::net::IpAddr;

use knarr_api::cidr::{Cidr, is_mapped, parse_network_sloppy, parse_sloppy};
use knarr_api::field::{Errors, Path, quoted};

/// Validates an address in a field that accepts the lax form. `known` are the stored addresses of the field.
pub fn legacy_address(errors: &mut Errors, path: &Path<'_>, text: &str, known: &[&str]) {
    let mut own = Errors::new();
    strict_address(&mut own, path, text);
    unless_known(errors, own, text, known);
}

/// Reports errors of a value that was not stored before. Both lists are as long as their authors like, so that the stored
/// ones are searched for wrong values only, and not once nothing more is reported.
fn unless_known(errors: &mut Errors, own: Errors, text: &str, known: &[&str]) {
    if !own.is_empty() && !errors.is_full() && !known.contains(&text) {
        errors.extend(own);
    }
}

fn strict_address(errors: &mut Errors, path: &Path<'_>, text: &str) -> Option<IpAddr> {
    let Some(address) = parse_sloppy(text) else {
        errors.invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
        return None;
    };
    let before = errors.0.len();
    if text.parse::<IpAddr>().is_err() {
        errors.invalid(path, text, "must not have leading 0s");
    }
    if is_mapped(text) {
        errors.invalid(path, text, "must not be an IPv4-mapped IPv6 address");
    }
    (errors.0.len() == before).then_some(address)
}

/// Validates an address that must be in canonical form.
pub fn canonical_address(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if let Some(address) = strict_address(errors, path, text)
        && address.to_string() != text
    {
        errors.invalid(path, text, format!("must be in canonical form ({})", quoted(&address.to_string())));
    }
}

/// Returns warnings about an address that programs may parse differently.
pub fn address_warnings(path: &Path<'_>, text: &str) -> Vec<String> {
    let Some(address) = parse_sloppy(text) else { return Vec::new() };
    let value = quoted(text);
    let canonical = quoted(&address.to_string());
    if text.parse::<IpAddr>().is_err() || is_mapped(text) {
        return vec![format!("{path}: non-standard IP address {value} is invalid: use {canonical}")];
    }
    if address.is_ipv6() && address.to_string() != text {
        return vec![format!("{path}: IPv6 address {value} should be in RFC 5952 canonical format ({canonical})")];
    }
    Vec::new()
}

/// Validates a CIDR in a field that accepts the lax form. `known` are the stored CIDRs of the field.
pub fn legacy_range(errors: &mut Errors, path: &Path<'_>, text: &str, known: &[&str]) {
    let mut own = Errors::new();
    strict_range(&mut own, path, text);
    unless_known(errors, own, text, known);
}

fn strict_range(errors: &mut Errors, path: &Path<'_>, text: &str) -> Option<Cidr> {
    let Some((written, range)) = parse_network_sloppy(text) else {
        errors.invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
        return None;
    };
    let (address, prefix) = text.split_once('/').unwrap_or_default();
    let wrong = if address.parse::<IpAddr>().is_err() || (prefix.len() > 1 && prefix.starts_with('0')) {
        "must not have leading 0s in IP or prefix length"
    } else if is_mapped(address) {
        "must not have an IPv4-mapped IPv6 address"
    } else if range.first() != written {
        "must not have bits set beyond the prefix length"
    } else {
        return Some(range);
    };
    errors.invalid(path, text, wrong);
    None
}

/// Validates a CIDR that must be in canonical form.
pub fn canonical_range(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if let Some(range) = strict_range(errors, path, text)
        && range.to_string() != text
    {
        errors.invalid(path, text, format!("must be in canonical form ({})", quoted(&range.to_string())));
    }
}

/// Returns warnings about a CIDR that programs may parse differently.
pub fn range_warnings(path: &Path<'_>, text: &str) -> Vec<String> {
    let Some((written, range)) = parse_network_sloppy(text) else { return Vec::new() };
    let value = quoted(text);
    let canonical = quoted(&range.to_string());
    let mut warnings = Vec::new();
    if range.first() != written {
        let single = quoted(&Cidr::of_address(written).to_string());
        warnings.push(format!(
            "{path}: CIDR value {value} is ambiguous in this context (should be {canonical} or {single}?)"
        ));
    }
    let (address, prefix) = text.split_once('/').unwrap_or_default();
    if address.parse::<IpAddr>().is_err() || (prefix.len() > 1 && prefix.starts_with('0')) || is_mapped(address) {
        warnings.push(format!("{path}: non-standard CIDR value {value} is invalid: use {canonical}"));
    }
    if warnings.is_empty() && written.is_ipv6() && range.to_string() != text {
        warnings.push(format!("{path}: IPv6 CIDR value {value} should be in RFC 5952 canonical format ({canonical})"));
    }
    warnings
}

/// Returns whether a list has addresses of both IP families.
pub fn is_dual_stack(addresses: &[&str]) -> bool {
    let families = || addresses.iter().filter_map(|text| parse_sloppy(text));
    families().any(|address| address.is_ipv4()) && families().any(|address| address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(errors: &Errors) -> Vec<&str> {
        errors.0.iter().map(|error| error.detail.as_str()).collect()
    }

    #[test]
    fn addresses_are_strict() {
        for (text, expected) in [
            ("10.0.0.1", vec![]),
            ("2001:db8::1", vec![]),
            ("010.0.0.1", vec!["must not have leading 0s"]),
            ("::ffff:1.2.3.4", vec!["must not be an IPv4-mapped IPv6 address"]),
            ("1.2.3", vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]),
            ("1.2.3.256", vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]),
        ] {
            let mut errors = Errors::new();
            legacy_address(&mut errors, &Path::root("ip"), text, &[]);
            assert_eq!(read(&errors), expected, "{text}");
        }
    }

    #[test]
    fn ranges_are_strict() {
        for (text, expected) in [
            ("10.0.0.0/8", vec![]),
            ("10.0.0.1/8", vec!["must not have bits set beyond the prefix length"]),
            ("10.0.0.0/08", vec!["must not have leading 0s in IP or prefix length"]),
            ("10.0.0.0/33", vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]),
            ("10.0.0.0", vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]),
        ] {
            let mut errors = Errors::new();
            legacy_range(&mut errors, &Path::root("cidr"), text, &[]);
            assert_eq!(read(&errors), expected, "{text}");
        }
    }
}
