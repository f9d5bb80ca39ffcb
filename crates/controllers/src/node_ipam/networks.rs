//! A pool of equal networks cut out of a larger one.

use std::collections::HashSet;

use crate::common::network::Network;

/// Subnets of one network, each assigned to one node at a time.
pub(super) struct Pool {
    whole: Network,
    piece_prefix: u8,
    count: u128,
    used: HashSet<u128>,
    /// Where the search starts, so that a released subnet is not assigned again at once.
    next: u128,
}

impl Pool {
    /// At most this many subnets are used, as no cluster has as many nodes.
    const MAX_SUBNETS: u128 = 1 << 16;

    pub fn new(whole: Network, piece_prefix: u8) -> Option<Self> {
        let bits = piece_prefix.checked_sub(whole.prefix).filter(|_| piece_prefix <= whole.bits())?;
        let count = 1u128.checked_shl(bits.into()).unwrap_or(Self::MAX_SUBNETS).min(Self::MAX_SUBNETS);
        Some(Self { whole, piece_prefix, count, used: HashSet::new(), next: 0 })
    }

    fn subnet(&self, index: u128) -> Network {
        let empty = Network { prefix: self.piece_prefix, ..self.whole };
        Network { base: self.whole.base + index * empty.size(), ..empty }
    }

    pub fn allocate(&mut self) -> Option<Network> {
        let index =
            (0..self.count).map(|step| (self.next + step) % self.count).find(|index| !self.used.contains(index))?;
        self.used.insert(index);
        self.next = (index + 1) % self.count;
        Some(self.subnet(index))
    }

    /// Marks every subnet the network overlaps as used.
    pub fn occupy(&mut self, network: &Network) {
        for index in self.overlapped(network) {
            self.used.insert(index);
        }
    }

    pub fn release(&mut self, network: &Network) {
        for index in self.overlapped(network) {
            self.used.remove(&index);
        }
    }

    fn overlapped(&self, network: &Network) -> std::ops::Range<u128> {
        if network.ipv6 != self.whole.ipv6 || network.last() < self.whole.base || network.base > self.whole.last() {
            return 0..0;
        }
        let size = self.subnet(0).size();
        let first = network.base.saturating_sub(self.whole.base) / size;
        let last = (network.last().min(self.whole.last()) - self.whole.base) / size;
        first.min(self.count)..(last + 1).min(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(whole: &str, size: u8) -> Pool {
        Pool::new(Network::parse(whole).unwrap(), size).unwrap()
    }

    #[test]
    fn pieces_are_given_out_in_turn() {
        let mut pool = pool("10.244.0.0/22", 24);
        let allocated: Vec<String> = (0..5).map(|_| pool.allocate().map_or("none".into(), |n| n.to_string())).collect();
        assert_eq!(allocated, ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24", "none"]);
        pool.release(&Network::parse("10.244.2.0/24").unwrap());
        assert_eq!(pool.allocate().unwrap().to_string(), "10.244.2.0/24");
    }

    #[test]
    fn occupied_subnets_are_skipped() {
        let mut pool = pool("10.244.0.0/22", 24);
        pool.occupy(&Network::parse("10.244.0.0/23").unwrap());
        pool.occupy(&Network::parse("10.96.0.0/12").unwrap());
        pool.occupy(&Network::parse("fd00::/64").unwrap());
        assert_eq!(pool.allocate().unwrap().to_string(), "10.244.2.0/24");
    }

    #[test]
    fn both_families() {
        let mut pool = pool("fd00:10:244::/48", 64);
        pool.allocate();
        assert_eq!(pool.allocate().unwrap().to_string(), "fd00:10:244:1::/64");
        assert_eq!(Network::parse("10.1.2.3/16").unwrap().to_string(), "10.1.0.0/16");
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8"] {
            assert!(Network::parse(bad).is_none(), "{bad}");
        }
        assert!(Pool::new(Network::parse("10.0.0.0/24").unwrap(), 16).is_none());
    }
}
