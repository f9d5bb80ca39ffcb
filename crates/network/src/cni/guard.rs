//! nftables rules that restrict pods to their own addresses and protect the node, in force before a pod's first packet.

use std::fmt::Write;

use crate::cidr::Cidr;
use crate::interfaces::POD_PREFIX;
use crate::sysctl;

const TABLE: &str = "knarr-guard";

/// Whether a pod has its own link with the node; older ones are on the bridge.
pub fn is_routed(host_interface: &str) -> bool {
    host_interface.starts_with(POD_PREFIX)
}

/// Makes the kernel ignore redirects and router advertisements on an interface, and send no redirects.
pub fn harden(interface: &str) {
    for setting in ["accept_redirects", "secure_redirects", "send_redirects", "accept_source_route", "proxy_arp"] {
        sysctl::set(&format!("net/ipv4/conf/{interface}/{setting}"), "0");
    }
    // Set even if pods have no IPv6: the host may have it all the same.
    for setting in ["accept_ra", "accept_redirects", "autoconf", "accept_dad", "accept_source_route"] {
        sysctl::set(&format!("net/ipv6/conf/{interface}/{setting}"), "0");
    }
}

/// The table, deleted and created again.
///
/// - Loopback addresses are for the node itself: the `route_localnet` setting that host ports need would let in packets for
///   them from pods and neighbours.
/// - A packet from a pod must have a source address that is routed back to the same pod; the node's own addresses are not.
/// - Nobody else sends as a pod of this node, neither from a network nor through the tunnel between nodes.
/// - Pods cannot act as routers.
pub fn table(bridge: &str, pods: &[Cidr]) -> String {
    let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\nadd table inet {TABLE}\n");
    let _ = writeln!(text, "add chain inet {TABLE} from-pod");
    let _ = writeln!(text, "add chain inet {TABLE} prerouting {{ type filter hook prerouting priority raw ; }}");
    for (chain, rule) in [
        ("prerouting", "iif != lo ip daddr 127.0.0.0/8 drop".to_owned()),
        ("prerouting", "iif != lo ip saddr 127.0.0.0/8 drop".to_owned()),
        ("prerouting", "iif != lo ip6 daddr ::1 drop".to_owned()),
        ("prerouting", "iif != lo ip6 saddr ::1 drop".to_owned()),
        ("prerouting", format!("iifname \"{POD_PREFIX}*\" jump from-pod")),
        ("prerouting", format!("iifname \"{bridge}\" jump from-pod")),
        ("from-pod", "ip saddr 0.0.0.0/8 drop".to_owned()),
        ("from-pod", "icmp type { redirect, router-advertisement } drop".to_owned()),
        ("from-pod", "icmpv6 type { nd-router-advert, nd-redirect } drop".to_owned()),
        ("from-pod", "fib saddr . iif oif missing drop".to_owned()),
    ] {
        let _ = writeln!(text, "add rule inet {TABLE} {chain} {rule}");
    }
    for network in pods {
        let ip = if network.is_ipv4() { "ip" } else { "ip6" };
        let elsewhere = format!("iif != lo iifname != \"{POD_PREFIX}*\" iifname != \"{bridge}\"");
        let _ = writeln!(text, "add rule inet {TABLE} prerouting {elsewhere} {ip} saddr {network} drop");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_is_not_a_pod_interface() {
        for (name, expected) in
            [("knarrp0123456ab", true), ("knarr0", false), ("knarr-vx", false), ("kn0123456789ab", false)]
        {
            assert_eq!(is_routed(name), expected, "{name}");
        }
        assert!(table("knarr7", &[]).contains("iifname \"knarr7\" jump from-pod"));
    }
}
