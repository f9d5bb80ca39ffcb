//! Address leases: one file per attachment, under a lock that all CNI calls of this node take.
//!
//! A lease lives as long as the pod's network namespace. Namespaces do not survive a reboot, so leases record the boot ID,
//! and those of earlier boots are ignored.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::request::{PodName, PortMapping};
use crate::cidr::Cidr;
use crate::namespace;

/// Why a lease cannot be read, written or assigned.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("cannot access the leases in {0}")]
    Directory(PathBuf, #[source] std::io::Error),
    #[error("cannot lock the leases")]
    Lock(#[source] std::io::Error),
    #[error("no address is free in {0}")]
    Exhausted(Cidr),
}

/// The lease of one attachment of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub container: String,
    pub interface: String,
    pub namespace: PathBuf,
    pub addresses: Vec<IpAddr>,
    /// The interface at the host's end.
    pub host_interface: String,
    #[serde(default)]
    pub ports: Vec<PortMapping>,
    #[serde(default)]
    pub pod: Option<PodName>,
    boot: String,
}

/// The leases of a network, locked until dropped.
pub struct Leases {
    directory: PathBuf,
    boot: String,
    _lock: Flock<File>,
}

impl Leases {
    pub fn open(data_directory: &Path, network: &str) -> Result<Self, LeaseError> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::open_at_boot(data_directory, network, boot.trim())
    }

    fn open_at_boot(data_directory: &Path, network: &str, boot: &str) -> Result<Self, LeaseError> {
        let directory = data_directory.join("leases").join(network);
        let unusable = |error| LeaseError::Directory(directory.clone(), error);
        fs::create_dir_all(&directory).map_err(unusable)?;
        let lock = File::create(directory.join("lock")).map_err(unusable)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| LeaseError::Lock(error.into()))?;
        Ok(Self { directory, boot: boot.to_owned(), _lock: lock })
    }

    pub fn find(&self, container: &str, interface: &str) -> Result<Option<Lease>, LeaseError> {
        let path = self.path(container, interface);
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LeaseError::Directory(path, error)),
        }
    }

    pub fn all(&self) -> Result<Vec<Lease>, LeaseError> {
        let unusable = |error| LeaseError::Directory(self.directory.clone(), error);
        let mut leases = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(unusable)? {
            let path = entry.map_err(unusable)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let bytes = fs::read(&path).map_err(unusable)?;
            match serde_json::from_slice(&bytes) {
                Ok(lease) => leases.push(lease),
                // Leases are written atomically; an unreadable file was not written here and holds no address.
                Err(_) => fs::remove_file(&path).map_err(unusable)?,
            }
        }
        Ok(leases)
    }

    /// Acquires one free address of each network, for a live namespace.
    pub fn acquire(&self, new: NewLease<'_>, networks: &[Cidr]) -> Result<Lease, LeaseError> {
        let held: Vec<Lease> = self.all()?;
        let (living, dead): (Vec<Lease>, Vec<Lease>) =
            held.into_iter().partition(|lease| lease.boot == self.boot && namespace::is_alive(&lease.namespace));
        for lease in &dead {
            self.release(&lease.container, &lease.interface)?;
        }
        let used: HashSet<IpAddr> = living.iter().flat_map(|lease| lease.addresses.iter().copied()).collect();
        let mut addresses = Vec::new();
        for network in networks {
            let after = self.last(network);
            let address = next_free(network, after, &used).ok_or(LeaseError::Exhausted(*network))?;
            self.remember_last(network, address)?;
            addresses.push(address);
        }
        let lease = Lease {
            container: new.container.to_owned(),
            interface: new.interface.to_owned(),
            namespace: new.namespace.to_owned(),
            addresses,
            host_interface: new.host_interface.to_owned(),
            ports: new.ports.to_vec(),
            pod: new.pod.cloned(),
            boot: self.boot.clone(),
        };
        let bytes = serde_json::to_vec(&lease).unwrap_or_default();
        self.write(&self.path(&lease.container, &lease.interface), &bytes)?;
        Ok(lease)
    }

    pub fn release(&self, container: &str, interface: &str) -> Result<(), LeaseError> {
        let path = self.path(container, interface);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LeaseError::Directory(path, error)),
            _ => Ok(()),
        }
    }

    fn path(&self, container: &str, interface: &str) -> PathBuf {
        self.directory.join(format!("{container}@{interface}.json"))
    }

    fn last_path(&self, network: &Cidr) -> PathBuf {
        self.directory.join(format!("last-{}", if network.is_ipv4() { "4" } else { "6" }))
    }

    /// The index of the last assigned address, after which the search starts: addresses are not reused at once.
    fn last(&self, network: &Cidr) -> u64 {
        let text = fs::read_to_string(self.last_path(network)).unwrap_or_default();
        text.trim().parse().ok().and_then(|address| network.index_of(address)).unwrap_or(0)
    }

    fn remember_last(&self, network: &Cidr, address: IpAddr) -> Result<(), LeaseError> {
        self.write(&self.last_path(network), address.to_string().as_bytes())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), LeaseError> {
        let temporary = path.with_extension("new");
        let unusable = |error| LeaseError::Directory(path.to_owned(), error);
        let mut file = File::create(&temporary).map_err(unusable)?;
        file.write_all(bytes).map_err(unusable)?;
        fs::rename(&temporary, path).map_err(unusable)
    }
}

