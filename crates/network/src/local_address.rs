//! Addresses that every node serves itself, such as the cluster DNS address. They are on the loopback interface.

use std::net::IpAddr;

use crate::netlink::{Netlink, NetlinkError};

/// An address could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot change the address {address} on the loopback interface")]
pub struct AddressError {
    address: IpAddr,
    #[source]
    source: NetlinkError,
}

/// Adds an address to this node, if it does not have it.
pub async fn add_local_address(address: IpAddr) -> Result<(), AddressError> {
    let length = if address.is_ipv4() { 32 } else { 128 };
    let add = async {
        let netlink = Netlink::open()?;
        let loopback = netlink.link("lo").await?;
        netlink.bring_up(loopback.index).await?;
        netlink.add_address(loopback.index, address, length).await
    };
    add.await.map_err(|source| AddressError { address, source })
}

/// Removes an address that was added to the loopback interface; one that is not there is no error.
pub async fn remove_local_address(address: IpAddr) -> Result<(), AddressError> {
    let remove = async {
        let netlink = Netlink::open()?;
        let loopback = netlink.link("lo").await?;
        let known = netlink.addresses(Some(loopback.index)).await?;
        match known.iter().any(|(_, own, _)| *own == address) {
            true => netlink.delete_address(loopback.index, address).await,
            false => Ok(()),
        }
    };
    remove.await.map_err(|source| AddressError { address, source })
}
