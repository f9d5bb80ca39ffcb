//! Removes everything that this crate created on the node: interfaces, addresses, routes, rules, and the network namespaces
//! of pods.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cidr::Cidr;
use crate::cni::configuration::NETWORK;
use crate::cni::{self, LeaseError};
use crate::interfaces::TUNNEL;
use crate::load_balancer::assigned;
use crate::netlink::{Netlink, NetlinkError};
use crate::nft::{self, NftError};

/// Prefix of all our nftables tables.
const TABLES: &str = "knarr-";

/// The step of the removal that failed.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error("cannot remove interfaces, addresses or routes")]
    Netlink(#[from] NetlinkError),
    #[error("cannot remove nftables rules")]
    Nft(#[from] NftError),
    #[error("cannot read the network namespaces of pods")]
    Leases(#[from] LeaseError),
    #[error("cannot remove the network namespace {0}")]
    Namespace(PathBuf, #[source] std::io::Error),
}

/// Resources that cannot be recognized by their names.
#[derive(Clone, Debug, Default)]
pub struct CleanupScope {
    pub data_directory: PathBuf,
    pub bridge: String,
    /// Addresses that this node serves itself, and networks from which load balancer addresses were assigned.
    pub addresses: Vec<IpAddr>,
    pub pools: Vec<Cidr>,
}

/// Removes everything; missing resources are not an error. No pod may be running.
pub async fn clean(scope: &CleanupScope) -> Result<(), CleanError> {
    let netlink = Netlink::open()?;
    for lease in leases(&scope.data_directory)? {
        remove_link(&netlink, &lease.host_interface).await?;
        remove_namespace(&lease.namespace)?;
    }
    for route in netlink.own_routes().await? {
        ignore_gone(netlink.delete_route(&route).await)?;
    }
    for name in [scope.bridge.as_str(), TUNNEL] {
        remove_link(&netlink, name).await?;
    }
    let loopback = netlink.link("lo").await?;
    for (_, address, _) in netlink.addresses(Some(loopback.index)).await? {
        if scope.addresses.contains(&address) {
            ignore_gone(netlink.delete_address(loopback.index, address).await)?;
        }
    }
    assigned::release_leftovers(&scope.pools, &BTreeSet::new()).await?;
    remove_tables()
}

fn leases(data_directory: &Path) -> Result<Vec<cni::Lease>, LeaseError> {
    if !data_directory.join("leases").exists() {
        return Ok(Vec::new());
    }
    cni::leases_of(data_directory, NETWORK)
}

async fn remove_link(netlink: &Netlink, name: &str) -> Result<(), NetlinkError> {
    match netlink.link(name).await {
        Ok(link) => ignore_gone(netlink.delete_link(link.index).await),
        Err(NetlinkError::NoLink(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn ignore_gone(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(()),
    }
}

fn remove_namespace(path: &Path) -> Result<(), CleanError> {
    // After unmounting, an ordinary file is left.
    let _ = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(CleanError::Namespace(path.into(), error)),
        _ => Ok(()),
    }
}

fn remove_tables() -> Result<(), CleanError> {
    let listed = match Command::new("nft").args(["list", "tables"]).output() {
        // Without nft, none of our tables was ever created.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        listed => listed.map_err(NftError::Run)?,
    };
    let deletions = deletions(&String::from_utf8_lossy(&listed.stdout));
    if deletions.is_empty() { Ok(()) } else { Ok(nft::run(&deletions)?) }
}

/// Commands that delete our tables, from the output of `nft list tables`.
fn deletions(listed: &str) -> String {
    let ours = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("table"), Some(family), Some(name)) if name.starts_with(TABLES) => {
                Some(format!("delete table {family} {name}\n"))
            }
            _ => None,
        }
    });
    ours.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_tables_are_deleted() {
        let listed = "table ip knarr-pods\ntable ip6 knarr-proxy\ntable inet filter\ntable ip nat\n";
        assert_eq!(deletions(listed), "delete table ip knarr-pods\ndelete table ip6 knarr-proxy\n");
    }
}
