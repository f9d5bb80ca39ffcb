//! IP addresses and networks in CIDR notation.
//!
//! [`Cidr`] reads the strict form. The functions with `sloppy` in their names read the form that old fields accept: leading
//! zeros, and IPv6 addresses that stand for IPv4 ones.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

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
        if length > bits(address) {
            return None;
        }
        Some(Self { first: from_number(to_number(address) & mask(address, length), address.is_ipv4()), length })
    }

    /// A single address, as the network of itself.
    pub fn of_address(address: IpAddr) -> Self {
        Self { first: address, length: bits(address) }
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

    /// The number of bits of an address.
    pub fn bits(&self) -> u8 {
        bits(self.first)
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

    /// Whether the networks have an address in common.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The number of addresses, at most `u64::MAX`.
    pub fn size(&self) -> u64 {
        1u64.checked_shl(u32::from(self.bits() - self.length)).unwrap_or(u64::MAX)
    }

    /// The address at an index.
    pub fn nth(&self, index: u64) -> Option<IpAddr> {
        (index < self.size()).then(|| from_number(to_number(self.first) + u128::from(index), self.is_ipv4()))
    }

    /// The subnet of a length at an index, if the network has as many.
    pub fn subnet(&self, length: u8, index: u128) -> Option<Cidr> {
        let indexed = u32::from(length.checked_sub(self.length)?);
        let host = u32::from(self.bits().checked_sub(length)?);
        if index.checked_shr(indexed).is_some_and(|beyond| beyond != 0) {
            return None;
        }
        let number = to_number(self.first) | index.checked_shl(host).unwrap_or(0);
        Some(Self { first: from_number(number, self.is_ipv4()), length })
    }

    /// The index of the subnet of a length that an address is in.
    pub fn subnet_index_of(&self, length: u8, address: IpAddr) -> Option<u128> {
        let host = u32::from(self.bits().checked_sub(length)?);
        let offset = || to_number(address) - to_number(self.first);
        self.contains(address).then(|| offset().checked_shr(host).unwrap_or(0))
    }

    /// The index of an address within the network.
    pub fn index_of(&self, address: IpAddr) -> Option<u64> {
        if !self.contains(address) {
            return None;
        }
        u64::try_from(to_number(address) - to_number(self.first)).ok()
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(address: IpAddr, length: u8) -> u128 {
    u128::MAX.checked_shl(u32::from(bits(address).saturating_sub(length))).unwrap_or(0)
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

/// Whether a text is an IPv6 address that stands for an IPv4 one.
pub fn is_mapped(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok_and(|address| address.to_ipv4_mapped().is_some())
}

/// Parses an address that may have leading zeros in IPv4 octets. An IPv4-mapped IPv6 address is parsed as IPv4.
pub fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let address = parse_ipv6_sloppy(text)?;
        return Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4));
    }
    parse_ipv4_sloppy(text).map(IpAddr::V4)
}

/// Parses a network that may have leading zeros. Also returns the address as it is written, which may have bits set beyond
/// the prefix.
pub fn parse_network_sloppy(text: &str) -> Option<(IpAddr, Cidr)> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut length: u32 = prefix.parse().ok()?;
    let is_mapped = address.contains(':') && parse_ipv6_sloppy(address)?.to_ipv4_mapped().is_some();
    let address = parse_sloppy(address)?;
    if length > if is_mapped { 128 } else { u32::from(bits(address)) } {
        return None;
    }
    if is_mapped {
        length = length.saturating_sub(96);
    }
    Some((address, Cidr::new(address, u8::try_from(length).ok()?)?))
}

fn parse_ipv4_sloppy(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = part.trim_start_matches('0');
        if part.is_empty() || digits.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then_some(Ipv4Addr::from(octets))
}

