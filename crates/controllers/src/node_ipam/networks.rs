//! A pool of equal networks cut out of a larger one.

use std::collections::HashSet;

use knarr_client::semantics::cidr::Cidr;

/// Subnets of one network, each assigned to one node at a time.
pub(super) struct Pool {
    whole: Cidr,
    piece_prefix: u8,
    count: u128,
    used: HashSet<u128>,
    /// Where the search starts, so that a released subnet is not assigned again at once.
    next: u128,
}

impl Pool {
    /// At most this many subnets are used, as no cluster has as many nodes.
    const MAX_SUBNETS: u128 = 1 << 16;

    pub fn new(whole: Cidr, piece_prefix: u8) -> Option<Self> {
        let bits = piece_prefix.checked_sub(whole.length()).filter(|_| piece_prefix <= whole.bits())?;
        let count = 1u128.checked_shl(bits.into()).unwrap_or(Self::MAX_SUBNETS).min(Self::MAX_SUBNETS);
        Some(Self { whole, piece_prefix, count, used: HashSet::new(), next: 0 })
    }

    pub fn allocate(&mut self) -> Option<Cidr> {
        let index =
            (0..self.count).map(|step| (self.next + step) % self.count).find(|index| !self.used.contains(index))?;
        self.used.insert(index);
        self.next = (index + 1) % self.count;
        self.whole.subnet(self.piece_prefix, index)
    }

    /// Marks every subnet the network overlaps as used.
    pub fn occupy(&mut self, network: &Cidr) {
        for index in self.overlapped(network) {
            self.used.insert(index);
        }
    }

    pub fn release(&mut self, network: &Cidr) {
        for index in self.overlapped(network) {
            self.used.remove(&index);
        }
    }

    fn overlapped(&self, network: &Cidr) -> std::ops::Range<u128> {
        if network.covers(&self.whole) {
            return 0..self.count;
        }
        let Some(first) = self.whole.subnet_index_of(self.piece_prefix, network.first()) else { return 0..0 };
        // A network that is smaller than a subnet is in one.
        let subnets = 1u128 << self.piece_prefix.saturating_sub(network.length());
        first.min(self.count)..first.saturating_add(subnets).min(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(whole: &str, size: u8) -> Pool {
        Pool::new(whole.parse().unwrap(), size).unwrap()
    }

    #[test]
    fn pieces_are_given_out_in_turn() {
        let mut pool = pool("10.244.0.0/22", 24);
        let allocated: Vec<String> = (0..5).map(|_| pool.allocate().map_or("none".into(), |n| n.to_string())).collect();
        assert_eq!(allocated, ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24", "none"]);
        pool.release(&"10.244.2.0/24".parse::<Cidr>().unwrap());
        assert_eq!(pool.allocate().unwrap().to_string(), "10.244.2.0/24");
    }

    #[test]
    fn occupied_subnets_are_skipped() {
        let mut pool = pool("10.244.0.0/22", 24);
        pool.occupy(&"10.244.0.0/23".parse::<Cidr>().unwrap());
        pool.occupy(&"10.96.0.0/12".parse::<Cidr>().unwrap());
        pool.occupy(&"fd00::/64".parse::<Cidr>().unwrap());
        pool.occupy(&"10.244.3.128/25".parse::<Cidr>().unwrap());
        assert_eq!(pool.allocate().unwrap().to_string(), "10.244.2.0/24");
    }

    #[test]
    fn both_families() {
        let mut pool = pool("fd00:10:244::/48", 64);
        pool.allocate();
        assert_eq!(pool.allocate().unwrap().to_string(), "fd00:10:244:1::/64");
        assert_eq!("10.1.2.3/16".parse::<Cidr>().unwrap().to_string(), "10.1.0.0/16");
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
        assert!(Pool::new("10.0.0.0/24".parse::<Cidr>().unwrap(), 16).is_none());
    }
}
