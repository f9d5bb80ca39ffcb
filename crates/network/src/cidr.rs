//! CIDR networks: an address and a prefix length.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};

/// An IPv4 or IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    /// The first address: bits after the prefix are zero.
    first: IpAddr,
    length: u8,
}

/// The text is not a CIDR network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network such as 10.244.0.0/24")]
pub struct NotANetwork(pub String);

impl Cidr {
    /// A network with the host bits cleared; `None` if the length is too large for the family.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        if u32::from(length) > bits(address) {
            return None;
        }
        let mask = mask(address, length);
        Some(Self { first: from_number(to_number(address) & mask, address.is_ipv4()), length })
    }

    /// The network address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The prefix length.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether the family is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// Whether an address is within the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4()
            && to_number(address) & mask(self.first, self.length) == to_number(self.first)
    }

    /// Whether another network is a subset of this one.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.length <= other.length && self.contains(other.first)
    }

    /// The number of addresses, at most `u64::MAX`.
    pub fn size(&self) -> u64 {
        let free = bits(self.first) - u32::from(self.length);
        if free >= 64 { u64::MAX } else { 1 << free }
    }

    /// The address at an index.
    pub fn nth(&self, index: u64) -> Option<IpAddr> {
        (index < self.size()).then(|| from_number(to_number(self.first) + u128::from(index), self.is_ipv4()))
    }

    /// The index of an address within the network.
    pub fn index_of(&self, address: IpAddr) -> Option<u64> {
        if !self.contains(address) {
            return None;
        }
        u64::try_from(to_number(address) - to_number(self.first)).ok()
    }
}

/// The pod CIDRs in the spec of a Node.
pub fn pod_cidrs(node: &Node) -> Vec<Cidr> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let several = spec.pod_cidrs.iter().flatten().filter_map(|text| text.parse().ok());
    let several: Vec<Cidr> = several.collect();
    if several.is_empty() { spec.pod_cidr.iter().filter_map(|text| text.parse().ok()).collect() } else { several }
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(address: IpAddr, length: u8) -> u128 {
    let host = bits(address).saturating_sub(u32::from(length));
    if host >= 128 { 0 } else { u128::MAX << host }
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn from_number(number: u128, is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        // A number of an IPv4 network never has more than 32 bits.
        IpAddr::V4(Ipv4Addr::from_bits((number & u128::from(u32::MAX)) as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(number))
    }
}

impl FromStr for Cidr {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let parse = || {
            let (address, length) = text.trim().split_once('/')?;
            Cidr::new(address.parse().ok()?, length.parse().ok()?)
        };
        parse().ok_or_else(|| NotANetwork(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.first, self.length)
    }
}

impl TryFrom<String> for Cidr {
    type Error = NotANetwork;

    fn try_from(text: String) -> Result<Self, NotANetwork> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_counted() {
        for (text, rendered, size, third) in [
            ("10.244.1.7/24", "10.244.1.0/24", 256, Some("10.244.1.2")),
            ("10.0.0.0/31", "10.0.0.0/31", 2, None),
            ("fd00:1::/64", "fd00:1::/64", u64::MAX, Some("fd00:1::2")),
            ("0.0.0.0/0", "0.0.0.0/0", 1 << 32, Some("0.0.0.2")),
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert_eq!((cidr.to_string().as_str(), cidr.size()), (rendered, size));
            assert_eq!(cidr.nth(2), third.map(|text| text.parse().unwrap()));
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_found_in_its_own_family_only() {
        let cidr: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(cidr.contains([8, 8, 8, 8].into()));
        assert!(!cidr.contains("::1".parse().unwrap()));
        assert_eq!("10.1.0.0/16".parse::<Cidr>().unwrap().index_of([10, 1, 1, 0].into()), Some(256));
    }
}
