//! Keeps the number of volumes that this node takes up to date in the CSINode, for drivers whose number changes.
//!
//! Such a driver names a period in its CSIDriver object. It is asked in that period, and when it could not attach a volume
//! because the node has too many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use knarr_csi::Code;
use tokio::time::Instant;

use super::volume::VolumeId;
use super::{Csi, cluster};

/// When a driver is asked.
#[derive(Debug, PartialEq)]
struct Schedule {
    period: Duration,
    /// None while it is asked.
    next: Option<Instant>,
}

type Schedules = BTreeMap<String, Schedule>;

impl Csi {
    /// A CSIDriver object changed.
    pub fn driver_objects_changed(&self) {
        self.drivers.changed.notify_one();
    }

    /// Runs for as long as the node does.
    pub async fn keep_limits(self: Arc<Self>) {
        let mut schedules = Schedules::new();
        let mut asked = FuturesUnordered::new();
        loop {
            let periods = self.limit_periods().await;
            let now = Instant::now();
            for name in due(&mut schedules, &periods, now) {
                let csi = &self;
                asked.push(async move {
                    csi.refresh_limit(&name).await;
                    name
                });
            }
            let next = schedules.values().filter_map(|schedule| schedule.next).min();
            tokio::select! {
                () = self.drivers.changed.notified() => {}
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
                Some(name) = asked.next() => {
                    if let Some(schedule) = schedules.get_mut(&name) {
                        schedule.next = Some(Instant::now() + schedule.period);
                    }
                }
            }
        }
    }

    /// The periods of the registered drivers that have one.
    async fn limit_periods(&self) -> BTreeMap<String, Duration> {
        let mut periods = BTreeMap::new();
        for name in self.drivers.names() {
            if let Some(period) = self.policy(&name).await.and_then(|policy| policy.limit_period) {
                periods.insert(name, period);
            }
        }
        periods
    }

    /// Asks a driver how many volumes the node takes.
    async fn refresh_limit(&self, name: &str) {
        let Some(driver) = self.drivers.get(name) else { return };
        let refreshed = match driver.node_info().await {
            Ok(info) => self.node_info.set_limit(name, info.into()).await,
            Err(error) => Err(error.rpc_message()),
        };
        if let Err(error) = refreshed {
            tracing::warn!(error, driver = name, "cannot update the number of volumes that a CSI driver takes");
        }
    }

    /// Whether the driver did not attach the volume because the node has too many. The scheduler learns the new limit then.
    pub(super) async fn exceeds_limit(&self, id: &VolumeId) -> bool {
        let code = cluster::attach_error_code(&self.client, id, &self.node_name).await;
        let exceeds = code == Some(Code::ResourceExhausted as i32);
        if exceeds {
            self.refresh_limit(&id.driver).await;
        }
        exceeds
    }
}

/// Brings the schedules up to date, and returns the drivers to ask now.
fn due(schedules: &mut Schedules, periods: &BTreeMap<String, Duration>, now: Instant) -> Vec<String> {
    schedules.retain(|name, schedule| periods.get(name) == Some(&schedule.period));
    for (name, period) in periods {
        let schedule = || Schedule { period: *period, next: Some(now + *period) };
        schedules.entry(name.clone()).or_insert_with(schedule);
    }
    let is_due = |schedule: &Schedule| schedule.next.is_some_and(|at| at <= now);
    let due = schedules.iter_mut().filter(|(_, schedule)| is_due(schedule));
    due.map(|(name, schedule)| {
        schedule.next = None;
        name.clone()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_asked_in_their_periods() {
        let mut schedules = Schedules::new();
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let periods = |periods: &[(&str, u32)]| -> BTreeMap<String, Duration> {
            periods.iter().map(|(name, seconds)| (name.to_string(), second * *seconds)).collect()
        };
        let none: [&str; 0] = [];
        let two = periods(&[("a", 10), ("b", 20)]);
        assert_eq!(due(&mut schedules, &two, start), none, "registration has asked them");
        assert_eq!(due(&mut schedules, &two, start + second * 10), ["a"]);
        assert_eq!(due(&mut schedules, &two, start + second * 25), ["b"], "a has not responded yet");
        let changed = periods(&[("a", 5)]);
        assert_eq!(due(&mut schedules, &changed, start + second * 30), none);
        assert_eq!(due(&mut schedules, &changed, start + second * 35), ["a"]);
        due(&mut schedules, &BTreeMap::new(), start + second * 40);
        assert_eq!(schedules, Schedules::new(), "nothing is kept of drivers that are gone");
    }
}
