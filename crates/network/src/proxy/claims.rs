//! Who has which external address and port. Users write these, so two services may want the same; a map of the kernel takes
//! one, and refuses a transaction with two, which would leave all services without rules.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::fronts::{Front, Protocol};

type Place = (IpAddr, Protocol, u16);

#[derive(Debug, Default)]
pub struct Claims {
    owners: HashMap<Place, String>,
    /// Addresses that the cluster gave to services, and which each has. No external address takes one of them.
    given: HashMap<IpAddr, String>,
    given_to: HashMap<String, Vec<IpAddr>>,
    /// Services that did not get all they want.
    waiting: BTreeSet<String>,
}

impl Claims {
    /// Takes from a service's fronts the addresses that another service has, and remembers the others as its own. Who comes
    /// first has them until it lets go. Tells which services to look at again, since something they may want is free.
    pub fn settle(&mut self, service: &str, fronts: &mut [Front]) -> BTreeSet<String> {
        self.give(service, fronts);
        let wanted: BTreeSet<Place> = fronts.iter().flat_map(places).collect();
        let before = self.owners.len();
        self.owners.retain(|place, owner| owner != service || wanted.contains(place));
        let is_freed = self.owners.len() < before;
        self.waiting.remove(service);
        for front in fronts {
            let (protocol, port) = (front.protocol, front.port);
            let given = &self.given;
            let mut is_own = |address: &IpAddr| {
                !given.contains_key(address)
                    && self.owners.entry((*address, protocol, port)).or_insert_with(|| service.to_owned()) == service
            };
            let all = front.external_addresses.len();
            front.external_addresses.retain(|address| is_own(address));
            front.balancer_addresses.retain(|address| is_own(address));
            if front.external_addresses.len() < all {
                tracing::warn!(service, port, "an external address belongs to another service on that port");
                self.waiting.insert(service.to_owned());
            }
        }
        if is_freed { self.waiting.clone() } else { BTreeSet::new() }
    }

    /// Notes the addresses that the cluster gave to a service.
    fn give(&mut self, service: &str, fronts: &[Front]) {
        for address in self.given_to.remove(service).into_iter().flatten() {
            if self.given.get(&address).is_some_and(|owner| owner == service) {
                self.given.remove(&address);
            }
        }
        if let Some(front) = fronts.first() {
            self.given.extend(front.cluster_addresses.iter().map(|address| (*address, service.to_owned())));
            self.given_to.insert(service.to_owned(), front.cluster_addresses.clone());
        }
    }
}

fn places(front: &Front) -> impl Iterator<Item = Place> + '_ {
    front.external_addresses.iter().map(|address| (*address, front.protocol, front.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::fronts;
    use serde_json::json;

    fn fronts_of(address: &str) -> Vec<Front> {
        let service = json!({"metadata": {"name": "s", "namespace": "n"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "externalIPs": [address]}});
        fronts::of(&serde_json::from_value(service).unwrap(), &[], &fronts::Place::default())
    }

    #[test]
    fn who_comes_first_has_an_address() {
        let mut claims = Claims::default();
        let mut settle = |service: &str, address: Option<&str>| {
            let mut fronts = address.map(fronts_of).unwrap_or_default();
            let again = claims.settle(service, &mut fronts);
            let has = fronts.first().is_some_and(|front| !front.external_addresses.is_empty());
            (has, again.into_iter().collect::<Vec<_>>())
        };
        let none: Vec<String> = vec![];
        assert_eq!(settle("n/one", Some("192.0.2.1")), (true, none.clone()));
        assert_eq!(settle("n/two", Some("192.0.2.1")), (false, none.clone()), "taken");
        assert_eq!(settle("n/three", Some("192.0.2.2")), (true, none.clone()));
        assert_eq!(settle("n/one", Some("192.0.2.1")), (true, none.clone()), "it keeps what it has");
        assert_eq!(settle("n/one", None), (false, vec!["n/two".to_owned()]), "it goes, and the other gets its turn");
        assert_eq!(settle("n/two", Some("192.0.2.1")), (true, none.clone()));
        assert_eq!(settle("n/four", Some("10.96.0.1")), (false, none), "another service's own address");
    }
}
