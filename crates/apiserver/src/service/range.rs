//! Ranges of cluster IPs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::families::Family;

/// A range such as `10.96.0.0/12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub family: Family,
    first: u128,
    size: u128,
}

impl Range {
    pub fn parse(text: &str) -> Option<Range> {
        let (address, length) = text.split_once('/')?;
        let length: u32 = length.parse().ok()?;
        let (bits, value, family) = match address.parse().ok()? {
            IpAddr::V4(address) => (32, u128::from(u32::from(address)), Family::V4),
            IpAddr::V6(address) => (128, u128::from(address), Family::V6),
        };
        let host_bits = u32::checked_sub(bits, length)?;
        // More than 2^64 addresses are never used.
        let size = 1u128 << host_bits.min(64);
        let first = if host_bits >= 128 { 0 } else { value >> host_bits << host_bits };
        Some(Range { family, first, size })
    }

    /// The number of addresses that can be allocated: all but the first, and the last of an IPv4 range.
    pub fn usable(&self) -> u128 {
        self.size.saturating_sub(if self.family == Family::V4 { 2 } else { 1 })
    }

    /// The address at an offset among the usable ones.
    pub fn at(&self, offset: u128) -> IpAddr {
        let value = self.first + 1 + offset;
        match self.family {
            Family::V4 => Ipv4Addr::from(value as u32).into(),
            Family::V6 => Ipv6Addr::from(value).into(),
        }
    }

    /// Whether the address can be allocated.
    pub fn has(&self, address: IpAddr) -> bool {
        let (value, family) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), Family::V4),
            IpAddr::V6(address) => (u128::from(address), Family::V6),
        };
        family == self.family && value > self.first && value - self.first <= self.usable()
    }

    /// How many of the first addresses are left for requests of a specific one while others are free.
    pub fn reserved(&self) -> u128 {
        if self.size <= 16 { 0 } else { (self.size / 16).clamp(16, 256) }
    }
}

/// The first address of a range, which is that of the Service `kubernetes`.
pub fn first_address(range: &str) -> Option<IpAddr> {
    Range::parse(range).map(|range| range.at(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_and_reserved_addresses_depend_on_the_size() {
        let range = Range::parse("10.96.0.0/12").unwrap();
        assert_eq!(range.at(0), IpAddr::from([10, 96, 0, 1]));
        assert_eq!(range.reserved(), 256);
        assert!(range.has("10.111.255.254".parse().unwrap()));
        for outside in ["10.96.0.0", "10.111.255.255", "10.112.0.1", "fd00::1"] {
            assert!(!range.has(outside.parse().unwrap()), "{outside}");
        }
        let small = Range::parse("fd00::/112").unwrap();
        assert_eq!((small.usable(), small.at(0).to_string()), (65_535, "fd00::1".to_owned()));
        assert_eq!(Range::parse("10.0.0.0/33"), None);
    }
}
