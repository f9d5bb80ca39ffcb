//! The usage and health of volumes, as their drivers measure them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_csi::messages::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, UsageUnit};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Csi;
use super::mount::{Mount, Note};
use super::paths::ESCAPED_PLUGIN;
use super::state::{Progress, VolumeState};
use super::volume::VolumeId;
use crate::filesystem::FilesystemUsage;

/// Measuring may be costly for a driver, so a measurement is used for this long.
const MAX_AGE: Duration = Duration::from_secs(60);
/// A driver that needs longer is asked again for the next page.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    pub capacity: u64,
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
    /// Whether the volume is unhealthy, if the driver says so.
    pub abnormal: Option<bool>,
    /// What the driver says about its health.
    pub condition: String,
    pub is_block: bool,
}

impl From<FilesystemUsage> for VolumeStats {
    fn from(usage: FilesystemUsage) -> Self {
        Self {
            capacity: usage.capacity,
            available: usage.available,
            used: usage.capacity.saturating_sub(usage.available),
            inodes: usage.inodes,
            inodes_free: usage.inodes_free,
            inodes_used: usage.inodes.saturating_sub(usage.inodes_free),
            ..Default::default()
        }
    }
}

/// The last measurements by the path at which a pod has the volume.
#[derive(Default)]
pub struct Cache(Mutex<HashMap<PathBuf, (Instant, Option<VolumeStats>)>>);

impl Csi {
    /// Whether a volume that is mounted at this path is a CSI volume.
    pub fn is_own(&self, path: &Path) -> bool {
        path.starts_with(self.paths.plugin()) || path.components().any(|part| part.as_os_str() == ESCAPED_PLUGIN)
    }

    /// The measurements of a pod's CSI volumes, by the path at which the pod has them. Volumes whose driver does not
    /// measure are left out.
    pub async fn stats_of(&self, uid: &str) -> HashMap<PathBuf, VolumeStats> {
        let volumes = self.state.volumes_of(uid);
        let measures = volumes.iter().filter_map(|id| {
            let known = self.state.get(id)?;
            (known.users.get(uid) == Some(&Progress::Done)).then(|| self.measure(id, known, uid))
        });
        let found = futures::future::join_all(measures).await;
        found.into_iter().filter_map(|(path, stats)| Some((path, stats?))).collect()
    }

    /// Reports a volume that its driver calls unhealthy.
    pub(super) async fn health(&self, mount: &Mount<'_>) -> Option<Note> {
        let id = &mount.volume.id;
        let (_, stats) = self.measure(id, self.state.get(id)?, mount.uid()).await;
        let stats = stats.filter(|stats| stats.abnormal == Some(true))?;
        let message = format!("Volume {}: {}", mount.request.name, stats.condition);
        Some(Note { warning: true, reason: "VolumeConditionAbnormal", message, on_claim: false })
    }

    async fn measure(&self, id: &VolumeId, known: VolumeState, uid: &str) -> (PathBuf, Option<VolumeStats>) {
        let path = match known.block {
            true => self.paths.device_publish(known.name_for(uid), uid),
            false => self.paths.publish(uid, known.name_for(uid)),
        };
        let now = Instant::now();
        let fresh = self.stats.0.lock().get(&path).filter(|(at, _)| now.duration_since(*at) < MAX_AGE).cloned();
        if let Some((_, stats)) = fresh {
            return (path, stats);
        }
        let started = std::time::Instant::now();
        let stats = match tokio::time::timeout(TIMEOUT, self.ask(id, &known, &path)).await {
            Ok(Ok(stats)) => stats,
            Ok(Err(error)) => {
                tracing::debug!(error, volume = id.unique_name(), "cannot measure a volume");
                None
            }
            Err(_) => None,
        };
        let (name, source) = ("kubelet_volume_metric_collection_duration_seconds", format!("csi-{}", id.driver));
        self.metrics.observe(name, &[("metric_source", source.as_str())], started.elapsed());
        let mut cache = self.stats.0.lock();
        cache.retain(|_, (at, _)| now.duration_since(*at) < MAX_AGE);
        cache.insert(path.clone(), (now, stats.clone()));
        (path, stats)
    }

    async fn ask(&self, id: &VolumeId, known: &VolumeState, path: &Path) -> Result<Option<VolumeStats>, String> {
        let Some(driver) = self.drivers.get(&id.driver) else { return Ok(None) };
        let capabilities = driver.capabilities().await.map_err(|error| error.to_string())?;
        if !capabilities.measures() {
            return Ok(None);
        }
        let staging = (known.persistent && capabilities.stages())
            .then(|| self.stage_path(id, &known.spec_name, known.block).to_string_lossy().into_owned());
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.handle.clone(),
            volume_path: path.to_string_lossy().into_owned(),
            staging_target_path: staging.unwrap_or_default(),
        };
        let response = driver.client.node_get_volume_stats(request).await.map_err(|error| error.to_string())?;
        Ok(read(&response, capabilities.reports_condition(), known.block))
    }
}

fn read(response: &NodeGetVolumeStatsResponse, reports_condition: bool, is_block: bool) -> Option<VolumeStats> {
    if response.usage.is_empty() && !reports_condition {
        return None;
    }
    let mut stats = VolumeStats { is_block, ..Default::default() };
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    for usage in &response.usage {
        match usage.unit() {
            UsageUnit::Bytes => {
                stats.capacity = number(usage.total);
                stats.available = number(usage.available);
                stats.used = number(usage.used);
            }
            UsageUnit::Inodes => {
                stats.inodes = number(usage.total);
                stats.inodes_free = number(usage.available);
                stats.inodes_used = number(usage.used);
            }
            UsageUnit::Unknown => {}
        }
    }
    if reports_condition {
        let condition = response.volume_condition.clone().unwrap_or_default();
        (stats.abnormal, stats.condition) = (Some(condition.abnormal), condition.message);
    }
    Some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_csi::messages::{VolumeCondition, VolumeUsage};

    #[test]
    fn usage_is_read_by_its_unit() {
        let usage = |unit: UsageUnit, total| VolumeUsage { available: 1, total, used: -1, unit: unit as i32 };
        let response = NodeGetVolumeStatsResponse {
            usage: vec![usage(UsageUnit::Bytes, 10), usage(UsageUnit::Inodes, 20)],
            volume_condition: Some(VolumeCondition { abnormal: true, message: "broken".into() }),
        };
        let stats = read(&response, false, false).expect("measured");
        assert_eq!((stats.capacity, stats.inodes, stats.used, stats.abnormal), (10, 20, 0, None));
        assert_eq!(read(&response, true, false).and_then(|stats| stats.abnormal), Some(true));
        assert_eq!(read(&NodeGetVolumeStatsResponse::default(), false, false), None);
    }
}
