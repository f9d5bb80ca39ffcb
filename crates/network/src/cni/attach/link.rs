//! The link between a pod and its node: the bridge, the veth pair, its addresses, routes and rate limits.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use sha2::{Digest, Sha256};

use super::kernel;
use crate::cidr::Cidr;
use crate::cni::guard;
use crate::cni::leases::{self, Lease};
use crate::cni::node;
use crate::cni::reply::{Attached, Failure, codes, default_network};
use crate::cni::request::{Bandwidth, Config, Request};
use crate::interfaces::TUNNEL;
use crate::netlink::{Link, Netlink, NetlinkError, Pair, Route};
use crate::{namespace, sysctl};

/// Minimum burst: smaller buckets would drop whole packets, such as segments that the kernel merged.
const MIN_BURST: u64 = 64 * 1024;

/// The configured MTU; else that of the tunnel between nodes; else that of the default route's interface.
pub async fn mtu(netlink: &Netlink, config: &Config) -> Result<u32, NetlinkError> {
    if let Some(mtu) = config.mtu {
        return Ok(mtu);
    }
    if let Ok(tunnel) = netlink.link(TUNNEL).await {
        return Ok(tunnel.mtu);
    }
    match netlink.default_link().await? {
        Some(index) => Ok(netlink.link_at(index).await?.mtu),
        None => Ok(1500),
    }
}

/// Creates the bridge if needed. Returns its hardware address.
pub async fn ensure_bridge(netlink: &Netlink, config: &Config, mtu: u32) -> Result<Vec<u8>, Failure> {
    let gateways: Vec<(IpAddr, u8)> =
        config.pod_cidrs.iter().filter_map(|network| Some((leases::gateway(network)?, network.length()))).collect();
    let first = gateways.first().map(|(address, _)| *address);
    let mac = first.map(hardware_address).unwrap_or([0x0a, 0x58, 0, 0, 0, 1]);
    let is_new = match netlink.link(&config.bridge).await {
        Ok(_) => false,
        Err(NetlinkError::NoLink(_)) => {
            match netlink.add_bridge(&config.bridge, mac, mtu).await {
                Err(error) if !error.is_exists() => return Err(kernel(error)),
                _ => {}
            }
            true
        }
        Err(error) => return Err(kernel(error)),
    };
    let link = netlink.link(&config.bridge).await.map_err(kernel)?;
    netlink.bring_up(link.index).await.map_err(kernel)?;
    for (address, length) in gateways {
        netlink.add_address(link.index, address, length).await.map_err(kernel)?;
    }
    if is_new {
        guard::harden(&config.bridge);
        if let Err(error) = node::prepare(&config.bridge, &config.pod_cidrs, &config.cluster_cidrs) {
            // The next call finds no bridge, and tries again: no pod is attached without these rules.
            netlink.delete_link(link.index).await.map_err(kernel)?;
            return Err(Failure::of(codes::KERNEL, &error));
        }
    }
    Ok(link.mac)
}

/// Creates the pod's interface with its addresses and routes.
pub async fn connect(
    netlink: &Netlink,
    request: &Request,
    inside: &std::fs::File,
    held: &Lease,
    mtu: u32,
) -> Result<Attached, Failure> {
    let mac = held.addresses.first().map(|address| hardware_address(*address));
    let pair = Pair {
        host: &held.host_interface,
        inside: &request.interface,
        namespace: inside.as_raw_fd(),
        inside_mac: mac,
        mtu,
    };
    netlink.add_pair(&pair).await.map_err(kernel)?;
    let host = netlink.link(&held.host_interface).await.map_err(kernel)?;
    let gateways: Vec<IpAddr> = request.config.pod_cidrs.iter().filter_map(leases::gateway).collect();
    let addresses: Vec<(IpAddr, IpAddr)> = held.addresses.iter().copied().zip(gateways).collect();
    set_up_host(netlink, &host, held, &addresses).await.map_err(kernel)?;
    let name = request.interface.as_str();
    let limits = request.config.runtime_config.bandwidth.clone().unwrap_or_default();
    let (for_thread, egress, host_mac) = (addresses.clone(), egress(&limits), host.mac.clone());
    let link =
        namespace::run_inside(inside, || async move { set_up_inside(name, &for_thread, &host_mac, egress).await });
    let link = link.map_err(|error| Failure::of(codes::KERNEL, &error))?.map_err(kernel)?;
    if let Some((rate, burst)) = ingress(&limits) {
        netlink.limit_rate(host.index, rate, burst).await.map_err(kernel)?;
    }
    Ok(Attached {
        bridge: request.config.bridge.clone(),
        bridge_mac: String::new(),
        host: held.host_interface.clone(),
        host_mac: mac_text(&host.mac),
        interface: request.interface.clone(),
        mac: mac_text(&link),
        namespace: held.namespace.display().to_string(),
        mtu,
        addresses,
    })
}

