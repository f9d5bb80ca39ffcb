//! The devices of device plugins: inventory, health and selection.

pub mod plugin;
#[cfg(test)]
mod plugin_tests;
pub mod registration;

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

use super::affinity::{Hint, Offers, subsets};
use super::cpu_set::NumberSet;
use plugin::Plugin;

/// How long the devices of a disconnected plugin stay in the node's capacity: it may come back.
const DISCONNECT_GRACE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub healthy: bool,
    /// Its NUMA nodes; empty if it has no affinity.
    pub nodes: NumberSet,
}

/// All devices of one resource and their plugin.
#[derive(Clone, Default)]
pub struct DeviceResource {
    pub devices: BTreeMap<String, Device>,
    /// None while no plugin is connected.
    pub plugin: Option<Plugin>,
    pub gone_since: Option<Instant>,
    /// The grace period of its plugin is over: the node reports that it has none of it, and nothing else is known.
    is_forgotten: bool,
    /// A plugin has reported its devices since the kubelet started.
    is_reported: bool,
}

impl DeviceResource {
    fn healthy(&self) -> BTreeSet<&String> {
        self.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id).collect()
    }

    /// The NUMA hints for this number of devices; `free` are the unassigned ones.
    pub fn offers(&self, free: &BTreeSet<String>, count: usize, all_nodes: &NumberSet) -> Offers {
        if self.devices.values().all(|device| device.nodes.is_empty()) {
            return None;
        }
        let within = |nodes: &NumberSet, id: &str| {
            self.devices.get(id).is_some_and(|device| !device.nodes.common(nodes).is_empty() || device.nodes.is_empty())
        };
        let all = subsets(all_nodes);
        let enough = |nodes: &&NumberSet| self.devices.keys().filter(|id| within(nodes, id)).count() >= count;
        let fewest = all.iter().filter(enough).map(NumberSet::len).min().unwrap_or(0);
        let possible = all.iter().filter(|nodes| free.iter().filter(|id| within(nodes, id)).count() >= count);
        Some(possible.map(|nodes| Hint { preferred: nodes.len() == fewest, nodes: Some(nodes.clone()) }).collect())
    }

    /// The free devices on these NUMA nodes.
    pub fn near(&self, free: &BTreeSet<String>, nodes: &NumberSet) -> BTreeSet<String> {
        let is_near = |id: &&String| self.devices.get(*id).is_some_and(|device| !device.nodes.common(nodes).is_empty());
        free.iter().filter(is_near).cloned().collect()
    }

    /// Picks free devices: first those in `must`, then those on the agreed nodes, then any others.
    pub fn pick(
        &self,
        free: &BTreeSet<String>,
        must: &BTreeSet<String>,
        count: usize,
        near: Option<&NumberSet>,
    ) -> Option<BTreeSet<String>> {
        let distance = |id: &String| {
            let nodes = self.devices.get(id).map(|device| device.nodes.clone()).unwrap_or_default();
            let local = near.is_none_or(|near| !nodes.common(near).is_empty());
            (!must.contains(id), !local, !nodes.is_empty())
        };
        let mut sorted: Vec<&String> = free.union(must).collect();
        sorted.sort_by_key(|id| (distance(id), (*id).clone()));
        (sorted.len() >= count).then(|| sorted.into_iter().take(count).cloned().collect())
    }
}

/// All devices by resource name.
#[derive(Default)]
pub struct Devices(Mutex<BTreeMap<String, DeviceResource>>);

impl Devices {
    pub fn kind(&self, resource: &str) -> Option<DeviceResource> {
        self.0.lock().get(resource).filter(|kind| !kind.is_forgotten).cloned()
    }

    pub fn is_known(&self, resource: &str) -> bool {
        self.0.lock().get(resource).is_some_and(|kind| !kind.is_forgotten)
    }

    /// Whether a plugin reported the device as unhealthy or disconnected. Devices never reported count as healthy.
    pub fn is_unhealthy(&self, resource: &str, id: &str) -> bool {
        let kinds = self.0.lock();
        let kind = kinds.get(resource).filter(|kind| kind.is_reported);
        kind.and_then(|kind| kind.devices.get(id)).is_some_and(|device| !device.healthy)
    }