fn parse_ipv6_sloppy(text: &str) -> Option<Ipv6Addr> {
    // Only an IPv4 address at the end can have leading zeros that the strict form rejects.
    match text.rfind(':') {
        Some(colon) if text[colon..].contains('.') => {
            let tail = parse_ipv4_sloppy(&text[colon + 1..])?;
            format!("{}{tail}", &text[..=colon]).parse().ok()
        }
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_read_and_counted() {
        for (text, rendered, size, third) in [
            ("10.244.1.7/24", "10.244.1.0/24", 256, Some("10.244.1.2")),
            ("10.0.0.0/31", "10.0.0.0/31", 2, None),
            ("10.0.0.9/32", "10.0.0.9/32", 1, None),
            ("fd00:1::/64", "fd00:1::/64", u64::MAX, Some("fd00:1::2")),
            ("fd00:1::9/65", "fd00:1::/65", 1 << 63, Some("fd00:1::2")),
            ("::/0", "::/0", u64::MAX, Some("::2")),
            ("0.0.0.0/0", "0.0.0.0/0", 1 << 32, Some("0.0.0.2")),
        ] {
            let cidr = cidr(text);
            assert_eq!((cidr.to_string().as_str(), cidr.size()), (rendered, size));
            assert_eq!(cidr.nth(2), third.map(|text| text.parse().unwrap()), "{text}");
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", "10.0.0.0/", "/8", "10.0.0.0/-1"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_found_in_its_own_family_only() {
        for (network, address, index) in [
            ("0.0.0.0/0", "8.8.8.8", Some(0x0808_0808)),
            ("0.0.0.0/0", "::1", None),
            ("::/0", "10.2.0.0", None),
            ("10.1.0.0/16", "10.1.1.0", Some(256)),
            ("10.1.0.0/16", "10.1.255.255", Some(65_535)),
            ("10.1.0.0/16", "10.2.0.0", None),
            ("fd00::/64", "fd00::9", Some(9)),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(cidr(network).contains(address), index.is_some(), "{network} {address}");
            assert_eq!(cidr(network).index_of(address), index, "{network} {address}");
            assert_eq!(cidr(network).covers(&Cidr::of_address(address)), index.is_some(), "{network} {address}");
        }
    }

    #[test]
    fn networks_cover_and_overlap() {
        for (one, other, covers, overlaps) in [
            ("10.0.0.0/8", "10.1.0.0/16", true, true),
            ("10.0.0.0/8", "10.0.0.0/8", true, true),
            ("10.1.0.0/16", "10.0.0.0/8", false, true),
            ("10.1.0.0/16", "10.2.0.0/16", false, false),
            ("::/0", "10.0.0.0/8", false, false),
        ] {
            let (one, other) = (cidr(one), cidr(other));
            assert_eq!((one.covers(&other), one.overlaps(&other)), (covers, overlaps), "{one} {other}");
        }
    }

    #[test]
    fn networks_have_subnets() {
        for (whole, length, index, subnet) in [
            ("10.244.0.0/22", 24, 3, Some("10.244.3.0/24")),
            ("10.244.0.0/22", 24, 4, None),
            ("10.244.0.0/22", 22, 0, Some("10.244.0.0/22")),
            ("10.244.0.0/22", 21, 0, None),
            ("10.244.0.0/22", 33, 0, None),
            ("0.0.0.0/0", 32, 0xffff_ffff, Some("255.255.255.255/32")),
            ("fd00:10:244::/48", 64, 65_535, Some("fd00:10:244:ffff::/64")),
            ("::/0", 0, 0, Some("::/0")),
            ("::/0", 128, u128::MAX, Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")),
        ] {
            let found = cidr(whole).subnet(length, index);
            assert_eq!(found, subnet.map(cidr), "{whole} {length} {index}");
            if let Some(found) = found {
                assert_eq!(cidr(whole).subnet_index_of(length, found.first()), Some(index), "{whole} {length}");
            }
        }
        assert_eq!(cidr("10.244.0.0/22").subnet_index_of(24, "10.244.4.1".parse().unwrap()), None);
    }

    #[test]
    fn old_forms_are_read() {
        for (text, address) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.1", Some("10.0.0.1")),
            ("0000000010.0.0.1", Some("10.0.0.1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("::ffff:1.2.3.04", Some("1.2.3.4")),
            ("2001:DB8::1", Some("2001:db8::1")),
            ("1.2.3", None),
            ("1.2.3.256", None),
            ("1.2.3.4.5", None),
            ("1.2.3.+4", None),
            ("fe80::1%eth0", None),
            ("", None),
        ] {
            assert_eq!(parse_sloppy(text), address.map(|text| text.parse().unwrap()), "{text}");
        }
        for (text, network) in [
            ("10.0.0.1/8", Some(("10.0.0.1", "10.0.0.0/8"))),
            ("010.0.0.0/08", Some(("10.0.0.0", "10.0.0.0/8"))),
            ("::ffff:10.1.2.3/104", Some(("10.1.2.3", "10.0.0.0/8"))),
            ("::ffff:10.1.2.3/8", Some(("10.1.2.3", "0.0.0.0/0"))),
            ("fd00::1/64", Some(("fd00::1", "fd00::/64"))),
            ("10.0.0.0/33", None),
            ("10.0.0.0/+8", None),
            ("10.0.0.0/", None),
            ("10.0.0.0", None),
            ("fd00::/129", None),
        ] {
            let expected = network.map(|(address, network)| (address.parse().unwrap(), cidr(network)));
            assert_eq!(parse_network_sloppy(text), expected, "{text}");
        }
    }
}
