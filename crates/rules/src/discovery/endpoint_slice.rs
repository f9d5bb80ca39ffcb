//! EndpointSlice: a subset of the endpoints of a service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use knarr_api::cidr::parse_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value};

use crate::common::columns::{self, AGE, NAME, field};
use crate::common::{addresses, checks, labels};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const TYPE: &str = "io.k8s.api.discovery.v1.EndpointSlice";
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const MAX_LABELS: usize = 16;
/// Managers whose slices cause no warnings, because they are controllers.
const OWN_MANAGERS: [&str; 2] = ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];

/// The rules of EndpointSlice.
pub struct EndpointSlice;

impl KindRules for EndpointSlice {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        for port in object.items_mut(&["ports"]) {
            port.set_default(&["name"], "");
            port.set_default(&["protocol"], "TCP");
        }
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        drop_topology(object, None);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, _context: &Context<'_>) {
        if object["endpoints"] != old["endpoints"] {
            drop_topology(object, Some(old));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let kind = object.text(&["addressType"]);
        let path = Path::root("addressType");
        if kind.is_empty() {
            errors.required(&path, "");
        } else {
            checks::one_of(&mut errors, &path, kind, &["FQDN", "IPv4", "IPv6"]);
        }
        validate_ports(&mut errors, object.items(&["ports"]));
        if old.is_none_or(|old| old["endpoints"] != object["endpoints"]) {
            validate_endpoints(&mut errors, object.items(&["endpoints"]), kind);
        }
        if let Some(old) = old {
            checks::immutable(&mut errors, &path, &object["addressType"], &old["addressType"]);
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if old.is_none() && object.text(&["addressType"]) == "FQDN" {
            warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        let manager = object.text(&["metadata", "labels", "endpointslice.kubernetes.io/managed-by"]);
        if OWN_MANAGERS.contains(&manager) {
            return warnings;
        }
        let path = Path::root("endpoints");
        for (i, endpoint) in object.items(&["endpoints"]).iter().enumerate() {
            let path = path.index(i);
            for (j, address) in endpoint.items(&["addresses"]).iter().enumerate() {
                let address = address.as_str().unwrap_or_default();
                warnings.extend(addresses::address_warnings(&path.item("addresses", j), address));
            }
        }
        warnings
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 1 }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        ["addressType", "endpoints", "ports"].iter().any(|field| object[field] != old[field])
            || object.at(&["metadata", "labels"]) != old.at(&["metadata", "labels"])
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("AddressType", "string", TYPE, "addressType"),
                field("Ports", "string", TYPE, "ports"),
                field("Endpoints", "string", TYPE, "endpoints"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports: Vec<String> = object
            .items(&["ports"])
            .iter()
            .map(|port| match port.integer(&["port"]) {
                Some(number) => number.to_string(),
                None => port["name"].as_str().unwrap_or("*").to_owned(),
            })
            .collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        let endpoints = object.items(&["endpoints"]).iter();
        let addresses: Vec<&str> =
            endpoints.flat_map(|endpoint| endpoint.items(&["addresses"])).filter_map(Value::as_str).collect();
        let rendered = |items: &[&str]| {
            let text = columns::join_first(items, 3, "<unset>");
            Value::from(if text.is_empty() { "<unset>".to_owned() } else { text })
        };
        vec![
            columns::name(object),
            object.text(&["addressType"]).into(),
            rendered(&ports),
            rendered(&addresses),
            columns::age(object, now),
        ]
    }
}

/// Drops the deprecated topology, which this version does not have. A node name that the stored topology has is kept in
/// `nodeName`.
fn drop_topology(object: &mut Value, old: Option<&Value>) {
    let host = ["deprecatedTopology", "kubernetes.io/hostname"];
    let known: BTreeSet<String> = old
        .into_iter()
        .flat_map(|old| old.items(&["endpoints"]))
        .map(|endpoint| endpoint.text(&host).to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    for endpoint in object.items_mut(&["endpoints"]) {
        let name = endpoint.text(&host).to_owned();
        if !endpoint.has(&["nodeName"]) && known.contains(&name) && names::dns_subdomain(&name).is_empty() {
            endpoint.set(&["nodeName"], name);
        }
        endpoint.remove(&["deprecatedTopology"]);
    }
}

fn validate_ports(errors: &mut Errors, ports: &[Value]) {
    let path = Path::root("ports");
    if ports.len() > MAX_PORTS {
        errors.too_many(&path, ports.len(), MAX_PORTS);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = port.text(&["name"]);
        if !name.is_empty() {
            names::check(errors, &path.child("name"), name, names::dns_label);
        }
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        match port["protocol"].as_str() {
            None => errors.required(&path.child("protocol"), ""),
            Some(protocol) => checks::one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]),
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            names::check(errors, &path.child("appProtocol"), protocol, names::qualified_name);
        }
    }
}

fn validate_endpoints(errors: &mut Errors, endpoints: &[Value], kind: &str) {
    let path = Path::root("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        errors.too_many(&path, endpoints.len(), MAX_ENDPOINTS);
        return;
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = path.index(index);
        let list = endpoint.items(&["addresses"]);
        let at = path.child("addresses");
        if list.is_empty() {
            errors.required(&at, "must contain at least 1 address");
        } else if list.len() > MAX_ADDRESSES {
            errors.too_many(&at, list.len(), MAX_ADDRESSES);
        }
        for (index, address) in list.iter().enumerate() {
            validate_address(errors, &at, index, address.as_str().unwrap_or_default(), kind);
        }
        if let Some(node) = endpoint["nodeName"].as_str() {
            names::check(errors, &path.child("nodeName"), node, names::dns_subdomain);
        }
        let topology = path.child("deprecatedTopology");
        let count = endpoint.fields(&["deprecatedTopology"]).map_or(0, Map::len);
        if count > MAX_LABELS {
            errors.too_many(&topology, count, MAX_LABELS);
        }
        labels::validate_labels(errors, &endpoint["deprecatedTopology"], &topology);
        if let Some(host) = endpoint["hostname"].as_str() {
            names::check(errors, &path.child("hostname"), host, names::dns_label);
        }
        validate_hints(errors, &path.child("hints"), &endpoint["hints"]);
    }
}

fn validate_address(errors: &mut Errors, list: &Path<'_>, index: usize, address: &str, kind: &str) {
    let path = list.index(index);
    let before = errors.0.len();
    let (version_4, detail) = match kind {
        "IPv4" => {
            addresses::legacy_address(errors, &path, address, &[]);
            (true, "must be an IPv4 address")
        }
        "IPv6" => {
            addresses::canonical_address(errors, &path, address);
            (false, "must be an IPv6 address")
        }
        "FQDN" => {
            validate_domain(errors, &path, address);
            return;
        }
        _ => return,
    };
    if errors.0.len() > before {
        return;
    }
    if let Some(read) = parse_sloppy(address) {
        if read.is_ipv4() != version_4 {
            errors.invalid(list, address, detail);
        }
        validate_reachable(errors, &path, address, read);
    }
}

/// Rejects loopback, link-local and other addresses that cannot be endpoints.
fn validate_reachable(errors: &mut Errors, path: &Path<'_>, text: &str, address: IpAddr) {
    let (link_local, link_local_multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => (address.is_unicast_link_local(), address.segments()[0] & 0xff0f == 0xff02),
    };
    if address.is_unspecified() {
        errors.invalid(path, text, format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        errors.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link_local {
        errors.invalid(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_local_multicast {
        errors.invalid(path, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

fn validate_domain(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let wrong = names::dns_subdomain(name);
    if !wrong.is_empty() {
        errors.invalid(path, name, wrong.join(","));
    } else if !name.contains('.') {
        errors.invalid(path, name, "should be a domain with at least two segments separated by dots");
    } else if let Some(label) = name.split('.').find(|label| !names::dns_label(label).is_empty()) {
        errors.invalid(path, label, names::dns_label(label).join(","));
    }
}

fn validate_hints(errors: &mut Errors, path: &Path<'_>, hints: &Value) {
    for (list, check) in [("forZones", names::label_value as names::Check), ("forNodes", names::dns_subdomain)] {
        let items = hints.items(&[list]);
        if items.len() > MAX_HINTS {
            errors.too_many(&path.child(list), items.len(), MAX_HINTS);
            return;
        }
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let path = path.item(list, index);
            let name = item.text(&["name"]);
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
            names::check(errors, &path.child("name"), name, check);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn slices_are_defaulted_and_shown() {
        let slice = defaulted(
            &EndpointSlice,
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}],
                "ports": [{"port": 80}]}),
        );
        assert_eq!(slice["ports"], json!([{"name": "", "protocol": "TCP", "port": 80}]));
        assert!(messages(&EndpointSlice, &slice, None).is_empty());
        let cells = EndpointSlice.cells(&slice, Timestamp::UNIX_EPOCH);
        assert_eq!(cells[..4], [json!("e"), json!("IPv4"), json!("80"), json!("10.1.2.3")]);
    }

    #[test]
    fn wrong_slices_are_reported() {
        let endpoint = |address: &str| json!([{"addresses": [address]}]);
        for (slice, wrong) in [
            (
                json!({"addressType": "IPX"}),
                vec!["addressType: Unsupported value: \"IPX\": supported values: \"FQDN\", \"IPv4\", \"IPv6\""],
            ),
            (
                json!({"addressType": "IPv4", "endpoints": [{}]}),
                vec!["endpoints[0].addresses: Required value: must contain at least 1 address"],
            ),
            (
                json!({"addressType": "IPv4", "endpoints": endpoint("127.0.0.1")}),
                vec![
                    "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, \
                     ::1/128)",
                ],
            ),
            (
                json!({"addressType": "FQDN", "endpoints": endpoint("host")}),
                vec![
                    "endpoints[0].addresses[0]: Invalid value: \"host\": should be a domain with at least two segments \
                     separated by dots",
                ],
            ),
            (
                json!({"addressType": "IPv6", "ports": [{"protocol": "TCP"}, {"protocol": "X"}]}),
                vec![
                    "ports[1].name: Duplicate value: \"\"",
                    "ports[1].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ],
            ),
        ] {
            assert_eq!(messages(&EndpointSlice, &slice, None), wrong);
        }
    }
}
