//! Chooses the address of this host, if none is configured.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;

/// How often the host's address is compared.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// The address of a host without a network. Endpoints cannot have loopback addresses, so it uses the one that is reserved
/// for hosts without an IPv4 address (RFC 7600).
pub const FALLBACK_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// The address of the default route's interface, or the first that is not loopback.
pub fn own_address() -> IpAddr {
    best(&interface_addresses(), default_route().as_deref())
}

/// The interface of the default route.
fn default_route() -> Option<String> {
    default_interface(&std::fs::read_to_string("/proc/net/route").unwrap_or_default())
}

/// Restarts this process when `own` is no longer the address of the host: all components still use the old address. Pods
/// keep running.
pub async fn restart_when_moved(own: IpAddr) {
    let mut candidate = None;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let moved = moved_from(own);
        // A new address counts once it is seen twice: interfaces get their addresses one by one.
        if moved.is_some() && moved == candidate {
            tracing::warn!(from = %own, to = ?moved, "this host has another address now; restarting with it");
            crate::restart::request();
            // This process ends.
            return std::future::pending().await;
        }
        candidate = moved;
    }
}

/// The current address of the host, if it no longer has the address `own`.
pub fn moved_from(own: IpAddr) -> Option<IpAddr> {
    let (all, routed) = (interface_addresses(), default_route());
    let has_device = |name: &str| std::path::Path::new("/sys/class/net").join(name).join("device").exists();
    successor(own, &all, routed.as_deref(), has_device)
}

/// The address that replaces `own`. Only addresses on the interface of the default route or on a hardware device count: while
/// the network is down, a host has only addresses of virtual networks, at which no other host reaches it.
fn successor(
    own: IpAddr,
    all: &[(String, IpAddr)],
    routed: Option<&str>,
    has_device: impl Fn(&str) -> bool,
) -> Option<IpAddr> {
    if own.is_loopback() || all.iter().any(|(_, address)| *address == own) {
        return None;
    }
    let lasting = all.iter().filter(|(name, _)| routed == Some(name.as_str()) || has_device(name)).cloned();
    let best = best(&lasting.collect::<Vec<_>>(), routed);
    // Without a usable address, the host keeps `own` until its network is back.
    (!best.is_loopback() && best != FALLBACK_ADDRESS).then_some(best)
}

/// Ensures that there is an address by which pods on this host can reach it.
pub async fn ensure_address() {
    if own_address().is_loopback()
        && let Err(error) = knarr_network::add_local_address(FALLBACK_ADDRESS.into()).await
    {
        tracing::warn!(%error, "this host has no address by which its pods could reach it");
    }
}

fn best(all: &[(String, IpAddr)], routed: Option<&str>) -> IpAddr {
    let on_route = |name: &str| routed == Some(name);
    let v4 = |address: &IpAddr| address.is_ipv4();
    // Loopback has the cluster DNS address and our bridge the pods' gateway: neither is the host's own.
    let own: Vec<_> = all.iter().filter(|(name, _)| name != "lo" && !name.starts_with("knarr")).collect();
    let best = own
        .iter()
        .find(|(name, address)| on_route(name) && v4(address))
        .or_else(|| own.iter().find(|(_, address)| v4(address)))
        .or_else(|| own.first());
    let has_fallback = || all.iter().any(|(_, address)| *address == FALLBACK_ADDRESS);
    match best {
        Some((_, address)) => *address,
        None if has_fallback() => FALLBACK_ADDRESS.into(),
        None => Ipv4Addr::LOCALHOST.into(),
    }
}

/// All addresses except loopback and link-local ones, with the names of their interfaces.
pub fn interface_addresses() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    for interface in getifaddrs().into_iter().flatten() {
        let Some(address) = interface.address else { continue };
        let ip = if let Some(v4) = address.as_sockaddr_in() {
            IpAddr::V4(v4.ip())
        } else if let Some(v6) = address.as_sockaddr_in6() {
            IpAddr::V6(v6.ip())
        } else {
            continue;
        };
        let local = match ip {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_loopback() || (ip.segments()[0] & 0xffc0) == 0xfe80,
        };
        if !local {
            found.push((interface.interface_name, ip));
        }
    }
    found
}

/// The second column of the routing table is the destination, zero for the default route.
fn default_interface(table: &str) -> Option<String> {
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_whitespace();
        let name = columns.next()?;
        (columns.next()? == "00000000").then(|| name.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_is_chosen() {
        let all = |rows: &[(&str, &str)]| -> Vec<(String, IpAddr)> {
            rows.iter().map(|(name, address)| (name.to_string(), address.parse().unwrap())).collect()
        };
        let ours = [("lo", "10.96.0.10"), ("knarr0", "10.244.0.1")];
        let with = |more: &[(&str, &str)]| all(&[&ours[..], more].concat());
        for (rows, routed, expected) in [
            (with(&[]), None, "127.0.0.1"),
            (with(&[("lo", "192.0.0.8")]), None, "192.0.0.8"),
            (with(&[("lo", "192.0.0.8"), ("eth0", "192.0.2.7")]), None, "192.0.2.7"),
            (with(&[("eth0", "192.0.2.7")]), None, "192.0.2.7"),
            (with(&[("eth0", "192.0.2.7"), ("eth1", "198.51.100.7")]), Some("eth1"), "198.51.100.7"),
            (with(&[("eth0", "2001:db8::7")]), Some("eth0"), "2001:db8::7"),
        ] {
            assert_eq!(best(&rows, routed).to_string(), expected, "{rows:?}");
        }
    }

    #[test]
    fn an_address_that_is_gone_is_replaced() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let on = |name: &str, address: &str| (name.to_owned(), at(address));
        let (eth0, eth1, docker0) = (on("eth0", "192.0.2.7"), on("eth1", "192.0.2.8"), on("docker0", "172.17.0.1"));
        let all = vec![docker0.clone(), eth0, eth1];
        for (own, all, routed, expected) in [
            ("192.0.2.7", all.clone(), Some("eth1"), None),
            ("192.0.2.8", all.clone(), None, None),
            ("192.0.2.9", all.clone(), None, Some(at("192.0.2.7"))),
            ("192.0.2.9", all.clone(), Some("eth1"), Some(at("192.0.2.8"))),
            ("192.0.2.9", vec![], None, None),
            ("192.0.2.9", vec![on("lo", "192.0.0.8")], None, None),
            ("127.0.0.1", all, None, None),
            // The cable was pulled.
            ("192.0.2.7", vec![docker0], None, None),
            // Not a device, but where the host's packets go.
            ("192.0.2.9", vec![on("br0", "192.0.2.10")], Some("br0"), Some(at("192.0.2.10"))),
        ] {
            let found = successor(at(own), &all, routed, |name| name.starts_with("eth"));
            assert_eq!(found, expected, "{own} {all:?} {routed:?}");
        }
    }

    #[test]
    fn the_default_route_is_found() {
        let table = "Iface\tDestination\tGateway\nbr0\t0000000A\t0\neth0\t00000000\t0102\n";
        assert_eq!(default_interface(table).as_deref(), Some("eth0"));
    }
}
