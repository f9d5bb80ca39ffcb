//! Chooses the server for connections, from the list of servers and their failures. No I/O.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// A server counts as failed after this many consecutive failures, since a single request may fail by chance.
const MAX_FAILURES: u32 = 2;

/// The servers of the cluster as an agent sees them.
#[derive(Debug)]
pub struct Servers {
    /// The configured server of the agent, the last resort. It may be the name of a load balancer.
    given: String,
    /// Discovered from the cluster, as `host:port`.
    learnt: Vec<Server>,
    /// The index of the server that connections go to, if it is usable.
    preferred: usize,
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    address: String,
    failures: u32,
}

impl Server {
    fn new(address: &str) -> Self {
        Self { address: address.to_owned(), failures: 0 }
    }

    fn is_well(&self) -> bool {
        self.failures < MAX_FAILURES
    }
}

impl Servers {
    /// `known` are the servers of a previous run. The name of the node decides which server comes first, so that agents spread
    /// over all servers.
    pub fn new(given: String, known: Vec<String>, node: &str) -> Self {
        let mut servers = Self { given, learnt: Vec::new(), preferred: 0, node: node.to_owned() };
        servers.set(&known);
        servers
    }

    /// Replaces the list and keeps the failures of servers that remain. Returns whether the list changed.
    pub fn set(&mut self, addresses: &[String]) -> bool {
        // An empty list is wrong: one of the servers sent it.
        if addresses.is_empty() || self.learnt.iter().map(|server| &server.address).eq(addresses) {
            return false;
        }
        let old = std::mem::take(&mut self.learnt);
        let preferred = old.get(self.preferred).map(|server| server.address.clone());
        let known = |address: &String| old.iter().find(|server| server.address == *address).cloned();
        self.learnt = addresses.iter().map(|address| known(address).unwrap_or_else(|| Server::new(address))).collect();
        let stays = preferred.and_then(|preferred| addresses.iter().position(|address| *address == preferred));
        self.preferred = stays.unwrap_or_else(|| {
            let mut hasher = DefaultHasher::new();
            self.node.hash(&mut hasher);
            (hasher.finish() % addresses.len() as u64) as usize
        });
        true
    }

    /// Records whether a server responded. Returns whether its health changed.
    pub fn report(&mut self, address: &str, is_well: bool) -> bool {
        let count = self.learnt.len();
        let Some(index) = self.learnt.iter().position(|server| server.address == address) else { return false };
        let server = &mut self.learnt[index];
        let was_well = server.is_well();
        server.failures = if is_well { 0 } else { server.failures.saturating_add(1) };
        let has_changed = server.is_well() != was_well;
        if !self.learnt[self.preferred].is_well() {
            // Connections do not move back when the previous server recovers: moving fails requests in flight.
            let next = (1..count).map(|step| (self.preferred + step) % count).find(|next| self.learnt[*next].is_well());
            self.preferred = next.unwrap_or(self.preferred);
        }
        has_changed
    }

    /// The servers to try for a new connection, in order.
    pub fn candidates(&self) -> Vec<String> {
        let count = self.learnt.len();
        let all = (0..count).map(|step| &self.learnt[(self.preferred + step) % count]);
        let (well, failed): (Vec<_>, Vec<_>) = all.partition(|server| server.is_well());
        let mut candidates: Vec<String> = well.into_iter().chain(failed).map(|server| server.address.clone()).collect();
        if !candidates.contains(&self.given) {
            candidates.push(self.given.clone());
        }
        candidates
    }

    /// All servers that are known.
    pub fn all(&self) -> Vec<String> {
        self.learnt.iter().map(|server| server.address.clone()).collect()
    }

    /// Whether connections to a server stay open: it responds, or no server does.
    pub fn is_usable(&self, address: &str) -> bool {
        match self.learnt.iter().find(|server| server.address == address) {
            Some(server) => server.is_well() || !self.learnt.iter().any(Server::is_well),
            // The configured name may lead to any of them.
            None => address == self.given,
        }
    }

    /// The server to check often, and the others.
    pub fn to_check(&self) -> (Option<String>, Vec<String>) {
        let mut others: Vec<String> = self.learnt.iter().map(|server| server.address.clone()).collect();
        if others.is_empty() {
            return (None, others);
        }
        let preferred = others.remove(self.preferred);
        (Some(preferred), others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn connections_go_to_one_server_until_it_fails() {
        let mut servers = Servers::new("given".into(), names(&["a", "b", "c"]), "node");
        let first = servers.candidates()[0].clone();
        assert!(!servers.report(&first, false), "one failure is not enough");
        assert_eq!(servers.candidates()[0], first);
        assert!(servers.report(&first, false));
        let second = servers.candidates()[0].clone();
        assert_ne!(second, first);
        assert!(!servers.is_usable(&first) && servers.is_usable(&second));
        assert_eq!(servers.candidates().len(), 4, "all are tried, the given one last");
        assert!(servers.report(&first, true));
        assert_eq!(servers.candidates()[0], second, "it does not move back");
    }

    #[test]
    fn when_all_fail_any_may_be_used() {
        let mut servers = Servers::new("given".into(), names(&["a", "b"]), "node");
        for _ in 0..3 {
            servers.report("a", false);
            servers.report("b", false);
        }
        assert!(servers.is_usable("a") && servers.is_usable("b") && servers.is_usable("given"));
        assert_eq!(servers.candidates().len(), 3);
    }

    #[test]
    fn the_list_changes_without_moving_connections() {
        let mut servers = Servers::new("given".into(), Vec::new(), "node");
        assert_eq!(servers.candidates(), ["given"]);
        assert_eq!(servers.to_check(), (None, vec![]));
        assert!(servers.set(&names(&["b"])));
        assert_eq!(servers.candidates()[0], "b");
        assert!(servers.set(&names(&["a", "b", "c"])));
        assert!(!servers.set(&names(&["a", "b", "c"])) && !servers.set(&[]));
        assert_eq!(servers.candidates()[0], "b");
        assert_eq!(servers.to_check(), (Some("b".into()), names(&["a", "c"])));
        servers.set(&names(&["a", "c"]));
        assert!(!servers.is_usable("b") && servers.is_usable("given"));
    }

    #[test]
    fn agents_are_spread_over_the_servers() {
        let all = names(&["a", "b", "c"]);
        let firsts: std::collections::BTreeSet<String> = (0..50)
            .map(|node| Servers::new("given".into(), all.clone(), &format!("node-{node}")).candidates().remove(0))
            .collect();
        assert_eq!(firsts.len(), 3);
    }
}
