//! The addresses of load balancers on this machine.
//!
//! An IPv4 address lives on the loopback interface: the kernel answers for it wherever it is asked. For an IPv6 address it
//! answers on the interface that has it alone, so that one lives where its network is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::neighbours;
use crate::cidr::Cidr;
use crate::netlink::{Link, Netlink, NetlinkError};

const LOOPBACK: &str = "lo";
/// A frame may get lost: neighbours are told several times.
const TELLINGS: usize = 3;
const BETWEEN: Duration = Duration::from_secs(1);

/// What this node answers for, and who is being told of it.
#[derive(Default)]
pub struct Held(BTreeMap<IpAddr, Option<Telling>>);

impl Held {
    /// Takes and gives up addresses until they are the wanted ones; tells whether all went well.
    pub async fn become_these(&mut self, wanted: &BTreeSet<IpAddr>) -> bool {
        let mut is_done = true;
        for address in self.0.keys().filter(|held| !wanted.contains(held)).copied().collect::<Vec<_>>() {
            match give_up(address).await {
                Ok(()) => drop(self.0.remove(&address)),
                Err(error) => {
                    tracing::warn!(%address, %error, "a load balancer's address could not be given up");
                    is_done = false;
                }
            }
        }
        for address in wanted.iter().filter(|wanted| !self.0.contains_key(wanted)).copied().collect::<Vec<_>>() {
            match take(address).await {
                Ok(link) => drop(self.0.insert(address, link.map(|link| Telling::begin(link, address)))),
                Err(error) => {
                    tracing::warn!(%address, %error, "a load balancer's address could not be taken");
                    is_done = false;
                }
            }
        }
        is_done
    }
}

/// Gives up what an earlier life of this process held and nobody wants here any more: another node may answer for it now.
pub async fn drop_leftovers(pool: &[Cidr], wanted: &BTreeSet<IpAddr>) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    for (link, address) in taken_from(&netlink, pool).await? {
        if !wanted.contains(&address) {
            ignore_gone(netlink.delete_address(link, address).await)?;
        }
    }
    Ok(())
}

/// Addresses of these networks that were taken as below, with the index of the interface they are on. A machine's own
/// addresses are none of them, wherever a pool lies.
async fn taken_from(netlink: &Netlink, networks: &[Cidr]) -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
    let loopback = netlink.link(LOOPBACK).await?.index;
    let mut found = netlink.passive_addresses().await?;
    found.extend(netlink.addresses(Some(loopback)).await?.into_iter().map(|(link, address, _)| (link, address)));
    found.retain(|(_, address)| networks.iter().any(|network| network.contains(*address)));
    Ok(found)
}

/// Answers for an address from now on. The interface behind which there are neighbours that may ask for it, if any.
async fn take(address: IpAddr) -> Result<Option<Link>, NetlinkError> {
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

async fn give_up(address: IpAddr) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    let alone = Cidr::new(address, if address.is_ipv4() { 32 } else { 128 });
    for (link, _) in taken_from(&netlink, alone.as_slice()).await? {
        ignore_gone(netlink.delete_address(link, address).await)?;
    }
    Ok(())
}

/// The interface whose own network an address belongs to.
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

/// Neighbours being told of an address, until they know or it is given up.
struct Telling(tokio::task::AbortHandle);

impl Telling {
    fn begin(link: Link, address: IpAddr) -> Self {
        let tell = async move {
            for _ in 0..TELLINGS {
                if let Err(error) = neighbours::tell(&link, address) {
                    tracing::warn!(%address, %error, "neighbours could not be told of a load balancer's address");
                }
                tokio::time::sleep(BETWEEN).await;
            }
        };
        Telling(tokio::spawn(tell).abort_handle())
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_at_home_in_the_closest_network() {
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
