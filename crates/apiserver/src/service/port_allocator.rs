//! Allocates node ports. One record in the store lists them, and is replaced only if it did not change, so that several
//! servers on one store never allocate a port twice.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use knarr_api::status::Status;
use knarr_store::{Entry, Error, Store};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::pending_releases::PendingReleases;
use super::port_set::PortSet;
use crate::behaviour::PortRange;
use crate::persist::store_error;

const KEY: &str = "/registry/ranges/servicenodeports";
/// How long a port without a Service is kept: its Service may be about to be written.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(2);

/// The allocator of node ports.
pub struct PortAllocator {
    store: Arc<dyn Store>,
    releases: PendingReleases,
    range: PortRange,
    /// Serializes the writers of this process: concurrent ones would only make each other retry.
    write_lock: tokio::sync::Mutex<()>,
    /// Allocated ports without a Service, and since when.
    unowned: Mutex<HashMap<u16, Timestamp>>,
}

/// The record of allocated ports.
struct Record {
    set: PortSet,
    /// 0 if there is no record yet.
    revision: u64,
}

impl PortAllocator {
    pub fn new(store: Arc<dyn Store>, releases: PendingReleases, range: PortRange) -> PortAllocator {
        PortAllocator { store, releases, range, write_lock: tokio::sync::Mutex::default(), unowned: Mutex::default() }
    }

    /// Allocates the ports that a Service needs and lacks, and returns them. `held` are those it has.
    pub async fn fill(&self, service: &mut Value, held: &[u16], dry_run: bool) -> Result<Vec<u16>, Status> {
        let mut is_newest = false;
        let _guard = self.write_lock.lock().await;
        loop {
            let Record { mut set, revision } = self.read()?;
            let (mut filled, mut allocated) = (service.clone(), Vec::new());
            match set.fill(&mut filled, held, &mut allocated) {
                // The record may be stale: the port may be free by now.
                Err(_) if !is_newest => {
                    self.releases.wait().await;
                    self.store.sync().await.map_err(store_error)?;
                    is_newest = true;
                }
                Err(status) => return Err(status),
                Ok(()) => {
                    if allocated.is_empty() || dry_run || self.write(&set, revision).await.map_err(store_error)? {
                        *service = filled;
                        return Ok(allocated);
                    }
                    self.store.sync().await.map_err(store_error)?;
                }
            }
        }
    }

    /// Releases ports in the background; until it is done they are not allocated again.
    pub fn release(self: &Arc<Self>, ports: Vec<u16>) {
        if ports.is_empty() {
            return;
        }
        let this = self.clone();
        self.releases.spawn(async move {
            if let Err(error) = this.remove(&ports).await {
                tracing::warn!(%error, ?ports, "cannot release node ports; the next repair will");
            }
        });
    }

    async fn remove(&self, ports: &[u16]) -> Result<(), Error> {
        loop {
            let Ok(Record { mut set, revision }) = self.read() else { return Ok(()) };
            let before = set.clone();
            ports.iter().for_each(|port| set.remove(*port));
            if set == before || self.write(&set, revision).await? {
                return Ok(());
            }
            self.store.sync().await?;
        }
    }

    /// Reconciles the record with the ports of stored Services. `services` reads them after the record, so that a concurrent
    /// allocation changes the record and makes this retry.
    pub async fn repair(&self, services: impl Fn() -> Vec<u16>, now: Timestamp) -> Result<(), Error> {
        loop {
            self.store.sync().await?;
            let entry = self.store.peek(KEY);
            let read =
                entry.as_deref().map_or_else(|| Some(PortSet::new(self.range)), |entry| decode(entry, self.range));
            let owned = services();
            let recorded = read.clone().unwrap_or_else(|| PortSet::new(self.range));
            let set = self.repaired(&recorded, &owned, now);
            let is_current = read.is_some_and(|read| read == set);
            if is_current || self.write(&set, entry.map_or(0, |entry| entry.revision)).await? {
                return Ok(());
            }
        }
    }

    /// All owned ports, and those that are unowned for less than the grace period.
    fn repaired(&self, recorded: &PortSet, owned: &[u16], now: Timestamp) -> PortSet {
        let mut set = PortSet::new(self.range);
        for port in owned {
            set.insert(*port);
        }
        let mut unowned = self.unowned.lock();
        let lost: Vec<u16> = recorded.iter().filter(|port| !set.contains(*port)).collect();
        unowned.retain(|port, _| lost.contains(port));
        for port in lost {
            let since = *unowned.entry(port).or_insert(now);
            if now.duration_since(since) < GRACE_PERIOD {
                set.insert(port);
            } else {
                tracing::info!(port, "released a node port without a service");
            }
        }
        set
    }

