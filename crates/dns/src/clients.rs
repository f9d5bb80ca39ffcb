//! Limits what one client can hold at a time, TCP connections and queries to other servers, so that it cannot use them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Limits on connections: of all clients together, and of one client.
pub const MAX_CONNECTIONS: usize = 1000;
const MAX_CONNECTIONS_PER_CLIENT: usize = 32;
/// Limits on queries to other servers that await a response: of all clients together, and of one client.
pub const MAX_FORWARDED: usize = 2000;
const MAX_FORWARDED_PER_CLIENT: usize = 200;
/// A connection without a query for this long is closed; sooner when few connections are left.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT_WHEN_BUSY: Duration = Duration::from_secs(1);

pub struct Clients {
    limit: usize,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// Permit for one connection or query, released on drop.
pub struct ClientPermit {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    pub fn with_connections() -> Arc<Self> {
        Arc::new(Self { limit: MAX_CONNECTIONS_PER_CLIENT, held: Mutex::default() })
    }

    pub fn with_forwarded_queries() -> Arc<Self> {
        Arc::new(Self { limit: MAX_FORWARDED_PER_CLIENT, held: Mutex::default() })
    }

    /// Acquires a permit for a client, unless the client is at its limit.
    pub fn acquire(self: &Arc<Self>, client: IpAddr) -> Option<ClientPermit> {
        let client = client.to_canonical();
        let mut held = self.held.lock();
        let count = held.entry(client).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(ClientPermit { clients: Arc::clone(self), client })
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut held = self.clients.held.lock();
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
        let clients = Clients::with_connections();
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut held: Vec<ClientPermit> =
            (0..MAX_CONNECTIONS_PER_CLIENT).map(|_| clients.acquire(one).unwrap()).collect();
        assert!(clients.acquire(one).is_none());
        assert!(clients.acquire("::ffff:10.0.0.1".parse().unwrap()).is_none(), "the same client");
        assert!(clients.acquire(other).is_some());
        held.pop();
        assert!(clients.acquire(one).is_some());
        drop(held);
        assert!(clients.held.lock().is_empty(), "nothing is kept of clients that are gone");
        assert!(idle_timeout(MAX_CONNECTIONS) > idle_timeout(0));
    }
}
