//! How many connections each client holds, so that one cannot hold them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Connections of all clients together, and of one.
pub const MOST: usize = 1000;
const MOST_OF_ONE: usize = 32;
/// A client that says nothing for this long is let go; sooner when connections run short.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_WHEN_SHORT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Clients(Mutex<HashMap<IpAddr, usize>>);

/// One connection's place, free again when dropped.
pub struct Held {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    /// A place for one more connection of a client, unless it has too many.
    pub fn hold(self: &Arc<Self>, client: IpAddr) -> Option<Held> {
        let client = client.to_canonical();
        let mut held = self.0.lock();
        let count = held.entry(client).or_default();
        if *count >= MOST_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Held { clients: Arc::clone(self), client })
    }
}

impl Drop for Held {
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

/// How long a client may be silent while so many places are free.
pub fn idle_limit(free: usize) -> Duration {
    if free < MOST / 4 { IDLE_WHEN_SHORT } else { IDLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_room_for_others() {
        let clients = Arc::new(Clients::default());
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut held: Vec<Held> = (0..MOST_OF_ONE).map(|_| clients.hold(one).unwrap()).collect();
        assert!(clients.hold(one).is_none());
        assert!(clients.hold("::ffff:10.0.0.1".parse().unwrap()).is_none(), "the same client");
        assert!(clients.hold(other).is_some());
        held.pop();
        assert!(clients.hold(one).is_some());
        drop(held);
        assert!(clients.0.lock().is_empty(), "nothing is kept of clients that are gone");
        assert!(idle_limit(MOST) > idle_limit(0));
    }
}
