//! Limits the number of TCP connections per client, so that one client cannot use them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Limits on connections: of all clients together, and of one client.
pub const MAX_CONNECTIONS: usize = 1000;
const MAX_CONNECTIONS_PER_CLIENT: usize = 32;
/// A connection without a query for this long is closed; sooner when few connections are left.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT_WHEN_BUSY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Clients(Mutex<HashMap<IpAddr, usize>>);

/// Permit for one connection, released on drop.
pub struct ConnectionPermit {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    /// Acquires a permit for a client's connection, unless the client is at its limit.
    pub fn acquire(self: &Arc<Self>, client: IpAddr) -> Option<ConnectionPermit> {
        let client = client.to_canonical();
        let mut held = self.0.lock();
        let count = held.entry(client).or_default();
        if *count >= MAX_CONNECTIONS_PER_CLIENT {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { clients: Arc::clone(self), client })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut held = self.clients.0.lock();
        if let Some(count) = held.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.client);
            }
        }
    }
}

/// The idle timeout when this many permits are free.
pub fn idle_timeout(free: usize) -> Duration {
    if free < MAX_CONNECTIONS / 4 { IDLE_TIMEOUT_WHEN_BUSY } else { IDLE_TIMEOUT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_use_all_connections() {
        let clients = Arc::new(Clients::default());
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut held: Vec<ConnectionPermit> =
            (0..MAX_CONNECTIONS_PER_CLIENT).map(|_| clients.acquire(one).unwrap()).collect();
        assert!(clients.acquire(one).is_none());
        assert!(clients.acquire("::ffff:10.0.0.1".parse().unwrap()).is_none(), "the same client");
        assert!(clients.acquire(other).is_some());
        held.pop();
        assert!(clients.acquire(one).is_some());
        drop(held);
        assert!(clients.0.lock().is_empty(), "nothing is kept of clients that are gone");
        assert!(idle_timeout(MAX_CONNECTIONS) > idle_timeout(0));
    }
}
