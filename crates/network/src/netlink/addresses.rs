//! Addresses of interfaces, through netlink.

use std::net::IpAddr;

use futures::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, CacheInfo};

use super::{Netlink, NetlinkError, failed};

impl Netlink {
    /// Adds an address unless it exists. IPv6 addresses are usable at once: they are unique by construction.
    pub async fn add_address(&self, index: u32, address: IpAddr, length: u8) -> Result<(), NetlinkError> {
        let mut request = self.handle.address().add(index, address, length);
        if address.is_ipv6() {
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        match request.execute().await.map_err(failed(format!("adding address {address}"))) {
            Err(error) if error.is_exists() => Ok(()),
            result => result,
        }
    }

    /// Adds a single IPv6 address unless it exists; it is never chosen as a source address.
    pub async fn add_passive_address(&self, index: u32, address: IpAddr) -> Result<(), NetlinkError> {
        let mut request = self.handle.address().add(index, address, 128);
        let message = request.message_mut();
        message.header.flags |= AddressHeaderFlags::Nodad;
        let mut lifetime = CacheInfo::default();
        (lifetime.ifa_preferred, lifetime.ifa_valid) = (0, u32::MAX);
        message.attributes.push(AddressAttribute::CacheInfo(lifetime));
        match request.execute().await.map_err(failed(format!("adding address {address}"))) {
            Err(error) if error.is_exists() => Ok(()),
            result => result,
        }
    }

    pub async fn delete_address(&self, index: u32, address: IpAddr) -> Result<(), NetlinkError> {
        let found = self.handle.address().get().set_link_index_filter(index).set_address_filter(address).execute();
        let messages: Vec<_> = found.try_collect().await.map_err(failed("listing addresses"))?;
        for message in messages {
            self.handle
                .address()
                .del(message)
                .execute()
                .await
                .map_err(failed(format!("removing address {address}")))?;
        }
        Ok(())
    }

    /// Addresses with their prefix lengths, of one interface or of all.
    pub async fn addresses(&self, index: Option<u32>) -> Result<Vec<(u32, IpAddr, u8)>, NetlinkError> {
        let messages = self.address_messages(index).await?;
        let read =
            |message: &AddressMessage| Some((message.header.index, address_of(message)?, message.header.prefix_len));
        Ok(messages.iter().filter_map(read).collect())
    }

    /// Addresses added by [`Self::add_passive_address`], with their interface.
    pub async fn passive_addresses(&self) -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
        let is_passive = |message: &&AddressMessage| {
            message.header.prefix_len == 128
                && message.attributes.iter().any(
                    |attribute| matches!(attribute, AddressAttribute::CacheInfo(lifetime) if lifetime.ifa_preferred == 0),
                )
        };
        let messages = self.address_messages(None).await?;
        let read = |message: &AddressMessage| Some((message.header.index, address_of(message)?));
        Ok(messages.iter().filter(is_passive).filter_map(read).collect())
    }

    async fn address_messages(&self, index: Option<u32>) -> Result<Vec<AddressMessage>, NetlinkError> {
        let mut request = self.handle.address().get();
        if let Some(index) = index {
            request = request.set_link_index_filter(index);
        }
        request.execute().try_collect().await.map_err(failed("listing addresses"))
    }
}

fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let plain = || {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    };
    local.or_else(plain)
}
