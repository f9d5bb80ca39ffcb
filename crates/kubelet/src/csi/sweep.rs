//! Unstages volumes that no pod uses any more.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::Csi;
use super::drivers::Drivers;
use super::state::{Condition, Progress, VolumeState};
use super::volume::VolumeId;
use crate::backoff::backoff;

struct Attempt {
    failures: u32,
    /// None while an attempt is in progress.
    next: Option<Instant>,
}

impl Csi {
    /// Runs for as long as the node does.
    pub async fn unstage_unused(self: Arc<Self>) {
        let mut attempts: HashMap<VolumeId, Attempt> = HashMap::new();
        let mut running = tokio::task::JoinSet::new();
        loop {
            let unused = self.unused_volumes();
            attempts.retain(|id, attempt| attempt.next.is_none() || unused.contains(id));
            let now = Instant::now();
            for id in unused {
                let attempt = attempts.entry(id.clone()).or_insert(Attempt { failures: 0, next: Some(now) });
                if attempt.next.is_some_and(|at| at <= now) {
                    attempt.next = None;
                    let csi = self.clone();
                    running.spawn(knarr_supervisor::inherit(async move {
                        let outcome = knarr_supervisor::caught(csi.unstage_if_unused(&id)).await;
                        (id, outcome)
                    }));
                }
            }
            let due = attempts.values().filter_map(|attempt| attempt.next).min();
            tokio::select! {
                () = self.unused.notified() => {
                    // A driver may be back.
                    attempts.values_mut().filter_map(|attempt| attempt.next.as_mut()).for_each(|at| *at = now);
                }
                () = tokio::time::sleep_until(due.unwrap_or(now)), if due.is_some() => {}
                Some(finished) = running.join_next() => {
                    let Ok((id, outcome)) = finished else { continue };
                    self.note(&mut attempts, id, outcome);
                }
            }
        }
    }

    fn note(&self, attempts: &mut HashMap<VolumeId, Attempt>, id: VolumeId, outcome: Result<(), String>) {
        let Err(error) = outcome else {
            attempts.remove(&id);
            return;
        };
        tracing::warn!(error, volume = id.unique_name(), "cannot unstage a volume");
        let Some(attempt) = attempts.get_mut(&id) else { return };
        attempt.failures += 1;
        attempt.next = Some(Instant::now() + backoff(attempt.failures));
    }

    fn unused_volumes(&self) -> Vec<VolumeId> {
        self.state.all().into_iter().filter(|(_, volume)| is_unused(volume)).map(|(id, _)| id).collect()
    }

    /// Unstages the volume unless a pod uses it again.
    pub(super) async fn unstage_if_unused(&self, id: &VolumeId) -> Result<(), String> {
        let _operation = self.state.lock(id).await;
        let Some(known) = self.state.get(id).filter(is_unused) else { return Ok(()) };
        let Some(driver) = self.drivers.get(&id.driver) else {
            return Err(format!(
                "UnmountDevice failed for volume \"{}\" : {}",
                known.spec_name,
                Drivers::missing(&id.driver)
            ));
        };
        let unstaged = self.unstage(&driver, id, &known).await;
        unstaged.map_err(|text| format!("UnmountDevice failed for volume \"{}\" : {text}", known.spec_name))?;
        self.state.forget(id);
        self.in_use_changed.notify_one();
        Ok(())
    }

    /// A driver is there, for the first time or again.
    pub(super) fn driver_registered(&self, name: &str) {
        self.state.wake(&Condition::Driver(name.to_string()));
        self.unused.notify_one();
    }
}

fn is_unused(volume: &VolumeState) -> bool {
    volume.users.is_empty() && volume.staged != Progress::Not
}
