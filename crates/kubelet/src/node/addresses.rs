//! The addresses under which the node is reached.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

use crate::settings::Settings;

/// The chosen address, or that of the interface the default route goes through, or the first that is no loopback.
pub fn node_addresses(settings: &Settings) -> Vec<String> {
    if let Some(chosen) = settings.node_ip {
        return vec![chosen.to_string()];
    }
    let all = interface_addresses();
    let routed = default_interface(&std::fs::read_to_string("/proc/net/route").unwrap_or_default());
    let on_route = |name: &str| routed.as_deref() == Some(name);
    let v4 = |address: &IpAddr| address.is_ipv4();
    let best = all
        .iter()
        .find(|(name, address)| on_route(name) && v4(address))
        .or_else(|| all.iter().find(|(_, address)| v4(address)))
        .or_else(|| all.first());
    match best {
        Some((_, address)) => vec![address.to_string()],
        None => vec!["127.0.0.1".to_string()],
    }
}

fn interface_addresses() -> Vec<(String, IpAddr)> {
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
    #[test]
    fn the_default_route_is_found() {
        let table = "Iface\tDestination\tGateway\nbr0\t0000000A\t0\neth0\t00000000\t0102\n";
        assert_eq!(super::default_interface(table).as_deref(), Some("eth0"));
    }
}
