//! Creates and deletes a pod's interface.
//!
//! A pod shares a link with the node only: a veth pair, with a route to the pod's addresses (/32, /128) at the node's end and
//! the default route at the pod's. All its traffic, to pods on the same node too, is thus routed by the node, where Services
//! and policies are applied; no frame reaches another pod, and packets without the pod's own source address are dropped
//! (`guard`). Neighbour entries are permanent on both sides, so ARP cannot be spoofed.
//!
//! The bridge holds the gateway address and the route to the node's pod CIDR. Pods that an earlier version attached to it
//! stay there until they terminate (`adopt`).

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::guard;
use super::host_ports;
use super::leases::{self, Lease, LeaseError, Leases, NewLease};
use super::reply::{Attached, Failure, codes, default_network};
use super::request::{Attachment, Bandwidth, Config, Request};
use crate::cidr::Cidr;
use crate::netlink::{Link, Netlink, NetlinkError, Pair, Route};
use crate::{namespace, pod_network, policy, sysctl};

/// Minimum burst: smaller buckets would drop whole packets, such as segments that the kernel merged.
const MIN_BURST: u64 = 64 * 1024;

pub async fn add(request: &Request) -> Result<Value, Failure> {
    let config = &request.config;
    check_config(config)?;
    host_ports::check(&config.runtime_config.port_mappings)
        .map_err(|refusal| Failure::of(codes::PORT_IN_USE, &refusal))?;
    let path = request.namespace.as_deref().ok_or_else(|| Failure::new(codes::ENVIRONMENT, "CNI_NETNS is missing"))?;
    let inside = namespace::open(path).map_err(|error| Failure::of(codes::UNKNOWN_CONTAINER, &error))?;
    let netlink = Netlink::open().map_err(kernel)?;
    let mtu = mtu(&netlink, config).await.map_err(kernel)?;
    let bridge_mac = ensure_bridge(&netlink, config, mtu).await?;

    let leases = Leases::open(&config.data_dir, &config.name).map_err(lease)?;
    if let Some(old) = leases.find(&request.container, &request.interface).map_err(lease)? {
        detach(&leases, &old).await.map_err(lease)?;
    }
    let host = host_name(&request.container, &request.interface);
    let new = NewLease {
        container: &request.container,
        interface: &request.interface,
        namespace: path,
        host_interface: &host,
        ports: &config.runtime_config.port_mappings,
        pod: request.pod.as_ref(),
    };
    let lease_made = leases.acquire(new, &config.pod_cidrs).map_err(lease)?;
    // Host ports are changed under the lock; the remaining work does not need it.
    let done = connect(&netlink, request, &inside, &lease_made, mtu).await;
    let done = match done {
        Ok(attached) => {
            host_ports::open(&lease_made).map(|()| attached).map_err(|error| Failure::of(codes::KERNEL, &error))
        }
        failed => failed,
    };
    match done {
        Ok(mut attached) => {
            attached.bridge_mac = mac_text(&bridge_mac);
            // Release the lock, so that other calls need not wait until policies are in force.
            drop(leases);
            policy::announce(&config.data_dir, &lease_made);
            Ok(attached.to_json(&request.version()))
        }
        Err(failure) => {
            // The runtime need not call DEL after a failure: clean up.
            detach(&leases, &lease_made).await.map_err(lease)?;
            Err(failure)
        }
    }
}

pub async fn delete(request: &Request) -> Result<(), Failure> {
    if request.config.data_dir.as_os_str().is_empty() {
        return Err(Failure::new(codes::CONFIGURATION, "dataDir is missing"));
    }
    let leases = Leases::open(&request.config.data_dir, &request.config.name).map_err(lease)?;
    if let Some(found) = leases.find(&request.container, &request.interface).map_err(lease)? {
        return detach(&leases, &found).await.map_err(lease);
    }
    // Even without a lease the interface may exist.
    remove_link(&host_name(&request.container, &request.interface)).await.map_err(kernel)
}

