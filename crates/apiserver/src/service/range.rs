//! Ranges of cluster IPs.

use std::net::IpAddr;

use knarr_api::cidr::Cidr;

use super::families::Family;

/// A range such as `10.96.0.0/12`. Of a range with more, 2^64 addresses are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub family: Family,
    network: Cidr,
}

impl Range {
    pub fn parse(text: &str) -> Option<Range> {
        let network: Cidr = text.parse().ok()?;
        Some(Range { family: if network.is_ipv4() { Family::V4 } else { Family::V6 }, network })
    }

    /// The number of addresses that can be allocated: all but the first, and the last of an IPv4 range.
    pub fn usable(&self) -> u64 {
        self.network.size().saturating_sub(if self.family == Family::V4 { 2 } else { 1 })
    }

    /// The address at an offset among the usable ones.
    pub fn at(&self, offset: u64) -> Option<IpAddr> {
        self.network.nth(offset.checked_add(1)?)
    }

    /// Whether the address can be allocated.
    pub fn has(&self, address: IpAddr) -> bool {
        self.network.index_of(address).is_some_and(|index| index > 0 && index <= self.usable())
    }

    /// How many of the first addresses are left for requests of a specific one while others are free.
    pub fn reserved(&self) -> u64 {
        let size = self.network.size();
        if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
    }
}

/// The first address of a range, which is that of the Service `kubernetes`.
pub fn first_address(range: &str) -> Option<IpAddr> {
    Range::parse(range)?.at(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_and_reserved_addresses_depend_on_the_size() {
        let range = Range::parse("10.96.0.0/12").unwrap();
        assert_eq!(range.at(0), Some(IpAddr::from([10, 96, 0, 1])));
        assert_eq!(range.reserved(), 256);
        assert!(range.has("10.111.255.254".parse().unwrap()));
        for outside in ["10.96.0.0", "10.111.255.255", "10.112.0.1", "fd00::1"] {
            assert!(!range.has(outside.parse().unwrap()), "{outside}");
        }
        let small = Range::parse("fd00::/112").unwrap();
        assert_eq!((small.usable(), small.at(0)), (65_535, Some("fd00::1".parse().unwrap())));
        let huge = Range::parse("fd00::/8").unwrap();
        assert_eq!((huge.usable(), huge.reserved()), (u64::MAX - 1, 256));
        let single = Range::parse("10.0.0.1/32").unwrap();
        assert_eq!((single.usable(), single.at(0)), (0, None));
        assert_eq!(Range::parse("10.0.0.0/33"), None);
    }
}
