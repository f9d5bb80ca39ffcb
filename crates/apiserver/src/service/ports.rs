//! Node ports: one record in the store says which are in use, and is replaced only as it was read, so that several servers on
//! one store never give out a port twice.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use knarr_api::status::Status;
use knarr_store::{Entry, Error, Store};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::port_set::PortSet;
use super::releases::Releases;
use crate::persist::store_error;

const KEY: &str = "/registry/ranges/servicenodeports";
/// A port that no Service has may belong to one that is just being written, and is left alone for this long.
const GRACE: SignedDuration = SignedDuration::from_mins(2);

pub struct Ports {
    store: Arc<dyn Store>,
    releases: Releases,
    /// One writer of this process at a time: they would only make each other try again.
    turn: tokio::sync::Mutex<()>,
    /// Ports in use by no Service, and since when they are known to be.
    unowned: Mutex<HashMap<u16, Timestamp>>,
}

/// The record as it was read.
struct Read {
    set: PortSet,
    /// 0 when there is none yet.
    revision: u64,
}

impl Ports {
    pub fn new(store: Arc<dyn Store>, releases: Releases) -> Ports {
        Ports { store, releases, turn: tokio::sync::Mutex::default(), unowned: Mutex::default() }
    }

    /// Gives a Service the ports it needs and does not have, and tells which they are. `held` are those it has already.
    pub async fn fill(&self, service: &mut Value, held: &[u16], dry_run: bool) -> Result<Vec<u16>, Status> {
        let mut is_newest = false;
        let _turn = self.turn.lock().await;
        loop {
            let Read { mut set, revision } = self.read()?;
            let (mut filled, mut taken) = (service.clone(), Vec::new());
            match set.fill(&mut filled, held, &mut taken) {
                // What is refused by an old record may be free by now.
                Err(_) if !is_newest => {
                    self.releases.settled().await;
                    self.store.sync().await.map_err(store_error)?;
                    is_newest = true;
                }
                Err(status) => return Err(status),
                Ok(()) => {
                    if taken.is_empty() || dry_run || self.write(&set, revision).await.map_err(store_error)? {
                        *service = filled;
                        return Ok(taken);
                    }
                    self.store.sync().await.map_err(store_error)?;
                }
            }
        }
    }

    /// Gives ports back. Nobody waits for it: until it is done the ports are merely not given out.
    pub fn release(self: &Arc<Self>, ports: Vec<u16>) {
        if ports.is_empty() {
            return;
        }
        let this = self.clone();
        self.releases.spawn(async move {
            if let Err(error) = this.remove(&ports).await {
                tracing::warn!(%error, ?ports, "cannot release node ports; the next repair does");
            }
        });
    }

    async fn remove(&self, ports: &[u16]) -> Result<(), Error> {
        loop {
            let Ok(Read { mut set, revision }) = self.read() else { return Ok(()) };
            let before = set.clone();
            ports.iter().for_each(|port| set.remove(*port));
            if set == before || self.write(&set, revision).await? {
                return Ok(());
            }
            self.store.sync().await?;
        }
    }

    /// Makes the record agree with the ports that stored Services have. `services` reads them after the record was read,
    /// so that whatever is given out meanwhile changes the record and makes this try again.
    pub async fn repair(&self, services: impl Fn() -> Vec<u16>, now: Timestamp) -> Result<(), Error> {
        loop {
            self.store.sync().await?;
            let entry = self.store.peek(KEY);
            let read = entry.as_deref().map_or_else(|| Some(PortSet::default()), decode);
            let owned = services();
            let recorded = read.clone().unwrap_or_default();
            let set = self.mended(&recorded, &owned, now);
            let is_right = read.is_some_and(|read| read == set);
            if is_right || self.write(&set, entry.map_or(0, |entry| entry.revision)).await? {
                return Ok(());
            }
        }
    }

    /// All ports that are owned, and those that have been unowned only for a while.
    fn mended(&self, recorded: &PortSet, owned: &[u16], now: Timestamp) -> PortSet {
        let mut set = PortSet::default();
        for port in owned {
            set.insert(*port);
        }
        let mut unowned = self.unowned.lock();
        let lost: Vec<u16> = recorded.iter().filter(|port| !set.contains(*port)).collect();
        unowned.retain(|port, _| lost.contains(port));
        for port in lost {
            let since = *unowned.entry(port).or_insert(now);
            if now.duration_since(since) < GRACE {
                set.insert(port);
            } else {
                tracing::info!(port, "a node port that no service has is free again");
            }
        }
        set
    }

    fn read(&self) -> Result<Read, Status> {
        match self.store.peek(KEY) {
            None => Ok(Read { set: PortSet::default(), revision: 0 }),
            Some(entry) => match decode(&entry) {
                Some(set) => Ok(Read { set, revision: entry.revision }),
                None => Err(Status::internal("the record of node ports cannot be read; it is about to be repaired")),
            },
        }
    }

    /// Replaces the record that was read; false when it is another by now.
    async fn write(&self, set: &PortSet, revision: u64) -> Result<bool, Error> {
        let record = json!({
            "kind": "RangeAllocation", "apiVersion": "v1", "metadata": {}, "range": PortSet::range(), "data": set.encode(),
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

fn decode(entry: &Entry) -> Option<PortSet> {
    let record: Value = serde_json::from_slice(&entry.value).ok()?;
    // Another server may serve other ports; then the record says nothing about ours.
    (record["range"] == PortSet::range()).then(|| PortSet::decode(record["data"].as_str().unwrap_or_default()))?
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

    fn ports(store: &Arc<dyn Store>) -> Arc<Ports> {
        Arc::new(Ports::new(store.clone(), Releases::default()))
    }

    #[tokio::test]
    async fn two_servers_never_give_out_one_port_twice() {
        let (_directory, store) = open();
        let servers = [ports(&store), ports(&store)];
        let mut tasks = tokio::task::JoinSet::new();
        for turn in 0..200 {
            let ports = servers[turn % 2].clone();
            tasks.spawn(async move { ports.fill(&mut service(None), &[], false).await.unwrap() });
        }
        let mut given: Vec<u16> = tasks.join_all().await.into_iter().flatten().collect();
        given.sort();
        given.dedup();
        assert_eq!(given.len(), 200);
        let [first, second] = &servers;
        let free = (30_000..32_767).find(|port| !given.contains(port)).unwrap();
        let (mut one, mut other) = (service(Some(free)), service(Some(free)));
        let (one, other) = tokio::join!(first.fill(&mut one, &[], false), second.fill(&mut other, &[], false));
        assert!(one.is_ok() != other.is_ok());
    }

    #[tokio::test]
    async fn what_was_given_back_can_be_asked_for_at_once() {
        let (_directory, store) = open();
        let ports = ports(&store);
        for _ in 0..50 {
            let taken = ports.fill(&mut service(Some(30_100)), &[], false).await.unwrap();
            assert_eq!(taken, [30_100]);
            ports.release(taken);
        }
        ports.fill(&mut service(Some(30_100)), &[], true).await.unwrap();
        ports.fill(&mut service(Some(30_100)), &[], false).await.unwrap();
        assert!(ports.fill(&mut service(Some(30_100)), &[], true).await.is_err());
    }

    #[tokio::test]
    async fn the_record_is_repaired_from_the_services() {
        let (_directory, store) = open();
        let ports = ports(&store);
        let used = |ports: &Ports| ports.read().unwrap().set.iter().collect::<Vec<_>>();
        ports.fill(&mut service(Some(30_001)), &[], false).await.unwrap();
        let mut minutes = 0;
        // A port that a Service has is recorded at once; one that none has stays for a while.
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
