//! Devices of resource claims, through DRA drivers.
//!
//! The scheduler allocates devices to a claim; before a pod starts, their drivers prepare them on this node and name
//! the CDI devices that the pod's containers get. What may have been prepared is recorded on disk before a driver is
//! called, so that it can be unprepared whatever happens: after a failed or lost call, after a restart, and for pods
//! that are gone. At most one operation per claim is in progress.
//!
//! Start reading at [`Dra::prepare`] in `prepare.rs`.

mod drivers;
mod health;
mod messages;
mod pod_claims;
mod prepare;
mod record;
mod slices;
mod unprepare;

#[cfg(test)]
mod fake_driver;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::objects;
use drivers::Drivers;
use health::Health;
use record::{Checkpoint, Records};

/// How long a driver may take for a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a driver that is gone may take to come back before its ResourceSlices are deleted.
const SLICE_GRACE: Duration = Duration::from_secs(30);

/// The resource claims of this node's pods.
pub struct Dra {
    client: kube::Client,
    node_name: String,
    drivers: Drivers,
    records: Mutex<Records>,
    checkpoint: Checkpoint,
    /// Claims with an operation in progress.
    operations: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Called when a driver registers: pods may be waiting to be cleaned up.
    waiting: Mutex<Vec<objects::Notify>>,
    drivers_changed: Notify,
    health: Health,
    health_changed: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    call_timeout: Duration,
    slice_grace: Duration,
}

impl Dra {
    /// Reads what a previous process has prepared. An unreadable record is an error: its devices could never be
    /// unprepared.
    pub fn open(client: kube::Client, node_name: &str, root: &Path) -> io::Result<Arc<Self>> {
        Self::with_timeouts(client, node_name, root, CALL_TIMEOUT, SLICE_GRACE)
    }

    fn with_timeouts(
        client: kube::Client,
        node_name: &str,
        root: &Path,
        call_timeout: Duration,
        slice_grace: Duration,
    ) -> io::Result<Arc<Self>> {
        let checkpoint = Checkpoint::new(root);
        let records = checkpoint.load()?;
        Ok(Arc::new(Dra {
            client,
            node_name: node_name.to_owned(),
            drivers: Drivers::default(),
            records: Mutex::new(records),
            checkpoint,
            operations: Mutex::default(),
            waiting: Mutex::default(),
            drivers_changed: Notify::new(),
            health: Health::default(),
            health_changed: Mutex::default(),
            call_timeout,
            slice_grace,
        }))
    }

    /// The pods for which something is or may be prepared.
    pub fn pods(&self) -> BTreeSet<String> {
        self.records.lock().values().flat_map(|record| record.pods.iter().cloned()).collect()
    }

    /// The CDI devices of a container; the pod's claims must be prepared.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let namespace = crate::pod::namespace(pod);
        let records = self.records.lock();
        let mut devices = Vec::new();
        for (claim, requests) in pod_claims::of_container(pod, container)? {
            let record = records.get(&record::key(namespace, &claim)).ok_or_else(|| {
                format!("internal error: unable to get claim info for ResourceClaim {claim} in namespace {namespace}")
            })?;
            for request in requests {
                devices.extend(record.cdi_devices(request.as_deref()));
            }
        }
        Ok(devices)
    }

    /// Changes the records, on disk first: what a driver is asked for must be known to the next process.
    fn update<T>(&self, change: impl FnOnce(&mut Records) -> T) -> Result<T, String> {
        let mut records = self.records.lock();
        let mut changed = records.clone();
        let result = change(&mut changed);
        if changed != *records {
            self.checkpoint.save(&changed).map_err(|error| format!("checkpoint ResourceClaim cache: {error}"))?;
            *records = changed;
        }
        Ok(result)
    }

    /// Waits until no other operation on these claims is in progress. The order of locks is that of the keys.
    async fn lock(&self, keys: &BTreeSet<String>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::new();
        for key in keys {
            let lock = {
                let mut operations = self.operations.lock();
                // Locks that nobody holds or waits for are forgotten.
                operations.retain(|_, lock| Arc::strong_count(lock) > 1);
                operations.entry(key.clone()).or_default().clone()
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }
}
