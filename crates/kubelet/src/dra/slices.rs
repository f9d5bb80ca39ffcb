//! Deletes the ResourceSlices of drivers that are gone, so that no more pods are sent here for their devices.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::Dra;
use super::drivers::{PROBE_INTERVAL, Plugin};
use crate::api_text::api_text;
use crate::backoff::backoff;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Dra {
    /// Runs for as long as the node does.
    pub async fn keep_slices(self: Arc<Self>) {
        // Slices that drivers published before this process started may be outdated; running drivers publish them again.
        let mut failures = 0;
        while let Err(error) = self.delete_slices(None).await {
            failures += 1;
            tracing::debug!(error, failures, "cannot delete the node's resource slices");
            tokio::time::sleep(backoff(failures)).await;
        }
        loop {
            self.check_drivers().await;
            let due = self.drivers.0.lock().values().filter_map(|driver| driver.wipe_at).min();
            let next = Instant::now() + PROBE_INTERVAL;
            tokio::select! {
                () = self.drivers_changed.notified() => {}
                () = tokio::time::sleep_until(due.map_or(next, |due| due.min(next))) => {}
            }
            self.delete_due_slices().await;
        }
    }

    /// Notes which drivers accept no connections, and which do again.
    async fn check_drivers(&self) {
        let drivers: Vec<(String, Vec<Plugin>)> =
            self.drivers.0.lock().iter().map(|(name, driver)| (name.clone(), driver.plugins.clone())).collect();
        for (name, plugins) in drivers {
            let mut is_usable = false;
            for plugin in &plugins {
                let connected = timeout(CONNECT_TIMEOUT, UnixStream::connect(plugin.socket())).await;
                is_usable |= connected.is_ok_and(|connected| connected.is_ok());
            }
            if let Some(driver) = self.drivers.0.lock().get_mut(&name) {
                match is_usable {
                    true => driver.wipe_at = None,
                    false => {
                        driver.wipe_at.get_or_insert(Instant::now() + self.slice_grace);
                    }
                }
            }
        }
    }

    async fn delete_due_slices(&self) {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let names: Vec<String> = {
            let drivers = self.drivers.0.lock();
            drivers.iter().filter(|(_, driver)| due(driver.wipe_at)).map(|(name, _)| name.clone()).collect()
        };
        for name in names {
            let deleted = self.delete_slices(Some(&name)).await;
            let mut drivers = self.drivers.0.lock();
            let Some(driver) = drivers.get_mut(&name).filter(|driver| due(driver.wipe_at)) else { continue };
            match deleted {
                Ok(()) => {
                    tracing::info!(driver = name, "deleted the resource slices of a DRA driver that is gone");
                    if driver.plugins.is_empty() {
                        drivers.remove(&name);
                    } else {
                        driver.wipe_at = Some(now + self.slice_grace);
                    }
                }
                Err(error) => {
                    tracing::warn!(error, driver = name, "cannot delete the resource slices of a DRA driver");
                    driver.wipe_at = Some(now + PROBE_INTERVAL);
                }
            }
        }
    }

    /// Deletes the node's slices, of one driver or of all.
    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), String> {
        let mut fields = format!("spec.nodeName={}", self.node_name);
        if let Some(driver) = driver {
            fields.push_str(&format!(",spec.driver={driver}"));
        }
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let deleted = slices.delete_collection(&DeleteParams::default(), &ListParams::default().fields(&fields)).await;
        match deleted {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(api_text(&error)),
        }
    }
}