/// Isolates pods that an earlier version attached to the bridge from one another: they reach each other through the node
/// only, as their routes prescribe. Returns their number.
pub async fn adopt(leases: &Leases, bridge: &str) -> Result<usize, LeaseError> {
    let Ok(netlink) = Netlink::open() else { return Ok(0) };
    let Ok(bridge) = netlink.link(bridge).await else { return Ok(0) };
    let mut count = 0;
    for held in leases.all()?.iter().filter(|held| !guard::is_routed(&held.host_interface)) {
        let isolated = match netlink.link(&held.host_interface).await {
            Ok(link) if link.controller == Some(bridge.index) => netlink.isolate_port(link.index).await,
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        match isolated {
            Ok(()) => count += 1,
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(interface = held.host_interface, %error, "cannot isolate a pod"),
        }
    }
    Ok(count)
}

pub async fn check(request: &Request) -> Result<(), Failure> {
    let config = &request.config;
    check_config(config)?;
    let missing = |what: &str| Failure::new(codes::KERNEL, format!("{what} is missing"));
    let found = Leases::open(&config.data_dir, &config.name)
        .and_then(|leases| leases.find(&request.container, &request.interface))
        .map_err(lease)?
        .ok_or_else(|| Failure::new(codes::UNKNOWN_CONTAINER, "the container has no address"))?;
    let netlink = Netlink::open().map_err(kernel)?;
    let bridge = netlink.link(&config.bridge).await.map_err(kernel)?;
    let host = netlink.link(&found.host_interface).await.map_err(kernel)?;
    if !guard::is_routed(&found.host_interface) && host.controller != Some(bridge.index) {
        return Err(missing("the interface's bridge port"));
    }
    let routes = netlink.other_routes().await.map_err(kernel)?;
    for address in found.addresses.iter().filter(|_| guard::is_routed(&found.host_interface)) {
        let own = Cidr::new(*address, whole(*address));
        if !routes.iter().any(|route| Some(route.to) == own && route.link == Some(host.index)) {
            return Err(missing(&format!("the route to {address}")));
        }
    }
    let path = request.namespace.as_deref().ok_or_else(|| Failure::new(codes::ENVIRONMENT, "CNI_NETNS is missing"))?;
    let inside = namespace::open(path).map_err(|error| Failure::of(codes::UNKNOWN_CONTAINER, &error))?;
    let name = request.interface.clone();
    let present = namespace::run_inside(&inside, || async {
        let netlink = Netlink::open()?;
        let link = netlink.link(&name).await?;
        let addresses = netlink.addresses(Some(link.index)).await?;
        let default = netlink.default_link().await?;
        Ok::<_, NetlinkError>((addresses, default == Some(link.index)))
    });
    let (present, has_default) = present.map_err(|error| Failure::of(codes::KERNEL, &error))?.map_err(kernel)?;
    for address in &found.addresses {
        if !present.iter().any(|(_, there, _)| there == address) {
            return Err(missing(&format!("address {address}")));
        }
    }
    if has_default { Ok(()) } else { Err(missing("the default route")) }
}

/// Whether an ADD could succeed now.
pub async fn status(request: &Request) -> Result<(), Failure> {
    let config = &request.config;
    check_config(config).map_err(|failure| Failure { code: codes::NOT_READY, ..failure })?;
    let leases = Leases::open(&config.data_dir, &config.name)
        .map_err(|error| Failure { code: codes::NOT_READY, ..lease(error) })?;
    let held = leases.all().map_err(lease)?.len();
    let room = config.pod_cidrs.iter().map(Cidr::size).min().unwrap_or(0).saturating_sub(3);
    if u64::try_from(held).unwrap_or(u64::MAX) >= room {
        return Err(Failure::new(codes::NOT_READY, "all addresses are in use"));
    }
    Netlink::open().map(drop).map_err(|error| Failure::of(codes::NOT_READY, &error))
}

/// Removes every attachment that the runtime does not list.
pub async fn collect_garbage(request: &Request) -> Result<(), Failure> {
    let valid = request.config.valid_attachments.as_deref().unwrap_or_default();
    let is_valid = |held: &Lease| {
        valid
            .iter()
            .any(|Attachment { container, interface }| *container == held.container && *interface == held.interface)
    };
    let leases = Leases::open(&request.config.data_dir, &request.config.name).map_err(lease)?;
    for held in leases.all().map_err(lease)?.iter().filter(|held| !is_valid(held)) {
        detach(&leases, held).await.map_err(lease)?;
        // The runtime that created the namespace has lost it: nothing else would remove it.
        if let Err(error) = namespace::remove(&held.namespace) {
            tracing::warn!(namespace = %held.namespace.display(), %error, "cannot remove an unused namespace");
        }
    }
    Ok(())
}

/// Removes an attachment completely. Missing resources are not an error.
pub async fn detach(leases: &Leases, held: &Lease) -> Result<(), LeaseError> {
    if let Err(error) = host_ports::close(held) {
        tracing::warn!(container = held.container, %error, "cannot close host ports");
    }
    if let Err(error) = remove_link(&held.host_interface).await {
        tracing::warn!(interface = held.host_interface, %error, "cannot delete an interface");
    }
    leases.release(&held.container, &held.interface)
}

async fn remove_link(name: &str) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    let removed = match netlink.link(name).await {
        Ok(link) => netlink.delete_link(link.index).await,
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(()),
    }
}

