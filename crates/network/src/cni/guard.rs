//! What keeps pods to their own addresses and the node to itself, by rules that are in force before a pod's first packet.

use std::fmt::Write;

use crate::sysctl;

/// How the node's ends of pods' interfaces begin. A link of its own leads to each pod.
pub const INTERFACES: &str = "knarrp";
const TABLE: &str = "knarr-guard";

/// Whether a pod has a link of its own with the node; others hang on the bridge.
pub fn is_routed(host_interface: &str) -> bool {
    host_interface.starts_with(INTERFACES)
}

/// Has the kernel believe nothing about routes that comes in by an interface, and send no such advice.
pub fn harden(interface: &str) {
    for setting in ["accept_redirects", "secure_redirects", "send_redirects", "accept_source_route", "proxy_arp"] {
        sysctl::set(&format!("net/ipv4/conf/{interface}/{setting}"), "0");
    }
    // Set where there is no IPv6 among pods, too: the machine may speak it all the same.
    for setting in ["accept_ra", "accept_redirects", "autoconf", "accept_dad", "accept_source_route"] {
        sysctl::set(&format!("net/ipv6/conf/{interface}/{setting}"), "0");
    }
}

/// The table, made anew.
///
/// - Loopback addresses are for the machine itself: a setting that host ports need (`route_localnet`) would let packets for
///   them in from pods and from neighbours.
/// - What comes from a pod must have a source to which a route leads back the same way; the node's own addresses have none.
/// - Pods are no routers.
pub fn table(bridge: &str) -> String {
    let mut text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\nadd table inet {TABLE}\n");
    let _ = writeln!(text, "add chain inet {TABLE} from-pod");
    let _ = writeln!(text, "add chain inet {TABLE} prerouting {{ type filter hook prerouting priority raw ; }}");
    for (chain, rule) in [
        ("prerouting", "iif != lo ip daddr 127.0.0.0/8 drop".to_owned()),
        ("prerouting", "iif != lo ip saddr 127.0.0.0/8 drop".to_owned()),
        ("prerouting", "iif != lo ip6 daddr ::1 drop".to_owned()),
        ("prerouting", "iif != lo ip6 saddr ::1 drop".to_owned()),
        ("prerouting", format!("iifname \"{INTERFACES}*\" jump from-pod")),
        ("prerouting", format!("iifname \"{bridge}\" jump from-pod")),
        ("from-pod", "ip saddr 0.0.0.0/8 drop".to_owned()),
        ("from-pod", "icmp type { redirect, router-advertisement } drop".to_owned()),
        ("from-pod", "icmpv6 type { nd-router-advert, nd-redirect } drop".to_owned()),
        ("from-pod", "fib saddr . iif oif missing drop".to_owned()),
    ] {
        let _ = writeln!(text, "add rule inet {TABLE} {chain} {rule}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_is_no_pod_s_interface() {
        for (name, expected) in
            [("knarrp0123456ab", true), ("knarr0", false), ("knarr-vx", false), ("kn0123456789ab", false)]
        {
            assert_eq!(is_routed(name), expected, "{name}");
        }
        assert!(table("knarr7").contains("iifname \"knarr7\" jump from-pod"));
    }
}
