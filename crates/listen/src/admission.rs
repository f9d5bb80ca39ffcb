//! Limits the connections of a server: of all clients together, and of each client.
//!
//! Connections are limited before clients are authenticated. The limit per client keeps one of them from using up all
//! connections, so that others can still connect.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clients::{ClientPermit, Clients, host_of};

/// Accepts connections up to the limits.
#[derive(Debug)]
pub struct Admission {
    all: Arc<Semaphore>,
    clients: Arc<Clients>,
}

/// A connection that counts until this is dropped.
#[derive(Debug)]
pub struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_client: ClientPermit,
}

impl Admission {
    /// Accepts this many connections, and at most three quarters of them from one client.
    pub fn new(connections: usize) -> Admission {
        Self::with_limits(connections, connections - connections / 4)
    }

    /// Accepts this many connections of all clients, and this many of one client.
    pub fn with_limits(connections: usize, of_client: usize) -> Admission {
        Admission { all: Arc::new(Semaphore::new(connections)), clients: Clients::new(of_client) }
    }

    /// Counts a connection; `None` if either limit is reached.
    pub fn admit(&self, address: IpAddr) -> Option<Permit> {
        let of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let of_client = self.clients.acquire(host_of(address))?;
        Some(Permit { _of_all: of_all, _of_client: of_client })
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
        let held: Vec<_> = (0..6).map(|at| admit(&format!("2001:db8::{at}")).unwrap()).collect();
        assert!(admit("2001:db8::ffff").is_none(), "another address of the same host");
        assert!(admit("2001:db8:0:1::1").is_some());
        drop(held);
    }

    #[test]
    fn a_client_cannot_exceed_its_limit_at_the_expense_of_others() {
        let admission = Admission::with_limits(5, 2);
        let admit = |last: u8| admission.admit([10, 0, 0, last].into());
        let held: Vec<Permit> = [1, 1, 2, 2].map(|last| admit(last).unwrap()).into();
        assert!(admit(1).is_none() && admit(2).is_none(), "too many of one");
        let fifth = admit(3);
        assert!(fifth.is_some() && admit(4).is_none(), "too many of all");
        drop((held, fifth));
        assert!((1..6).map(admit).collect::<Vec<_>>().iter().all(Option::is_some));
    }
}