fn check_config(config: &Config) -> Result<(), Failure> {
    let missing = if config.pod_cidrs.is_empty() {
        "podCIDRs"
    } else if config.bridge.is_empty() {
        "bridge"
    } else if config.data_dir.as_os_str().is_empty() {
        "dataDir"
    } else if config.name.is_empty() {
        "name"
    } else {
        return Ok(());
    };
    Err(Failure::new(codes::CONFIGURATION, format!("{missing} is missing")))
}

/// The configured MTU; else that of the tunnel between nodes; else that of the default route's interface.
async fn mtu(netlink: &Netlink, config: &Config) -> Result<u32, NetlinkError> {
    if let Some(mtu) = config.mtu {
        return Ok(mtu);
    }
    if let Ok(tunnel) = netlink.link(pod_network::TUNNEL).await {
        return Ok(tunnel.mtu);
    }
    match netlink.default_link().await? {
        Some(index) => Ok(netlink.link_at(index).await?.mtu),
        None => Ok(1500),
    }
}

/// Creates the bridge if needed. Returns its hardware address.
async fn ensure_bridge(netlink: &Netlink, config: &Config, mtu: u32) -> Result<Vec<u8>, Failure> {
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
        pod_network::prepare(&config.bridge, &config.pod_cidrs, &config.cluster_cidrs)
            .map_err(|error| Failure::of(codes::KERNEL, &error))?;
    }
    Ok(link.mac)
}

async fn connect(
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

/// The prefix length of a single address.
fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
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

/// A deterministic interface name for an attachment, within the kernel's 15 characters.
fn host_name(container: &str, interface: &str) -> String {
    let hash = Sha256::digest(format!("{container}/{interface}").as_bytes());
    let hash: String = hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("{}{}", guard::INTERFACES, &hash[..9])
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

fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

fn kernel(error: NetlinkError) -> Failure {
    Failure::of(codes::KERNEL, &error)
}

fn lease(error: LeaseError) -> Failure {
    let code = if matches!(error, LeaseError::Exhausted(_)) { codes::NO_ADDRESS } else { codes::IO };
    Failure::of(code, &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_fit_the_kernel() {
        let name = host_name("0123456789abcdef", "eth0");
        assert!(name.len() <= 15 && name == host_name("0123456789abcdef", "eth0"));
        assert_eq!(mac_text(&hardware_address([10, 244, 0, 9].into())), "0a:58:0a:f4:00:09");
    }

    #[test]
    fn rates_are_in_bytes() {
        for (bits, burst, expected) in
            [(0, 0, None), (8_000_000, 0, Some((1_000_000, 65_536))), (8, u64::MAX, Some((1, u32::MAX / 4)))]
        {
            assert_eq!(rate(bits, burst), expected);
        }
    }
}