    fn read(&self) -> Result<Record, Status> {
        match self.store.peek(KEY) {
            None => Ok(Record { set: PortSet::new(self.range), revision: 0 }),
            Some(entry) => match decode(&entry, self.range) {
                Some(set) => Ok(Record { set, revision: entry.revision }),
                None => Err(Status::internal("the record of node ports cannot be read; it is about to be repaired")),
            },
        }
    }

    /// Replaces the record; false if it changed since it was read.
    async fn write(&self, set: &PortSet, revision: u64) -> Result<bool, Error> {
        let record = json!({
            "kind": "RangeAllocation", "apiVersion": "v1", "metadata": {}, "range": self.range.to_string(), "data": set.encode(),
        });
        let value = Bytes::from(record.to_string());
        let written = match revision {
            0 => self.store.create(KEY, value, None).await,
            revision => self.store.update(KEY, value, revision, None).await,
        };
        match written {
            Ok(_) => Ok(true),
            Err(Error::Exists(_) | Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn decode(entry: &Entry, range: PortRange) -> Option<PortSet> {
    let record: Value = serde_json::from_slice(&entry.value()).ok()?;
    // The record of a server with another port range is of no use.
    let is_same = record["range"] == range.to_string();
    is_same.then(|| PortSet::decode(record["data"].as_str().unwrap_or_default(), range))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_store::{Embedded, Options};

    fn service(port: Option<u16>) -> Value {
        json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": port.unwrap_or(0)}]}})
    }

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
    }

    fn open() -> (tempfile::TempDir, Arc<dyn Store>) {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        (directory, store)
    }

    fn ports(store: &Arc<dyn Store>) -> Arc<PortAllocator> {
        Arc::new(PortAllocator::new(store.clone(), PendingReleases::default(), PortRange::default()))
    }

    #[tokio::test]
    async fn two_servers_never_allocate_a_port_twice() {
        let (_directory, store) = open();
        let servers = [ports(&store), ports(&store)];
        let mut tasks = tokio::task::JoinSet::new();
        for turn in 0..200 {
            let ports = servers[turn % 2].clone();
            tasks.spawn(async move { ports.fill(&mut service(None), &[], false).await.unwrap() });
        }
        let mut ports: Vec<u16> = tasks.join_all().await.into_iter().flatten().collect();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), 200);
        let [first, second] = &servers;
        let free = (30_000..32_767).find(|port| !ports.contains(port)).unwrap();
        let (mut one, mut other) = (service(Some(free)), service(Some(free)));
        let (one, other) = tokio::join!(first.fill(&mut one, &[], false), second.fill(&mut other, &[], false));
        assert!(one.is_ok() != other.is_ok());
    }

    #[tokio::test]
    async fn released_ports_can_be_allocated_at_once() {
        let (_directory, store) = open();
        let ports = ports(&store);
        for _ in 0..50 {
            let allocated = ports.fill(&mut service(Some(30_100)), &[], false).await.unwrap();
            assert_eq!(allocated, [30_100]);
            ports.release(allocated);
        }
        ports.fill(&mut service(Some(30_100)), &[], true).await.unwrap();
        ports.fill(&mut service(Some(30_100)), &[], false).await.unwrap();
        assert!(ports.fill(&mut service(Some(30_100)), &[], true).await.is_err());
    }

    #[tokio::test]
    async fn the_record_is_repaired_from_the_services() {
        let (_directory, store) = open();
        let ports = ports(&store);
        let used = |ports: &PortAllocator| ports.read().unwrap().set.iter().collect::<Vec<_>>();
        ports.fill(&mut service(Some(30_001)), &[], false).await.unwrap();
        let mut minutes = 0;
        // The port of a Service is recorded at once; an unowned one stays for the grace period.
        for (owned, recorded) in [
            (vec![30_002], vec![30_001, 30_002]),
            (vec![30_002], vec![30_001, 30_002]),
            (vec![30_001, 30_002], vec![30_001, 30_002]),
            (vec![], vec![30_001, 30_002]),
            (vec![], vec![30_001, 30_002]),
            (vec![], vec![]),
        ] {
            ports.repair(|| owned.clone(), at(minutes)).await.unwrap();
            assert_eq!(used(&ports), recorded, "minute {minutes}");
            minutes += 1;
        }
        let entry = store.peek(KEY).unwrap();
        store.update(KEY, Bytes::from_static(b"damaged"), entry.revision, None).await.unwrap();
        assert!(ports.fill(&mut service(None), &[], false).await.is_err());
        ports.repair(|| vec![30_007], at(minutes)).await.unwrap();
        assert_eq!(used(&ports), [30_007]);
    }
}
