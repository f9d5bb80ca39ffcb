//! How many connections clients hold, so that one of them, or all together, cannot use up what this machine has.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Limits;

pub struct Connections {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    total: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// One connection's place, free again when dropped.
pub struct Held {
    connections: Arc<Connections>,
    client: IpAddr,
}

impl Connections {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// A place for one more connection of a client, unless it or all have too many.
    pub fn hold(self: &Arc<Self>, client: IpAddr) -> Option<Held> {
        let client = client.to_canonical();
        let mut state = self.state.lock();
        let of_client = state.by_client.get(&client).copied().unwrap_or(0);
        if state.total >= self.limits.connections || of_client >= self.limits.connections_of_client {
            return None;
        }
        state.total += 1;
        state.by_client.insert(client, of_client + 1);
        Some(Held { connections: Arc::clone(self), client })
    }
}

impl Drop for Held {
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
    fn no_client_takes_the_place_of_others() {
        let limits = Limits { connections: 5, connections_of_client: 2, ..Limits::default() };
        let connections = Connections::new(limits);
        let hold = |last: u8| connections.hold([10, 0, 0, last].into());
        let held: Vec<Held> = [1, 1, 2, 2].map(|last| hold(last).unwrap()).into();
        assert!(hold(1).is_none() && hold(2).is_none(), "too many of one");
        let fifth = hold(3);
        assert!(fifth.is_some() && hold(4).is_none(), "too many of all");
        drop((held, fifth));
        let state = connections.state.lock();
        assert!(state.total == 0 && state.by_client.is_empty());
    }
}
