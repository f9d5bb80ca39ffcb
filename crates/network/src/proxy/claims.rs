//! Ownership of external addresses and ports. Users choose these, so two Services may claim the same; an nftables map accepts
//! one and rejects a transaction with two, which would leave all Services without rules.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::frontends::Frontend;
use crate::protocol::Protocol;

type AddressPort = (IpAddr, Protocol, u16);

#[derive(Debug, Default)]
pub struct Claims {
    owners: HashMap<AddressPort, String>,
    /// Cluster IPs, by Service. An external address never captures one of them.
    given: HashMap<IpAddr, String>,
    given_to: HashMap<String, Vec<IpAddr>>,
    /// Services that did not get all addresses they claim.
    waiting: BTreeSet<String>,
}

impl Claims {
    /// Removes from a Service's frontends the addresses that another Service owns, and records the others as its own. The first
    /// owner keeps an address until it releases it. Returns the Services to sync again, since an address they claim is free.
    pub fn reconcile(&mut self, service: &str, frontends: &mut [Frontend]) -> BTreeSet<String> {
        self.give(service, frontends);
        let desired: BTreeSet<AddressPort> = frontends.iter().flat_map(places).collect();
        let before = self.owners.len();
        self.owners.retain(|place, owner| owner != service || desired.contains(place));
        let is_freed = self.owners.len() < before;
        self.waiting.remove(service);
        for frontend in frontends {
            let (protocol, port) = (frontend.protocol, frontend.port);
            let given = &self.given;
            let mut is_own = |address: &IpAddr| {
                !given.contains_key(address)
                    && self.owners.entry((*address, protocol, port)).or_insert_with(|| service.to_owned()) == service
            };
            let all = frontend.external_addresses.len();
            frontend.external_addresses.retain(|address| is_own(address));
            frontend.balancer_addresses.retain(|address| is_own(address));
            if frontend.external_addresses.len() < all {
                tracing::warn!(service, port, "an external address and port belong to another service");
                self.waiting.insert(service.to_owned());
            }
        }
        if is_freed { self.waiting.clone() } else { BTreeSet::new() }
    }

    /// Records the cluster IPs of a Service.
    fn give(&mut self, service: &str, frontends: &[Frontend]) {
        for address in self.given_to.remove(service).into_iter().flatten() {
            if self.given.get(&address).is_some_and(|owner| owner == service) {
                self.given.remove(&address);
            }
        }
        if let Some(frontend) = frontends.first() {
            self.given.extend(frontend.cluster_addresses.iter().map(|address| (*address, service.to_owned())));
            self.given_to.insert(service.to_owned(), frontend.cluster_addresses.clone());
        }
    }
}

fn places(frontend: &Frontend) -> impl Iterator<Item = AddressPort> + '_ {
    frontend.external_addresses.iter().map(|address| (*address, frontend.protocol, frontend.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::frontends;
    use serde_json::json;

    fn fronts_of(address: &str) -> Vec<Frontend> {
        let service = json!({"metadata": {"name": "s", "namespace": "n"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "externalIPs": [address]}});
        frontends::of(&serde_json::from_value(service).unwrap(), &[], &frontends::NodeContext::default())
    }

    #[test]
    fn the_first_service_owns_an_address() {
        let mut claims = Claims::default();
        let mut reconcile = |service: &str, address: Option<&str>| {
            let mut frontends = address.map(fronts_of).unwrap_or_default();
            let again = claims.reconcile(service, &mut frontends);
            let has = frontends.first().is_some_and(|frontend| !frontend.external_addresses.is_empty());
            (has, again.into_iter().collect::<Vec<_>>())
        };
        let none: Vec<String> = vec![];
        assert_eq!(reconcile("n/one", Some("192.0.2.1")), (true, none.clone()));
        assert_eq!(reconcile("n/two", Some("192.0.2.1")), (false, none.clone()), "taken");
        assert_eq!(reconcile("n/three", Some("192.0.2.2")), (true, none.clone()));
        assert_eq!(reconcile("n/one", Some("192.0.2.1")), (true, none.clone()), "it keeps what it has");
        assert_eq!(reconcile("n/one", None), (false, vec!["n/two".to_owned()]), "it goes, and the other gets its turn");
        assert_eq!(reconcile("n/two", Some("192.0.2.1")), (true, none.clone()));
        assert_eq!(reconcile("n/four", Some("10.96.0.1")), (false, none), "another service's own address");
    }
}
