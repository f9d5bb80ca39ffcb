//! Endpoints: the addresses and ports of a service, in the deprecated form.

use jiff::Timestamp;
use knarr_api::cidr::parse_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::service::protocol;
use crate::common::columns::{self, field};
use crate::common::equality::same;
use crate::common::{addresses, defaults as set, formats};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of Endpoints.
pub struct Endpoints;

const COLUMNS: &[Column] =
    &[columns::NAME, field("Endpoints", "string", "io.k8s.api.core.v1.Endpoints", "subsets"), columns::AGE];
const SHOWN: usize = 3;

impl KindRules for Endpoints {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let Some(endpoints) = object.as_object_mut() else { return };
        for subset in set::objects(endpoints, "subsets") {
            for port in set::objects(subset, "ports") {
                set::text(port, "protocol", "TCP");
            }
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        for (i, subset) in object.items(&["subsets"]).iter().enumerate() {
            self::subset(&mut errors, subset, &Path::root("").item("subsets", i));
        }
        // Stored subsets are not validated again.
        if old.is_some_and(|old| same(old.at(&["subsets"]), object.at(&["subsets"]))) {
            return Errors::new();
        }
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
        if object.text(&["metadata", "labels", MANAGED_BY]) == "endpoint-controller" {
            return Vec::new();
        }
        let root = Path::default();
        let mut warnings = Vec::new();
        for (i, subset) in object.items(&["subsets"]).iter().enumerate() {
            let path = root.item("subsets", i);
            for list in ["addresses", "notReadyAddresses"] {
                for (j, address) in subset.items(&[list]).iter().enumerate() {
                    let path = path.item(list, j);
                    warnings.extend(addresses::address_warnings(&path.child("ip"), address.text(&["ip"])));
                }
            }
        }
        warnings
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), display_addresses(object).into(), columns::age(object, now)]
    }
}

fn subset(errors: &mut Errors, subset: &Value, path: &Path<'_>) {
    if subset.items(&["addresses"]).is_empty() && subset.items(&["notReadyAddresses"]).is_empty() {
        errors.required(path, "must specify `addresses` or `notReadyAddresses`");
    }
    for list in ["addresses", "notReadyAddresses"] {
        for (i, address) in subset.items(&[list]).iter().enumerate() {
            self::address(errors, address, &path.item(list, i));
        }
    }
    let ports = subset.items(&["ports"]);
    for (i, port) in ports.iter().enumerate() {
        let path = path.item("ports", i);
        match port.text(&["name"]) {
            "" if ports.len() > 1 => errors.required(&path.child("name"), ""),
            "" => {}
            name => names::check(errors, &path.child("name"), name, names::dns_label),
        }
        formats::port_number(errors, &path.child("port"), port.integer(&["port"]).unwrap_or_default());
        protocol(errors, port, &path);
        if let Some(protocol) = port.at(&["appProtocol"]).as_str() {
            names::check(errors, &path.child("appProtocol"), protocol, names::qualified_name);
        }
    }
}

fn address(errors: &mut Errors, address: &Value, path: &Path<'_>) {
    let ip = address.text(&["ip"]);
    addresses::legacy_address(errors, &path.child("ip"), ip, &[]);
    let host = address.text(&["hostname"]);
    if !host.is_empty() {
        names::check(errors, &path.child("hostname"), host, names::dns_label);
    }
    if let Some(node) = address.at(&["nodeName"]).as_str() {
        names::check(errors, &path.child("nodeName"), node, names::dns_subdomain);
    }
    endpoint_ip(errors, ip, &path.child("ip"));
}

/// Validates an address to which a service may send traffic.
pub fn endpoint_ip(errors: &mut Errors, text: &str, path: &Path<'_>) {
    let Some(ip) = parse_sloppy(text) else {
        return errors.invalid(path, text, "must be a valid IP address");
    };
    let (local_unicast, local_multicast) = match ip {
        std::net::IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        std::net::IpAddr::V6(ip) => {
            (ip.segments()[0] & 0xffc0 == 0xfe80, ip.octets()[0] == 0xff && ip.octets()[1] & 0x0f == 0x02)
        }
    };
    if ip.is_unspecified() {
        errors.invalid(path, text, format!("may not be unspecified ({text})"));
    }
    if ip.is_loopback() {
        errors.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if local_unicast {
        errors.invalid(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if local_multicast {
        errors.invalid(path, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// Renders the first few addresses with their ports.
fn display_addresses(endpoints: &Value) -> String {
    let subsets = endpoints.items(&["subsets"]);
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let ips = || subset.items(&["addresses"]).iter().map(|address| address.text(&["ip"]));
        let ports = subset.items(&["ports"]);
        if ports.is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in ports {
            let port = port.integer(&["port"]).unwrap_or_default();
            all.extend(
                ips().map(|ip| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }),
            );
        }
    }
    let first = all[..all.len().min(SHOWN)].join(",");
    if all.len() > SHOWN { format!("{first} + {} more...", all.len() - SHOWN) } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn subsets_are_checked() {
        for (subsets, expected) in [
            (json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80, "protocol": "TCP"}]}]), vec![]),
            (json!([{}]), vec!["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"]),
            (
                json!([{"addresses": [{"ip": "127.0.0.1"}]}]),
                vec![
                    "subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, \
                 ::1/128)",
                ],
            ),
            (
                json!([{"addresses": [{"ip": "x"}]}]),
                vec![
                    "subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or \
                 2001:db8::ffff)",
                    "subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address",
                ],
            ),
        ] {
            assert_eq!(messages(&Endpoints, &json!({"subsets": subsets}), None), expected);
        }
    }

    #[test]
    fn few_addresses_are_shown() {
        let ips: Vec<Value> = (1..=5).map(|n| json!({"ip": format!("10.0.0.{n}")})).collect();
        let endpoints = json!({"subsets": [{"addresses": ips, "ports": [{"port": 80}]}]});
        assert_eq!(display_addresses(&endpoints), "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more...");
        assert_eq!(display_addresses(&json!({})), "<none>");
    }
}
