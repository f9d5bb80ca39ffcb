//! Unprepares the claims of a pod whose containers have terminated.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Dra;
use super::messages::ClaimsRequest;
use super::prepare::message;
use super::record::Record;
use crate::objects::Notify;

impl Dra {
    /// Unprepares all claims that no other pod uses, whether they were prepared completely or not. Call it again until
    /// it succeeds; `notify` is called when a driver registers.
    pub async fn unprepare(&self, uid: &str, notify: Option<Notify>) -> Result<(), String> {
        let used = |record: &Record| record.pods.contains(uid);
        let keys: BTreeSet<String> =
            self.records.lock().iter().filter(|(_, record)| used(record)).map(|(key, _)| key.clone()).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let _operation = self.lock(&keys).await;
        let mut failures = Vec::new();
        for key in &keys {
            if let Err(error) = self.unprepare_claim(key, uid, notify.as_ref()).await {
                failures.push(error);
            }
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(format!("unprepare dynamic resources: {}", failures.join("; "))),
        }
    }

    async fn unprepare_claim(&self, key: &str, uid: &str, notify: Option<&Notify>) -> Result<(), String> {
        let Some(record) = self.records.lock().get(key).cloned() else { return Ok(()) };
        if record.pods.iter().all(|user| user == uid) {
            for driver in record.drivers.keys() {
                self.unprepare_with(driver, &record, notify).await?;
            }
            return self.update(|records| drop(records.remove(key)));
        }
        self.update(|records| {
            if let Some(known) = records.get_mut(key) {
                known.pods.remove(uid);
            }
        })
    }

    async fn unprepare_with(&self, driver: &str, record: &Record, notify: Option<&Notify>) -> Result<(), String> {
        let plugin = self.drivers.get(driver).inspect_err(|_| self.wait_for_driver(notify))?;
        let response = plugin.unprepare(ClaimsRequest { claims: vec![message(record)] }).await;
        let response = response.map_err(|error| format!("NodeUnprepareResources: {}", error.rpc_message()))?;
        if let Some(other) = response.claims.keys().find(|claim| **claim != record.uid) {
            return Err(format!("NodeUnprepareResources returned result for unknown claim UID {other}"));
        }
        match response.claims.get(&record.uid) {
            None => Err("NodeUnprepareResources skipped 1 ResourceClaims".to_owned()),
            Some(result) if !result.error.is_empty() => {
                let name = &record.name;
                Err(format!("NodeUnprepareResources failed for ResourceClaim {name}: {}", result.error))
            }
            Some(_) => Ok(()),
        }
    }

    /// Calls `notify` once when a driver registers. A pod whose driver is gone for good tries again for ever.
    fn wait_for_driver(&self, notify: Option<&Notify>) {
        let mut waiting = self.waiting.lock();
        if let Some(notify) = notify.filter(|notify| !waiting.iter().any(|known| Arc::ptr_eq(known, notify))) {
            waiting.push(notify.clone());
        }
    }
}
