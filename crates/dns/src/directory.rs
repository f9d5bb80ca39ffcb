//! The known Services, indexed by name and by address.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::name::Name;

#[derive(Default)]
pub struct Directory {
    known: RwLock<Index>,
    /// Incremented by each change.
    serial: AtomicU32,
}

#[derive(Default)]
struct Index {
    /// Namespace → Service name → Service.
    services: HashMap<String, HashMap<String, Arc<Service>>>,
    /// Namespaces without Services exist as names, too.
    namespaces: HashSet<String>,
    /// The Services that own an address: as their cluster IP, or as an endpoint. Sorted: thousands may share an endpoint.
    owners: HashMap<IpAddr, Vec<Arc<Key>>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    namespace: String,
    service: String,
}

/// The name of an address, for PTR records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub namespace: String,
    pub service: String,
    /// The endpoint's label; `None` for the address of the Service itself.
    pub endpoint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub kind: Kind,
    pub ports: Vec<Port>,
    /// Sorted by address and label.
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Addresses(Vec<IpAddr>),
    Headless,
    External(Name),
}

/// A port as in SRV records: `_http._tcp`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
        let known = self.known.read();
        known.namespaces.contains(namespace) || known.services.contains_key(namespace)
    }

    pub fn set_namespace(&self, namespace: &str, is_there: bool) {
        let mut known = self.known.write();
        let is_changed = match is_there {
            true => known.namespaces.insert(namespace.to_owned()),
            false => known.namespaces.remove(namespace),
        };
        self.serial.fetch_add(u32::from(is_changed), Ordering::Relaxed);
    }

    /// Version of the directory, used as the zone's serial.
    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The owners of an address: its Service, or else every endpoint that has it.
    pub fn owners(&self, address: IpAddr) -> Vec<Owner> {
        let known = self.known.read();
        let mut found: Vec<Owner> = Vec::new();
        for key in known.owners.get(&address).into_iter().flatten() {
            let Some(service) = known.services.get(&key.namespace).and_then(|all| all.get(&key.service)) else {
                continue;
            };
            let owner = |endpoint: Option<&str>| Owner {
                namespace: key.namespace.clone(),
                service: key.service.clone(),
                endpoint: endpoint.map(str::to_owned),
            };
            if matches!(&service.kind, Kind::Addresses(own) if own.contains(&address)) {
                return vec![owner(None)];
            }
            let first = service.endpoints.partition_point(|endpoint| endpoint.address < address);
            let endpoints = service.endpoints[first..].iter().take_while(|endpoint| endpoint.address == address);
            for new in endpoints.map(|endpoint| owner(Some(&endpoint.label))) {
                if found.last() != Some(&new) {
                    found.push(new);
                }
            }
        }
        found
    }

    /// Replaces or removes the entry of a Service.
    pub fn set(&self, namespace: &str, name: &str, service: Option<Service>) {
        let mut known = self.known.write();
        let old = known.services.get(namespace).and_then(|services| services.get(name)).cloned();
        if old.as_deref() == service.as_ref() {
            return;
        }
        self.serial.fetch_add(1, Ordering::Relaxed);
        let key = Arc::new(Key { namespace: namespace.to_owned(), service: name.to_owned() });
        for address in old.iter().flat_map(|old| owned(old)) {
            if let Some(owners) = known.owners.get_mut(&address) {
                if let Ok(at) = owners.binary_search(&key) {
                    owners.remove(at);
                }
                if owners.is_empty() {
                    known.owners.remove(&address);
                }
            }
        }
        match service {
            Some(service) => {
                for address in owned(&service) {
                    let owners = known.owners.entry(address).or_default();
                    if let Err(at) = owners.binary_search(&key) {
                        owners.insert(at, Arc::clone(&key));
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

/// Addresses that resolve back to the name of a Service.
fn owned(service: &Service) -> impl Iterator<Item = IpAddr> {
    let own = match &service.kind {
        Kind::Addresses(addresses) => addresses.as_slice(),
        Kind::Headless | Kind::External(_) => &[],
    };
    own.iter().copied().chain(service.endpoints.iter().map(|endpoint| endpoint.address))
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
        let names = || directory.owners(address).into_iter().map(|owner| owner.service).collect::<Vec<_>>();
        assert_eq!(names(), ["one"]);
        directory.set("n", "one", None);
        assert_eq!(names(), ["two"]);
        directory.set("n", "two", None);
        assert!(names().is_empty() && !directory.has_namespace("n"));
        directory.set_namespace("n", true);
        assert!(directory.has_namespace("n"), "a namespace without services");
    }

    #[test]
    fn an_endpoint_of_several_services_has_several_names() {
        let directory = Directory::default();
        let address = IpAddr::from([10, 244, 0, 2]);
        let endpoint = |label: &str| Endpoint { label: label.into(), address, ports: Arc::from([]) };
        let service = |label: &str| Service {
            kind: Kind::Headless,
            ports: vec![],
            endpoints: vec![endpoint(label), endpoint(label)],
        };
        directory.set("n", "one", Some(service("a")));
        directory.set("n", "two", Some(service("b")));
        let names = || directory.owners(address).into_iter().filter_map(|owner| owner.endpoint).collect::<Vec<_>>();
        assert_eq!(names(), ["a", "b"]);
        directory.set("n", "one", Some(Service { endpoints: vec![], ..service("a") }));
        assert_eq!(names(), ["b"]);
    }
}
