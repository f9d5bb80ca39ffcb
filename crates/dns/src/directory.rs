//! What is known of services, by name and by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::name::Name;

#[derive(Default)]
pub struct Directory {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// Namespace → service → what it offers.
    services: HashMap<String, HashMap<String, Arc<Service>>>,
    /// Who has an address; the first one is told.
    owners: HashMap<IpAddr, Vec<Owner>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub namespace: String,
    pub service: String,
    /// The endpoint's own label, for those behind a headless service.
    pub endpoint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub kind: Kind,
    pub ports: Vec<Port>,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Addresses(Vec<IpAddr>),
    Headless,
    External(Name),
}

/// As SRV records name it: `_http._tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub protocol: &'static str,
    pub number: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its hostname, or its address with dashes.
    pub label: String,
    pub address: IpAddr,
    pub ports: Arc<[Port]>,
}

impl Directory {
    pub fn find(&self, namespace: &str, service: &str) -> Option<Arc<Service>> {
        self.known.read().services.get(namespace)?.get(service).cloned()
    }

    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.known.read().services.contains_key(namespace)
    }

    pub fn owner(&self, address: IpAddr) -> Option<Owner> {
        self.known.read().owners.get(&address)?.first().cloned()
    }

    /// Puts what a service offers in place of what was known, or forgets it.
    pub fn set(&self, namespace: &str, name: &str, service: Option<Service>) {
        let mut known = self.known.write();
        let old = known.services.get(namespace).and_then(|services| services.get(name)).cloned();
        if old.as_deref() == service.as_ref() {
            return;
        }
        for (address, owner) in old.iter().flat_map(|old| owned(namespace, name, old)) {
            if let Some(owners) = known.owners.get_mut(&address) {
                owners.retain(|other| *other != owner);
                if owners.is_empty() {
                    known.owners.remove(&address);
                }
            }
        }
        match service {
            Some(service) => {
                for (address, owner) in owned(namespace, name, &service) {
                    let owners = known.owners.entry(address).or_default();
                    if !owners.contains(&owner) {
                        owners.push(owner);
                    }
                }
                known.services.entry(namespace.to_owned()).or_default().insert(name.to_owned(), Arc::new(service));
            }
            None => {
                if let Some(services) = known.services.get_mut(namespace) {
                    services.remove(name);
                    if services.is_empty() {
                        known.services.remove(namespace);
                    }
                }
            }
        }
    }
}

/// Addresses that lead back to a service's name.
fn owned(namespace: &str, name: &str, service: &Service) -> Vec<(IpAddr, Owner)> {
    let owner = |endpoint: Option<&str>| Owner {
        namespace: namespace.to_owned(),
        service: name.to_owned(),
        endpoint: endpoint.map(str::to_owned),
    };
    match &service.kind {
        Kind::Addresses(addresses) => addresses.iter().map(|address| (*address, owner(None))).collect(),
        Kind::Headless => {
            let endpoints = service.endpoints.iter();
            endpoints.map(|endpoint| (endpoint.address, owner(Some(&endpoint.label)))).collect()
        }
        Kind::External(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_back_until_their_service_goes() {
        let directory = Directory::default();
        let address = IpAddr::from([10, 96, 0, 7]);
        let service = Service { kind: Kind::Addresses(vec![address]), ports: vec![], endpoints: vec![] };
        directory.set("n", "one", Some(service.clone()));
        directory.set("n", "two", Some(service));
        assert_eq!(directory.owner(address).unwrap().service, "one");
        directory.set("n", "one", None);
        assert_eq!(directory.owner(address).unwrap().service, "two");
        directory.set("n", "two", None);
        assert!(directory.owner(address).is_none() && !directory.has_namespace("n"));
    }
}
