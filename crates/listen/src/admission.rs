//! Counts the connections of a server, of all clients and of each.
//!
//! Anybody can open connections. So no client gets all of them: others could no longer connect.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Admits connections up to the limits.
pub struct Admission {
    all: Arc<Semaphore>,
    clients: Arc<Clients>,
}

/// A connection that counts until this is dropped.
pub struct Permit {
    _of_all: OwnedSemaphorePermit,
    client: IpAddr,
    clients: Arc<Clients>,
}

struct Clients {
    counts: Mutex<HashMap<IpAddr, usize>>,
    /// The limit of one client: three quarters of all.
    limit: usize,
}

impl Admission {
    /// Admits this many connections, three quarters of them of one client.
    pub fn new(connections: usize) -> Admission {
        let clients = Clients { counts: Mutex::default(), limit: connections - connections / 4 };
        Admission { all: Arc::new(Semaphore::new(connections)), clients: Arc::new(clients) }
    }

    /// Counts a connection; `None` if there are too many, in all or of this client.
    pub fn admit(&self, address: IpAddr) -> Option<Permit> {
        let of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let client = client(address);
        let mut counts = self.clients.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(client).or_default();
        if *count >= self.clients.limit {
            return None;
        }
        *count += 1;
        Some(Permit { _of_all: of_all, client, clients: Arc::clone(&self.clients) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.clients.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// The client of an address. A host has a network of IPv6 addresses to choose from.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_gets_all_connections() {
        let admission = Admission::new(8);
        let admit = |address: &str| admission.admit(address.parse().unwrap());
        let mut held: Vec<Permit> = (0..6).map(|_| admit("192.0.2.1").unwrap()).collect();
        assert!(admit("192.0.2.1").is_none() && admit("::ffff:192.0.2.1").is_none());
        held.push(admit("192.0.2.2").unwrap());
        held.push(admit("2001:db8::1").unwrap());
        assert!(admit("192.0.2.3").is_none(), "beyond the limit of all");
        held.clear();
        assert!(admission.clients.counts.lock().unwrap().is_empty());
        let held: Vec<_> = (0..6).map(|at| admit(&format!("2001:db8::{at}")).unwrap()).collect();
        assert!(admit("2001:db8::ffff").is_none(), "another address of the same host");
        assert!(admit("2001:db8:0:1::1").is_some());
        drop(held);
    }
}
