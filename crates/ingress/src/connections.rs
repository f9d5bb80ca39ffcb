//! Limits the number of client connections, in total and per client, so that they cannot exhaust the node.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Limits;

#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    total: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// Permit for one connection, released on drop.
#[derive(Debug)]
pub struct ConnectionPermit {
    connections: Arc<Connections>,
    client: IpAddr,
}

impl Connections {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Acquires a permit, unless the client or the total is at its limit.
    pub fn acquire(self: &Arc<Self>, client: IpAddr) -> Option<ConnectionPermit> {
        let client = network_of(client);
        let mut state = self.state.lock();
        let of_client = state.by_client.get(&client).copied().unwrap_or(0);
        if state.total >= self.limits.connections || of_client >= self.limits.connections_of_client {
            return None;
        }
        state.total += 1;
        state.by_client.insert(client, of_client + 1);
        Some(ConnectionPermit { connections: Arc::clone(self), client })
    }
}

/// What counts as one client. A host of IPv6 has all addresses of its network of 64 bits to choose from.
pub fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        state.total -= 1;
        if let Some(count) = state.by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                state.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_exceed_its_limit_at_the_expense_of_others() {
        let limits = Limits { connections: 5, connections_of_client: 2, ..Limits::default() };
        let connections = Connections::new(limits);
        let acquire = |last: u8| connections.acquire([10, 0, 0, last].into());
        let held: Vec<ConnectionPermit> = [1, 1, 2, 2].map(|last| acquire(last).unwrap()).into();
        assert!(acquire(1).is_none() && acquire(2).is_none(), "too many of one");
        let fifth = acquire(3);
        assert!(fifth.is_some() && acquire(4).is_none(), "too many of all");
        drop((held, fifth));
        let acquire = |text: &str| connections.acquire(text.parse().unwrap());
        let held = [acquire("2001:db8::1"), acquire("2001:db8::2"), acquire("2001:db8:0:1::1")];
        assert!(held.iter().all(Option::is_some));
        assert!(acquire("2001:db8::3").is_none(), "another address of the same host");
        assert!(acquire("2001:db8:0:1::2").is_some());
        drop(held);
        let state = connections.state.lock();
        assert!(state.total == 0 && state.by_client.is_empty());
    }
}
