//! The tables of the proxy without any Service: their maps, sets, base chains and the chains that all Services share.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use super::{CLUSTER_ADDRESSES, ENDPOINTS, Family, HOST_PORTS, NETWORKS, NODE_ADDRESSES, PICK, TABLE, pod_networks};
use crate::capture::{self, Protected};
use crate::cidr::Cidr;
use crate::proxy::{Settings, is_of};

const MASQUERADE_MARK: &str = "0x4000";

/// The empty tables, deleted and created again.
pub fn tables(family: Family, settings: &Settings) -> String {
    let (ip, address) = (family.name(), family.address_type());
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    line(format!("add table {ip} {TABLE}"));
    line(format!("delete table {ip} {TABLE}"));
    line(format!("add table {ip} {TABLE}"));
    for (name, key) in [("services", "addr"), ("refused", "addr"), ("node-ports", "port"), ("refused-ports", "port")] {
        let key = match key {
            "addr" => format!("{address} . inet_proto . inet_service"),
            _ => "inet_proto . inet_service".to_owned(),
        };
        line(format!("add map {ip} {TABLE} {name} {{ type {key} : verdict ; }}"));
    }
    line(format!("add map {ip} {TABLE} {ENDPOINTS} {{ type mark : {address} . inet_service ; }}"));
    line(format!("add set {ip} {TABLE} hairpin {{ type {address} . {address} ; }}"));
    line(format!("add set {ip} {TABLE} {CLUSTER_ADDRESSES} {{ type {address} ; }}"));
    line(format!("add set {ip} {TABLE} {NETWORKS} {{ type {address} ; flags interval ; auto-merge ; }}"));
    line(format!("add set {ip} {TABLE} {NODE_ADDRESSES} {{ type {address} ; }}"));
    line(format!("add set {ip} {TABLE} {HOST_PORTS} {{ type inet_proto . inet_service ; }}"));
    let pods = pod_networks(family, settings);
    if !pods.is_empty() {
        let pods = pods.join(", ");
        line(format!(
            "add set {ip} {TABLE} pods {{ type {address} ; flags interval ; auto-merge ; elements = {{ {pods} }} ; }}"
        ));
    }
    for chain in ["dispatch", "masquerade-later", "refuse", "refused-first", "unclaimed", PICK] {
        line(format!("add chain {ip} {TABLE} {chain}"));
    }
    for (chain, kind, hook, priority) in [
        ("prerouting", "nat", "prerouting", "dstnat"),
        ("output", "nat", "output", "-100"),
        ("postrouting", "nat", "postrouting", "srcnat"),
        ("filter-input", "filter", "input", "-110"),
        ("filter-forward", "filter", "forward", "-110"),
        ("filter-output", "filter", "output", "-110"),
        ("filter-output-late", "filter", "output", "-90"),
    ] {
        line(format!("add chain {ip} {TABLE} {chain} {{ type {kind} hook {hook} priority {priority} ; }}"));
    }
    let mut rule = |chain: &str, rule: &str| line(format!("add rule {ip} {TABLE} {chain} {rule}"));
    rule("masquerade-later", &format!("meta mark set meta mark or {MASQUERADE_MARK}"));
    rule(PICK, &format!("meta l4proto {{ tcp, udp, sctp }} dnat {ip} to ct mark map @{ENDPOINTS}"));
    rule("refuse", "meta l4proto tcp reject with tcp reset");
    rule("refuse", "reject");
    // A node's own ports are never captured, whatever Services claim.
    rule("dispatch", &format!("{ip} daddr @{NODE_ADDRESSES} meta l4proto . th dport @{HOST_PORTS} return"));
    rule("dispatch", &format!("{ip} daddr . meta l4proto . th dport vmap @services"));
    let nodes = node_addresses(family, settings);
    rule("dispatch", &format!("{nodes} meta l4proto . th dport vmap @node-ports"));
    rule("prerouting", "jump dispatch");
    rule("output", "jump dispatch");
    for chain in ["filter-input", "filter-forward", "filter-output"] {
        rule(chain, "ct state new jump refused-first");
    }
    // After endpoints have been assigned, new connections to a Service address are to none of its ports, and must not leave
    // through the default route.
    for chain in ["filter-forward", "filter-output-late"] {
        rule(chain, "ct state new jump unclaimed");
    }
    rule("unclaimed", &format!("{ip} daddr @{CLUSTER_ADDRESSES} goto refuse"));
    rule("unclaimed", &format!("{ip} daddr @{NETWORKS} fib daddr type != local drop"));
    rule("refused-first", &format!("{ip} daddr . meta l4proto . th dport vmap @refused"));
    rule("refused-first", &format!("{nodes} meta l4proto . th dport vmap @refused-ports"));
    rule(
        "postrouting",
        &format!(
            "meta mark and {MASQUERADE_MARK} != 0 meta mark set meta mark xor {MASQUERADE_MARK} masquerade fully-random"
        ),
    );
    rule("postrouting", &format!("{ip} saddr . {ip} daddr @hairpin masquerade fully-random"));
    text
}

/// Replaces the Service networks.
pub fn set_networks(networks: &BTreeSet<Cidr>, family: Family) -> String {
    let ip = family.name();
    let own: Vec<String> =
        networks.iter().filter(|one| one.is_ipv4() == (family == Family::V4)).map(Cidr::to_string).collect();
    let mut text = format!("flush set {ip} {TABLE} {NETWORKS}\n");
    if !own.is_empty() {
        let _ = writeln!(text, "add element {ip} {TABLE} {NETWORKS} {{ {} }}", own.join(", "));
    }
    text
}

/// Replaces the protected addresses and ports.
pub fn set_protected(protected: &Protected, family: Family) -> String {
    let ip = family.name();
    let own = protected.node_addresses.iter().filter(|address| is_of(address, family));
    let own: Vec<String> = own.map(IpAddr::to_string).collect();
    let ports = capture::host_ports(&protected.ports);
    let ports: Vec<String> = ports.iter().map(|(protocol, port)| format!("{} . {port}", protocol.name())).collect();
    let mut text = String::new();
    for (set, elements) in [(NODE_ADDRESSES, own), (HOST_PORTS, ports)] {
        let _ = writeln!(text, "flush set {ip} {TABLE} {set}");
        if !elements.is_empty() {
            let _ = writeln!(text, "add element {ip} {TABLE} {set} {{ {} }}", elements.join(", "));
        }
    }
    text
}

/// The match for node port destinations. Loopback is excluded: packets from it cannot leave the host.
fn node_addresses(family: Family, settings: &Settings) -> String {
    let (ip, loopback) = match family {
        Family::V4 => ("ip", "127.0.0.0/8"),
        Family::V6 => ("ip6", "::1"),
    };
    let own: Vec<&str> = settings
        .node_port_addresses
        .iter()
        .map(String::as_str)
        .filter(|text| text.contains(':') == (family == Family::V6))
        .collect();
    if own.is_empty() {
        format!("fib daddr type local {ip} daddr != {loopback}")
    } else {
        format!("fib daddr type local {ip} daddr {{ {} }}", own.join(", "))
    }
}
