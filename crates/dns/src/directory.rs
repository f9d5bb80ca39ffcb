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
    /// The Services that own an address: as their cluster IP, or as an endpoint. Sorted.
    owners: HashMap<IpAddr, Vec<Arc<Key>>>,
}

/// How many names of one address are given. Everybody may ask, and whoever writes Services decides how many have an address.
const MAX_OWNERS: usize = 1024;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The addresses of Services themselves come first.
    is_endpoint: bool,
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

    /// The owners of an address: its Service, or else every endpoint that has it, up to a limit.
    pub fn owners(&self, address: IpAddr) -> Vec<Owner> {
        let known = self.known.read();
        let mut found = Vec::new();
        for key in known.owners.get(&address).into_iter().flatten() {
            let Some(service) = known.services.get(&key.namespace).and_then(|all| all.get(&key.service)) else {
                continue;
            };
            let owner = |endpoint: Option<&str>| Owner {
                namespace: key.namespace.clone(),
                service: key.service.clone(),
                endpoint: endpoint.map(str::to_owned),
            };
            if !key.is_endpoint {
                return vec![owner(None)];
            }
            let first = service.endpoints.partition_point(|endpoint| endpoint.address < address);
            let own = service.endpoints[first..].iter().take_while(|endpoint| endpoint.address == address);
            let mut labels: Vec<&str> = own.take(MAX_OWNERS - found.len()).map(|endpoint| &*endpoint.label).collect();
            labels.dedup();
            found.extend(labels.into_iter().map(|label| owner(Some(label))));
            if found.len() >= MAX_OWNERS {
                break;
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
        let key = |is_endpoint| Key { is_endpoint, namespace: namespace.to_owned(), service: name.to_owned() };
        let keys = [Arc::new(key(false)), Arc::new(key(true))];
        for (address, is_endpoint) in old.iter().flat_map(|old| owned(old)) {
            if let Some(owners) = known.owners.get_mut(&address) {
                if let Ok(place) = owners.binary_search(&keys[usize::from(is_endpoint)]) {
                    owners.remove(place);
                }
                if owners.is_empty() {
                    known.owners.remove(&address);
                }
            }
        }
        match service {
            Some(service) => {
                for (address, is_endpoint) in owned(&service) {
                    let (owners, key) = (known.owners.entry(address).or_default(), &keys[usize::from(is_endpoint)]);
                    if let Err(place) = owners.binary_search(key) {
                        owners.insert(place, Arc::clone(key));
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

/// Addresses that resolve back to the name of a Service, and whether that of an endpoint.
fn owned(service: &Service) -> impl Iterator<Item = (IpAddr, bool)> {
    let own = match &service.kind {
        Kind::Addresses(addresses) => addresses.as_slice(),
        Kind::Headless | Kind::External(_) => &[],
    };
    let own = own.iter().map(|address| (*address, false));
    own.chain(service.endpoints.iter().map(|endpoint| (endpoint.address, true)))
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

    /// Everybody may ask for the names of an address, and each query would hold up all others.
    #[test]
    fn names_of_an_address_are_found_without_a_search_through_services() {
        let directory = Directory::default();
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0af4_0000 + number));
        let endpoint = |number: u32, label: String| Endpoint { label, address: address(number), ports: Arc::from([]) };
        let headless = |endpoints| Some(Service { kind: Kind::Headless, ports: vec![], endpoints });
        directory.set("n", "large", headless((0..100_000).map(|number| endpoint(number, "e".into())).collect()));
        for number in 0..5_000 {
            directory.set("n", &format!("s{number}"), headless(vec![endpoint(1, "e".into())]));
        }
        let labels = (0..20_000).map(|number| endpoint(2, format!("e{number:05}"))).collect();
        directory.set("n", "labels", headless(labels));
        let started = std::time::Instant::now();
        assert_eq!(directory.owners(address(1)).len(), MAX_OWNERS);
        assert_eq!(directory.owners(address(2)).len(), MAX_OWNERS);
        for number in 3..20_003 {
            assert_eq!(directory.owners(address(number)).len(), 1);
        }
        // A search through the endpoints takes half a minute.
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
