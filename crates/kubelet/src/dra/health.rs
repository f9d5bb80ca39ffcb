//! The health of devices, as their drivers report it, for the status of the pods that use them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceHealth, ResourceStatus};
use knarr_csi::{CallError, Code};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Dra;
use super::drivers::Plugin;
use super::messages::{DeviceHealth, WatchRequest, WatchResponse};
use super::pod_claims::of_pod_entry;
use super::record::{PreparedDevice, key};
use crate::pod;

const WATCH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A device that was not reported for this long is of unknown health, unless its driver says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_MESSAGE_LENGTH: usize = 1024;

/// What drivers have reported, by driver, pool and device.
#[derive(Default)]
pub struct Health(Mutex<HashMap<String, HashMap<(String, String), Report>>>);

struct Report {
    health: &'static str,
    message: String,
    at: Instant,
    timeout: Duration,
}

impl Health {
    /// Applies a driver's report; returns whether anything is different.
    fn apply(&self, driver: &str, devices: Vec<DeviceHealth>, now: Instant) -> bool {
        let mut all = self.0.lock();
        let known = all.entry(driver.to_owned()).or_default();
        let mut differs = false;
        for device in devices {
            let id = device.device.unwrap_or_default();
            let seconds = u64::try_from(device.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let report = Report {
                health: match device.health {
                    1 => "Healthy",
                    2 => "Unhealthy",
                    _ => "Unknown",
                },
                message: shortened(device.message),
                at: now,
                timeout: seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            };
            let same = |before: &Report| (before.health, &before.message) == (report.health, &report.message);
            let id = (id.pool_name, id.device_name);
            differs |= !known.get(&id).is_some_and(same);
            known.insert(id, report);
        }
        // Devices that are not reported any more, and would be unknown anyway.
        known.retain(|_, report| now.saturating_duration_since(report.at) <= report.timeout);
        differs
    }

    fn forget(&self, driver: &str) -> bool {
        self.0.lock().remove(driver).is_some_and(|known| !known.is_empty())
    }

    fn of(&self, driver: &str, device: &PreparedDevice, now: Instant) -> (&'static str, Option<String>) {
        let all = self.0.lock();
        let report = all.get(driver).and_then(|known| known.get(&(device.pool.clone(), device.device.clone())));
        match report.filter(|report| now.saturating_duration_since(report.at) <= report.timeout) {
            Some(report) => (report.health, Some(report.message.clone()).filter(|message| !message.is_empty())),
            None => ("Unknown", None),
        }
    }
}

fn shortened(mut message: String) -> String {
    const END: &str = "...";
    if message.len() > MAX_MESSAGE_LENGTH {
        let mut end = MAX_MESSAGE_LENGTH - END.len();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str(END);
    }
    message
}

impl Dra {
    /// Calls a function whenever the health of devices has changed.
    pub fn on_health_change(&self, changed: Arc<dyn Fn() + Send + Sync>) {
        *self.health_changed.lock() = Some(changed);
    }

    fn health_has_changed(&self) {
        let changed = self.health_changed.lock().clone();
        if let Some(changed) = changed {
            changed();
        }
    }

    /// Receives a driver's reports until it is unregistered. A driver that reports no health is not asked again.
    pub(super) async fn watch_health(self: Arc<Self>, driver: String, plugin: Plugin, gone: CancellationToken) {
        loop {
            let ended = tokio::select! {
                () = gone.cancelled() => break,
                ended = self.receive_reports(&driver, &plugin) => ended,
            };
            match ended {
                Err(error) if error.code() == Code::Unimplemented => return,
                Err(error) => tracing::debug!(driver, %error, "cannot watch the health of devices"),
                Ok(()) => {}
            }
            if self.health.forget(&driver) {
                self.health_has_changed();
            }
            tokio::select! {
                () = gone.cancelled() => break,
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        }
        if self.health.forget(&driver) {
            self.health_has_changed();
        }
    }

    async fn receive_reports(&self, driver: &str, plugin: &Plugin) -> Result<(), CallError> {
        let mut reports =
            plugin.watch::<WatchRequest, WatchResponse>("NodeWatchResources", WATCH, WatchRequest {}).await?;
        while let Some(report) = reports.next().await? {
            if self.health.apply(driver, report.devices, Instant::now()) {
                self.health_has_changed();
            }
        }
        Ok(())
    }

    /// Adds the health of devices of claims, by container.
    pub fn add_health(&self, pod: &Pod, all: &mut BTreeMap<String, Vec<ResourceStatus>>) {
        let (records, now) = (self.records.lock(), Instant::now());
        let Some(spec) = pod.spec.as_ref().filter(|spec| spec.resource_claims.is_some()) else { return };
        for container in &spec.containers {
            let used = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
            for used in used {
                let Some(claim) = of_pod_entry(pod, &used.name) else { continue };
                let Some(record) = records.get(&key(pod::namespace(pod), &claim)) else { continue };
                let request = used.request.as_deref().filter(|request| !request.is_empty());
                let mut resources: Vec<ResourceHealth> = Vec::new();
                for (driver, device) in record.devices_for(request) {
                    let named = format!("{driver}/{}/{}", device.pool, device.device);
                    let id = device.cdi_devices.first().cloned().unwrap_or(named);
                    let (health, message) = self.health.of(driver, device, now);
                    if resources.iter().all(|known| known.resource_id != id) {
                        let health = Some(health.to_owned());
                        resources.push(ResourceHealth { resource_id: id, health, message });
                    }
                }
                if !resources.is_empty() {
                    let name = request.map_or(String::new(), |request| format!("/{request}"));
                    let name = format!("claim:{}{name}", used.name);
                    let own = all.entry(container.name.clone()).or_default();
                    own.push(ResourceStatus { name, resources: Some(resources) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::messages::DeviceIdentifier;

    #[test]
    fn reports_expire() {
        let (health, start) = (Health::default(), Instant::now());
        let report = |name: &str, state: i32, timeout: i64, message: &str| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "p".to_owned(), device_name: name.to_owned() }),
            health: state,
            health_check_timeout_seconds: timeout,
            message: message.to_owned(),
            ..DeviceHealth::default()
        };
        let device =
            |name: &str| PreparedDevice { pool: "p".to_owned(), device: name.to_owned(), ..Default::default() };
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(health.of("d", &device("a"), start), ("Unknown", None));
        assert!(health.apply("d", vec![report("a", 1, 0, ""), report("b", 2, 90, "hot")], start));
        assert!(!health.apply("d", vec![report("a", 1, -5, "")], after(10)));
        assert_eq!(health.of("d", &device("a"), after(40)), ("Healthy", None));
        assert_eq!(health.of("d", &device("a"), after(41)), ("Unknown", None));
        assert_eq!(health.of("d", &device("b"), after(90)), ("Unhealthy", Some("hot".to_owned())));
        assert_eq!(health.of("other", &device("b"), after(90)), ("Unknown", None));
        assert!(health.apply("d", vec![report("b", 2, 90, &"ä".repeat(2000))], after(90)));
        assert!(
            health.of("d", &device("b"), after(90)).1.is_some_and(|text| text.len() <= 1024 && text.ends_with("..."))
        );
        assert!(health.forget("d") && !health.forget("d"));
    }
}
