//! Prepares the claims of a pod before its sandbox is created.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;

use super::Dra;
use super::drivers::Plugin;
use super::messages::{Claim, ClaimsRequest, PreparedClaim};
use super::pod_claims::{of_pod, refusal};
use super::record::{PreparedDevice, Record, key};
use crate::api_text::api_text;
use crate::pod;

impl Dra {
    /// Prepares all claims of the pod. Call it again until it succeeds. When it has failed, something may be prepared:
    /// [`Dra::unprepare`] undoes that.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let prepared = self.prepare_claims(pod).await;
        prepared.map_err(|error| format!("prepare dynamic resources: {error}"))
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), String> {
        let claims = self.read_claims(pod).await?;
        if claims.is_empty() {
            return Ok(());
        }
        let mut plugins: BTreeMap<String, Plugin> = BTreeMap::new();
        for record in &claims {
            for driver in record.drivers.keys() {
                plugins.insert(driver.clone(), self.drivers.get(driver)?);
            }
        }
        let keys: BTreeSet<String> = claims.iter().map(|record| key(&record.namespace, &record.name)).collect();
        let _operation = self.lock(&keys).await;
        let unprepared = self.record_use(pod, claims)?;
        for (driver, plugin) in &plugins {
            let own: Vec<&Record> = unprepared.iter().filter(|record| record.drivers.contains_key(driver)).collect();
            if !own.is_empty() {
                self.prepare_with(driver, plugin, &own).await?;
            }
        }
        self.update(|records| {
            for record in &unprepared {
                if let Some(known) = records.get_mut(&key(&record.namespace, &record.name)) {
                    known.is_prepared = true;
                }
            }
        })
    }

    /// The pod's claims as records without devices.
    async fn read_claims(&self, pod: &Pod) -> Result<Vec<Record>, String> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), pod::namespace(pod));
        let mut records = Vec::new();
        for entry in of_pod(pod)? {
            let name = &entry.name;
            let claim =
                api.get(name).await.map_err(|error| format!("fetch ResourceClaim {name}: {}", api_text(&error)))?;
            if let Some(refusal) = refusal(pod, &entry, &claim) {
                return Err(refusal);
            }
            let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
            let Some(allocation) = allocation else {
                return Err(format!("ResourceClaim {name}: not allocated"));
            };
            let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
            records.push(Record {
                namespace: pod::namespace(pod).to_owned(),
                name: entry.name,
                uid: claim.metadata.uid.clone().unwrap_or_default(),
                pods: BTreeSet::from([pod::uid(pod).to_owned()]),
                is_prepared: false,
                drivers: results.map(|result| (result.driver.clone(), Vec::new())).collect(),
            });
        }
        Ok(records)
    }

    /// Records that the pod uses the claims, before any driver is called. Returns those that are to be prepared.
    fn record_use(&self, pod: &Pod, claims: Vec<Record>) -> Result<Vec<Record>, String> {
        self.update(|records| {
            let mut unprepared = Vec::new();
            for claim in claims {
                let key = key(&claim.namespace, &claim.name);
                if let Some(other) = records.get(&key).filter(|known| known.uid != claim.uid) {
                    let (name, uid) = (&claim.name, &other.uid);
                    return Err(format!(
                        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod \
                         force-deleted?!)"
                    ));
                }
                let known = records.entry(key).or_insert(claim);
                known.pods.insert(pod::uid(pod).to_owned());
                if !known.is_prepared {
                    unprepared.push(known.clone());
                }
            }
            Ok(unprepared)
        })?
    }

    async fn prepare_with(&self, driver: &str, plugin: &Plugin, claims: &[&Record]) -> Result<(), String> {
        let request = ClaimsRequest { claims: claims.iter().map(|record| message(record)).collect() };
        let response = plugin.prepare(request).await;
        let response = response.map_err(|error| format!("NodePrepareResources: {}", error.rpc_message()))?;
        for (uid, result) in &response.claims {
            let Some(claim) = claims.iter().find(|claim| claim.uid == *uid) else {
                return Err(format!("NodePrepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let name = &claim.name;
                return Err(format!("NodePrepareResources failed for ResourceClaim {name}: {}", result.error));
            }
            self.update(|records| {
                if let Some(known) = records.get_mut(&key(&claim.namespace, &claim.name)) {
                    known.drivers.insert(driver.to_owned(), devices(result));
                }
            })?;
        }
        match claims.len() - response.claims.len() {
            0 => Ok(()),
            skipped => Err(format!("NodePrepareResources skipped {skipped} ResourceClaims")),
        }
    }
}

pub(super) fn message(record: &Record) -> Claim {
    Claim { namespace: record.namespace.clone(), uid: record.uid.clone(), name: record.name.clone() }
}

fn devices(result: &PreparedClaim) -> Vec<PreparedDevice> {
    let devices = result.devices.iter().map(|device| PreparedDevice {
        pool: device.pool_name.clone(),
        device: device.device_name.clone(),
        share: device.share_id.clone(),
        requests: device.request_names.clone(),
        cdi_devices: device.cdi_device_ids.clone(),
    });
    devices.collect()
}