/// Arguments of [`Leases::acquire`].
pub struct NewLease<'a> {
    pub container: &'a str,
    pub interface: &'a str,
    pub namespace: &'a Path,
    pub host_interface: &'a str,
    pub ports: &'a [PortMapping],
    pub pod: Option<&'a PodName>,
}

/// The gateway: the first address after the network address.
pub fn gateway(network: &Cidr) -> Option<IpAddr> {
    network.nth(1)
}

/// The next free address after the index `after`; the network, gateway and broadcast addresses are never assigned.
fn next_free(network: &Cidr, after: u64, used: &HashSet<IpAddr>) -> Option<IpAddr> {
    let end = if network.is_ipv4() { network.size().checked_sub(1)? } else { network.size() };
    let first = 2;
    if end <= first {
        return None;
    }
    let start = if after + 1 >= end || after < first { first } else { after + 1 };
    let free = |index: &u64| network.nth(*index).is_some_and(|address| !used.contains(&address));
    (start..end).find(free).or_else(|| (first..start).find(free)).and_then(|index| network.nth(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("knarr-leases-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn new_lease(container: &str) -> NewLease<'_> {
        // Our own namespace lives as long as the test.
        NewLease {
            container,
            interface: "eth0",
            namespace: Path::new("/proc/self/ns/net"),
            host_interface: "h",
            ports: &[],
            pod: None,
        }
    }

    #[test]
    fn the_next_free_address_is_found() {
        let network: Cidr = "10.0.0.0/29".parse().unwrap();
        let used = |last: &[u8]| -> HashSet<IpAddr> { last.iter().map(|last| [10, 0, 0, *last].into()).collect() };
        for (after, held, expected) in [
            (0, used(&[]), Some(2)),
            (2, used(&[2]), Some(3)),
            (6, used(&[2]), Some(3)),
            (4, used(&[5, 6]), Some(2)),
            (0, used(&[2, 3, 4, 5, 6]), None),
        ] {
            assert_eq!(next_free(&network, after, &held), expected.map(|last| [10, 0, 0, last].into()));
        }
    }

    #[test]
    fn addresses_are_given_once_and_come_back() {
        let directory = directory("once");
        let networks = ["10.0.0.0/29".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let leases = Leases::open_at_boot(&directory, "n", "boot").unwrap();
        let given: Vec<Lease> =
            (0..5).map(|i| leases.acquire(new_lease(&format!("c{i}")), &networks).unwrap()).collect();
        let distinct: HashSet<IpAddr> = given.iter().flat_map(|lease| lease.addresses.clone()).collect();
        assert_eq!(distinct.len(), 10);
        assert!(matches!(leases.acquire(new_lease("more"), &networks), Err(LeaseError::Exhausted(_))));
        leases.release("c3", "eth0").unwrap();
        leases.release("c3", "eth0").unwrap();
        assert_eq!(leases.acquire(new_lease("more"), &networks).unwrap().addresses[0], given[3].addresses[0]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn leases_of_an_earlier_boot_are_ignored() {
        let directory = directory("boot");
        let networks = ["10.0.0.0/29".parse().unwrap()];
        let leases = Leases::open_at_boot(&directory, "n", "one").unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            leases.acquire(new_lease(name), &networks).unwrap();
        }
        drop(leases);
        let leases = Leases::open_at_boot(&directory, "n", "two").unwrap();
        leases.acquire(new_lease("f"), &networks).unwrap();
        assert_eq!(leases.all().unwrap().len(), 1);
        fs::remove_dir_all(directory).unwrap();
    }
}