/// Sets up the node's end: the gateway addresses, and the routes to the pod's.
async fn set_up_host(
    netlink: &Netlink,
    host: &Link,
    held: &Lease,
    addresses: &[(IpAddr, IpAddr)],
) -> Result<(), NetlinkError> {
    guard::harden(&held.host_interface);
    if !held.ports.is_empty() {
        // Connections from the node's loopback to a host port are forwarded to the pod. Packets from pods to loopback
        // addresses are dropped by the guard.
        sysctl::set(&format!("net/ipv4/conf/{}/route_localnet", held.host_interface), "1");
    }
    netlink.bring_up(host.index).await?;
    let mac = held.addresses.first().map(|address| hardware_address(*address));
    for (address, gateway) in addresses {
        netlink.add_address(host.index, *gateway, whole(*gateway)).await?;
        if let Some(mac) = mac {
            netlink.set_neighbour(host.index, *address, &mac).await?;
        }
        if let Some(to) = Cidr::new(*address, whole(*address)) {
            let route = Route { to, gateway: None, link: Some(host.index), on_link: false, source: None };
            netlink.set_route(&route, false).await?;
        }
    }
    Ok(())
}

/// Sets up the pod's end: addresses, and routes through the gateway. Returns the hardware address.
async fn set_up_inside(
    name: &str,
    addresses: &[(IpAddr, IpAddr)],
    gateway_mac: &[u8],
    limit: Option<(u64, u32)>,
) -> Result<Vec<u8>, NetlinkError> {
    let netlink = Netlink::open()?;
    let link = netlink.link(name).await?;
    if addresses.iter().any(|(address, _)| address.is_ipv6()) {
        sysctl::set(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0");
    }
    guard::harden(name);
    netlink.bring_up(netlink.link("lo").await?.index).await?;
    netlink.bring_up(link.index).await?;
    for (address, gateway) in addresses {
        let own = whole(*address);
        netlink.add_address(link.index, *address, own).await?;
        netlink.set_neighbour(link.index, *gateway, gateway_mac).await?;
        if let Some(to) = Cidr::new(*gateway, own) {
            let route = Route { to, gateway: None, link: Some(link.index), on_link: false, source: None };
            netlink.set_route(&route, false).await?;
        }
        if let Some(to) = default_network(*address) {
            let route = Route { to, gateway: Some(*gateway), link: Some(link.index), on_link: false, source: None };
            netlink.set_route(&route, false).await?;
        }
    }
    if let Some((rate, burst)) = limit {
        netlink.limit_rate(link.index, rate, burst).await?;
    }
    Ok(link.mac)
}

/// The prefix length of a single address.
pub fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Rate towards the pod, in bytes per second and burst bytes.
fn ingress(limits: &Bandwidth) -> Option<(u64, u32)> {
    rate(limits.ingress_rate, limits.ingress_burst)
}

fn egress(limits: &Bandwidth) -> Option<(u64, u32)> {
    rate(limits.egress_rate, limits.egress_burst)
}

fn rate(bits_a_second: u64, burst_bits: u64) -> Option<(u64, u32)> {
    // Callers that want no limit on bursts send the largest number there is.
    let burst = (burst_bits / 8).clamp(MIN_BURST, u64::from(u32::MAX / 4));
    (bits_a_second > 0).then(|| (bits_a_second.div_ceil(8), u32::try_from(burst).unwrap_or(u32::MAX / 4)))
}

/// A hardware address derived from an address: neighbour entries stay right when an address moves to another pod.
pub fn hardware_address(address: IpAddr) -> [u8; 6] {
    let last: [u8; 4] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let hash = Sha256::digest(address.octets());
            [hash[0], hash[1], hash[2], hash[3]]
        }
    };
    [0x0a, 0x58, last[0], last[1], last[2], last[3]]
}

pub fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_bytes() {
        for (bits, burst, expected) in
            [(0, 0, None), (8_000_000, 0, Some((1_000_000, 65_536))), (8, u64::MAX, Some((1, u32::MAX / 4)))]
        {
            assert_eq!(rate(bits, burst), expected);
        }
    }
}