    /// A resource that a previous process assigned: it stays in the capacity for the grace period.
    pub fn expect(&self, resource: &str, ids: impl Iterator<Item = String>, now: Instant) {
        let mut kinds = self.0.lock();
        let kind = kinds
            .entry(resource.to_string())
            .or_insert_with(|| DeviceResource { gone_since: Some(now), ..DeviceResource::default() });
        for id in ids {
            kind.devices.entry(id).or_default();
        }
    }

    pub(super) fn connected(&self, resource: &str, plugin: Plugin) {
        let mut kinds = self.0.lock();
        let kind = kinds.entry(resource.to_string()).or_default();
        kind.plugin = Some(plugin);
        kind.gone_since = None;
        kind.is_forgotten = false;
    }

    pub(super) fn set_devices(&self, resource: &str, devices: BTreeMap<String, Device>) {
        let mut kinds = self.0.lock();
        let kind = kinds.entry(resource.to_string()).or_default();
        kind.devices = devices;
        kind.is_reported = true;
    }

    /// The plugin disconnected. Another may already have replaced it.
    pub(super) fn disconnected(&self, resource: &str, plugin: &Plugin, now: Instant) {
        let mut kinds = self.0.lock();
        let Some(kind) = kinds.get_mut(resource) else { return };
        if kind.plugin.as_ref().is_some_and(|own| own.is_same(plugin)) {
            kind.plugin = None;
            kind.gone_since = Some(now);
            kind.devices.values_mut().for_each(|device| device.healthy = false);
        }
    }

    /// The total and the allocatable number of each resource.
    pub fn amounts(&self, now: Instant) -> BTreeMap<String, (usize, usize)> {
        let mut kinds = self.0.lock();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= DISCONNECT_GRACE;
        for kind in kinds.values_mut().filter(|kind| kind.gone_since.is_some_and(is_over)) {
            kind.devices.clear();
            kind.is_forgotten = true;
        }
        kinds.iter().map(|(name, kind)| (name.clone(), (kind.devices.len(), kind.healthy().len()))).collect()
    }

    /// Healthy devices of every kind.
    pub fn all_healthy(&self) -> Vec<(String, BTreeMap<String, Device>)> {
        let kinds = self.0.lock();
        let healthy = |kind: &DeviceResource| {
            kind.devices.iter().filter(|(_, device)| device.healthy).map(|(id, d)| (id.clone(), d.clone())).collect()
        };
        kinds.iter().map(|(name, kind)| (name.clone(), healthy(kind))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(devices: &[(&str, bool, &str)]) -> DeviceResource {
        let one = |(id, healthy, nodes): &(&str, bool, &str)| {
            (id.to_string(), Device { healthy: *healthy, nodes: NumberSet::parse(nodes).expect("a set") })
        };
        DeviceResource { devices: devices.iter().map(one).collect(), ..DeviceResource::default() }
    }

    fn ids(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn devices_near_the_agreed_nodes_go_first() {
        let kind = kind(&[("a", true, "0"), ("b", true, "1"), ("c", true, "1"), ("d", true, "")]);
        let near = NumberSet::parse("1").expect("a set");
        let pick = |free: &str, must: &str, count| kind.pick(&ids(free), &ids(must), count, Some(&near));
        assert_eq!(pick("a b c d", "", 2), Some(ids("b c")));
        assert_eq!(pick("a b d", "", 2), Some(ids("b d")));
        assert_eq!(pick("b c", "a", 2), Some(ids("a b")));
        assert_eq!(pick("b", "", 2), None);
    }

    #[test]
    fn a_plugin_that_is_gone_leaves_its_devices_for_a_while() {
        let devices = Devices::default();
        let now = Instant::now();
        devices.expect("example.com/d", ["a".to_string()].into_iter(), now);
        assert_eq!(devices.amounts(now).get("example.com/d"), Some(&(1, 0)));
        let later = now + Duration::from_secs(360);
        assert_eq!(devices.amounts(later).get("example.com/d"), Some(&(0, 0)), "the node has none any more");
        assert!(!devices.is_known("example.com/d") && devices.kind("example.com/d").is_none());
    }
}
