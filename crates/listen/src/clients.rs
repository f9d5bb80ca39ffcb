//! Counts what each client holds, such as connections, so that none holds all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Limits what one client can hold at a time.
#[derive(Debug)]
pub struct Clients {
    limit: usize,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// Counts for its client until it is dropped.
#[derive(Debug)]
pub struct ClientPermit {
    client: IpAddr,
    clients: Arc<Clients>,
}

impl Clients {
    /// Gives each client up to this many permits.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, held: Mutex::default() })
    }

    /// A permit for a client, unless it is at its limit. Who counts as one client is the caller's decision: see [`host_of`].
    pub fn acquire(self: &Arc<Self>, client: IpAddr) -> Option<ClientPermit> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(client).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(ClientPermit { client, clients: Arc::clone(self) })
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut held = self.clients.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.client);
            }
        }
    }
}

/// The host of an address, as one client. A host of IPv6 has all addresses of its network of 64 bits to choose from.
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_limit_and_nothing_is_kept_of_those_that_are_gone() {
        let clients = Clients::new(2);
        let acquire = |last: u8| clients.acquire([10, 0, 0, last].into());
        let mut held = vec![acquire(1).unwrap(), acquire(1).unwrap()];
        assert!(acquire(1).is_none() && acquire(2).is_some());
        held.pop();
        assert!(acquire(1).is_some());
        drop(held);
        assert!(clients.held.lock().unwrap().is_empty());
    }

    #[test]
    fn a_host_is_one_client() {
        for (address, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::"),
            ("2001:db8:0:1::ffff", "2001:db8:0:1::"),
        ] {
            assert_eq!(host_of(address.parse().unwrap()).to_string(), expected);
        }
    }
}
