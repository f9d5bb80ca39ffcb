//! Prepares the node for pods' packets: forwarding, the rules of `guard`, and masquerading of what leaves the cluster.

use std::fmt::Write;

use super::guard;
use crate::cidr::Cidr;
use crate::nft::{self, NftError};
use crate::sysctl;

const TABLE: &str = "knarr-pods";

/// Enables forwarding of pods' packets, and masquerading of those that leave the cluster.
pub fn prepare(bridge: &str, pod_cidrs: &[Cidr], cluster_cidrs: &[Cidr]) -> Result<(), NftError> {
    sysctl::set("net/ipv4/ip_forward", "1");
    // The kernel sends redirects when a packet leaves through its incoming interface, as between two pods of a node.
    sysctl::set("net/ipv4/conf/all/send_redirects", "0");
    if pod_cidrs.iter().any(|cidr| !cidr.is_ipv4()) {
        sysctl::set("net/ipv6/conf/all/forwarding", "1");
    }
    nft::run(&format!("{}{}", guard::table(bridge, pod_cidrs), masquerade(pod_cidrs, cluster_cidrs)))
}

fn masquerade(pod_cidrs: &[Cidr], cluster_cidrs: &[Cidr]) -> String {
    let mut text = String::new();
    for (ip, kind, is_ipv4, never) in
        [("ip", "ipv4_addr", true, "224.0.0.0/4"), ("ip6", "ipv6_addr", false, "ff00::/8")]
    {
        let own = |cidrs: &[Cidr]| -> Vec<String> {
            cidrs.iter().filter(|cidr| cidr.is_ipv4() == is_ipv4).map(Cidr::to_string).collect()
        };
        let pods = own(pod_cidrs);
        let _ = writeln!(text, "add table {ip} {TABLE}\ndelete table {ip} {TABLE}");
        if pods.is_empty() {
            continue;
        }
        let mut inside = own(cluster_cidrs);
        if inside.is_empty() {
            inside.clone_from(&pods);
        }
        inside.push(never.to_owned());
        let _ = writeln!(text, "add table {ip} {TABLE}");
        let inside = inside.join(", ");
        let _ = writeln!(
            text,
            "add set {ip} {TABLE} inside {{ type {kind} ; flags interval ; auto-merge ; elements = {{ {inside} }} ; }}"
        );
        let _ = writeln!(text, "add chain {ip} {TABLE} postrouting {{ type nat hook postrouting priority srcnat ; }}");
        let _ = writeln!(
            text,
            "add rule {ip} {TABLE} postrouting {ip} saddr {{ {} }} {ip} daddr != @inside masquerade fully-random",
            pods.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_traffic_that_leaves_the_cluster_is_masqueraded() {
        let text = masquerade(&["10.244.1.0/24".parse().unwrap()], &["10.244.0.0/16".parse().unwrap()]);
        assert!(
            text.contains("type ipv4_addr ; flags interval ; auto-merge ; elements = { 10.244.0.0/16, 224.0.0.0/4 }")
        );
        assert!(text.contains("postrouting ip saddr { 10.244.1.0/24 } ip daddr != @inside masquerade fully-random"));
        assert!(!text.contains("add chain ip6"), "a family without pods has no table: {text}");
    }
}
