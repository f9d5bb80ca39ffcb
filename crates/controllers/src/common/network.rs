//! Networks (CIDRs) of either address family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// The address as a number, the host part zero.
    pub(crate) base: u128,
    pub(crate) prefix: u8,
    pub(crate) ipv6: bool,
}

impl Network {
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
        let (base, ipv6) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), false),
            IpAddr::V6(address) => (u128::from(address), true),
        };
        let network = Self { base, prefix, ipv6 };
        (prefix <= network.bits()).then(|| Self { base: base - base % network.size(), ..network })
    }

    /// A single address, as the network of itself.
    pub fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self { base: u128::from(u32::from(address)), prefix: 32, ipv6: false },
            IpAddr::V6(address) => Self { base: u128::from(address), prefix: 128, ipv6: true },
        }
    }

    pub fn contains(&self, other: &Network) -> bool {
        self.ipv6 == other.ipv6 && self.base <= other.base && other.last() <= self.last()
    }

    pub fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    pub(crate) fn bits(&self) -> u8 {
        if self.ipv6 { 128 } else { 32 }
    }

    pub(crate) fn size(&self) -> u128 {
        1u128.checked_shl(u32::from(self.bits() - self.prefix)).unwrap_or(u128::MAX)
    }

    pub(crate) fn last(&self) -> u128 {
        self.base.saturating_add(self.size() - 1)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = if self.ipv6 {
            IpAddr::V6(Ipv6Addr::from(self.base))
        } else {
            IpAddr::V4(Ipv4Addr::from(u32::try_from(self.base).unwrap_or(0)))
        };
        write!(out, "{address}/{}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_networks_and_addresses() {
        let network = |text: &str| Network::parse(text).unwrap();
        let address = |text: &str| Network::of_address(text.parse().unwrap());
        assert!(network("10.0.0.0/8").contains(&network("10.1.0.0/16")));
        assert!(network("10.0.0.0/8").contains(&network("10.0.0.0/8")));
        assert!(!network("10.1.0.0/16").contains(&network("10.0.0.0/8")));
        assert!(network("10.1.0.0/16").contains(&address("10.1.255.255")));
        assert!(!network("10.1.0.0/16").contains(&address("10.2.0.0")));
        assert!(network("fd00::/64").contains(&address("fd00::9")));
        assert!(!network("::/0").contains(&address("10.2.0.0")));
    }
}
