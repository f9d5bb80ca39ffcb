//! Limits what one client can hold at a time, TCP connections and queries to other servers, so that it cannot use them all.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_listen::Clients;

/// Limits on connections: of all clients together, and of one client.
pub const MAX_CONNECTIONS: usize = 1000;
const MAX_CONNECTIONS_PER_CLIENT: usize = 32;
/// Limits on queries to other servers that await a response: of all clients together, and of one client.
pub const MAX_FORWARDED: usize = 2000;
const MAX_FORWARDED_PER_CLIENT: usize = 200;
/// A connection without a query for this long is closed; sooner when few connections are left.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT_WHEN_BUSY: Duration = Duration::from_secs(1);

/// Counts the TCP connections of each client.
pub fn with_connections() -> Arc<Clients> {
    Clients::new(MAX_CONNECTIONS_PER_CLIENT)
}

/// Counts the forwarded queries of each client.
pub fn with_forwarded_queries() -> Arc<Clients> {
    Clients::new(MAX_FORWARDED_PER_CLIENT)
}

/// Who counts as one client: an address and not its network, as pods of a node share a network.
pub fn client_of(address: IpAddr) -> IpAddr {
    address.to_canonical()
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
        let clients = with_connections();
        let acquire = |address: &str| clients.acquire(client_of(address.parse().unwrap()));
        let held: Vec<_> = (0..MAX_CONNECTIONS_PER_CLIENT).map(|_| acquire("10.0.0.1").unwrap()).collect();
        assert!(acquire("10.0.0.1").is_none());
        assert!(acquire("::ffff:10.0.0.1").is_none(), "the same client");
        assert!(acquire("10.0.0.2").is_some());
        let other: Vec<_> = (0..MAX_CONNECTIONS_PER_CLIENT).map(|_| acquire("fd00::1").unwrap()).collect();
        assert!(acquire("fd00::2").is_some(), "another pod of the same node");
        drop((held, other));
        assert!(idle_timeout(MAX_CONNECTIONS) > idle_timeout(0));
    }
}
