//! The load balancer addresses on this node.
//!
//! An IPv4 address is on the loopback interface: the kernel replies to ARP for it on every interface. For an IPv6 address
//! it replies only on the interface that has it, so that one is on the interface of its network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::neighbours;
use crate::cidr::Cidr;
use crate::netlink::{Link, Netlink, NetlinkError};

const LOOPBACK: &str = "lo";
/// Frames may get lost, so each announcement is repeated.
const ANNOUNCEMENTS: usize = 3;
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(1);

/// The addresses that this node has, with their announcements in progress.
#[derive(Default)]
pub struct AssignedAddresses(BTreeMap<IpAddr, Option<Announcement>>);

impl AssignedAddresses {
    /// Adds and removes addresses until they equal the desired ones; returns whether all succeeded.
    pub async fn reconcile(&mut self, desired: &BTreeSet<IpAddr>) -> bool {
        let mut is_done = true;
        for address in self.0.keys().filter(|held| !desired.contains(held)).copied().collect::<Vec<_>>() {
            match release(address).await {
                Ok(()) => drop(self.0.remove(&address)),
                Err(error) => {
                    tracing::warn!(%address, %error, "cannot release a load balancer address");
                    is_done = false;
                }
            }
        }
        for address in desired.iter().filter(|desired| !self.0.contains_key(desired)).copied().collect::<Vec<_>>() {
            match assign(address).await {
                Ok(link) => drop(self.0.insert(address, link.map(|link| Announcement::start(link, address)))),
                Err(error) => {
                    tracing::warn!(%address, %error, "cannot assign a load balancer address");
                    is_done = false;
                }
            }
        }
        is_done
    }
}

/// Releases addresses that a previous process assigned and that are no longer desired: another node may have them now.
pub async fn release_leftovers(pool: &[Cidr], desired: &BTreeSet<IpAddr>) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    for (link, address) in assigned_from(&netlink, pool).await? {
        if !desired.contains(&address) {
            ignore_gone(netlink.delete_address(link, address).await)?;
        }
    }
    Ok(())
}

/// Addresses in these networks that were assigned here, with the index of their interface. The node's own addresses are
/// never among them, wherever a pool lies.
async fn assigned_from(netlink: &Netlink, networks: &[Cidr]) -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
    let loopback = netlink.link(LOOPBACK).await?.index;
    let mut found = netlink.passive_addresses().await?;
    found.extend(netlink.addresses(Some(loopback)).await?.into_iter().map(|(link, address, _)| (link, address)));
    found.retain(|(_, address)| networks.iter().any(|network| network.contains(*address)));
    Ok(found)
}

/// Assigns an address to this node. Returns the interface on whose link to announce it, if any.
async fn assign(address: IpAddr) -> Result<Option<Link>, NetlinkError> {
    let netlink = Netlink::open()?;
    let loopback = netlink.link(LOOPBACK).await?;
    let near = home(&netlink.addresses(None).await?, loopback.index, address);
    match (near, address.is_ipv6()) {
        (Some(index), true) => netlink.add_passive_address(index, address).await?,
        _ => {
            netlink.bring_up(loopback.index).await?;
            netlink.add_address(loopback.index, address, if address.is_ipv4() { 32 } else { 128 }).await?;
        }
    }
    match near {
        Some(index) => netlink.link_at(index).await.map(Some),
        None => Ok(None),
    }
}

async fn release(address: IpAddr) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    let single = Cidr::new(address, if address.is_ipv4() { 32 } else { 128 });
    for (link, _) in assigned_from(&netlink, single.as_slice()).await? {
        ignore_gone(netlink.delete_address(link, address).await)?;
    }
    Ok(())
}

/// The interface whose network contains an address.
fn home(known: &[(u32, IpAddr, u8)], loopback: u32, address: IpAddr) -> Option<u32> {
    let networks = known.iter().filter(|(link, own, _)| *link != loopback && *own != address);
    let around =
        networks.filter(|(_, own, length)| Cidr::new(*own, *length).is_some_and(|network| network.contains(address)));
    around.max_by_key(|(_, _, length)| *length).map(|(link, _, _)| *link)
}

fn ignore_gone(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(()),
    }
}

/// A running announcement to neighbours, aborted when the address is released.
struct Announcement(tokio::task::AbortHandle);

impl Announcement {
    fn start(link: Link, address: IpAddr) -> Self {
        let announce = async move {
            for _ in 0..ANNOUNCEMENTS {
                if let Err(error) = neighbours::announce(&link, address) {
                    tracing::warn!(%address, %error, "cannot announce a load balancer address");
                }
                tokio::time::sleep(ANNOUNCEMENT_INTERVAL).await;
            }
        };
        Announcement(knarr_supervisor::spawn_linked("announcement", announce))
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_longest_matching_network() {
        let known = [
            (1, "127.0.0.1", 8),
            (1, "192.168.7.9", 32),
            (2, "192.168.7.2", 24),
            (3, "192.168.1.2", 16),
            (2, "fd07::2", 64),
            (2, "fe80::1", 64),
            (4, "10.0.0.1", 32),
        ];
        let known = known.map(|(link, address, length)| (link, address.parse().unwrap(), length));
        for (address, expected) in [
            ("192.168.7.9", Some(2)),
            ("192.168.8.9", Some(3)),
            ("fd07::9", Some(2)),
            ("fd08::9", None),
            ("10.0.0.1", None),
            ("127.0.0.9", None),
        ] {
            assert_eq!(home(&known, 1, address.parse().unwrap()), expected, "{address}");
        }
    }
}
