//! Creates and deletes a pod's interface.
//!
//! A pod shares a link with the node only: a veth pair, with a route to the pod's addresses (/32, /128) at the node's end and
//! the default route at the pod's. All its traffic, to pods on the same node too, is thus routed by the node, where Services
//! and policies are applied; no frame reaches another pod, and packets without the pod's own source address are dropped
//! (`guard`). Neighbour entries are permanent on both sides, so ARP cannot be spoofed.
//!
//! The bridge holds the gateway address and the route to the node's pod CIDR. Pods that an earlier version attached to it
//! stay there until they terminate (`adopt`).

mod link;

pub use link::hardware_address;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::announcement::announce;
use super::guard;
use super::host_ports;
use super::leases::{Lease, LeaseError, Leases, NewLease};
use super::reply::{Failure, codes};
use super::request::{Attachment, Config, Request};
use crate::cidr::Cidr;
use crate::interfaces::POD_PREFIX;
use crate::namespace;
use crate::netlink::{Netlink, NetlinkError};
use link::{connect, ensure_bridge, mac_text, mtu, whole};

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
            announce(&config.data_dir, &lease_made);
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

/// A deterministic interface name for an attachment, within the kernel's 15 characters.
fn host_name(container: &str, interface: &str) -> String {
    let hash = Sha256::digest(format!("{container}/{interface}").as_bytes());
    let hash: String = hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("{}{}", POD_PREFIX, &hash[..9])
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
}
