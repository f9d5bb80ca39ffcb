//! nftables rules by which only nodes send into the tunnel between nodes.
//!
//! The tunnel has no authentication: whoever sends to its port has packets delivered to pods with any source address, past
//! policies. Rules apply after addresses are rewritten, so that no Service leads to the port either.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use super::routes::TUNNEL_PORT;
use crate::interfaces::POD_PREFIX;

const TABLE: &str = "knarr-tunnel";

/// The table, deleted and created again in one transaction.
pub fn table(nodes: &BTreeSet<IpAddr>, bridge: &str) -> String {
    let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\nadd table inet {TABLE}\n");
    for hook in ["input", "forward"] {
        let _ = writeln!(text, "add chain inet {TABLE} {hook} {{ type filter hook {hook} priority -110 ; }}");
    }
    let _ = writeln!(text, "add chain inet {TABLE} to-tunnel");
    for (ip, kind, is_ipv4) in [("ip", "ipv4_addr", true), ("ip6", "ipv6_addr", false)] {
        let set = format!("nodes-{ip}");
        let own: Vec<String> =
            nodes.iter().filter(|address| address.is_ipv4() == is_ipv4).map(IpAddr::to_string).collect();
        let _ = writeln!(text, "add set inet {TABLE} {set} {{ type {kind} ; }}");
        if !own.is_empty() {
            let _ = writeln!(text, "add element inet {TABLE} {set} {{ {} }}", own.join(", "));
        }
        let port = format!("udp dport {TUNNEL_PORT}");
        for (chain, rule) in [
            ("input", format!("{port} {ip} saddr != @{set} drop")),
            ("forward", format!("{port} {ip} daddr @{set} jump to-tunnel")),
        ] {
            let _ = writeln!(text, "add rule inet {TABLE} {chain} {rule}");
        }
    }
    // A node may be the router of others: only what pods send and what Services lead here is dropped.
    for rule in [
        format!("iifname \"{POD_PREFIX}*\" drop"),
        format!("iifname \"{bridge}\" drop"),
        "ct status dnat drop".to_owned(),
    ] {
        let _ = writeln!(text, "add rule inet {TABLE} to-tunnel {rule}");
    }
    text
}
