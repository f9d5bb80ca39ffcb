//! Devices that plugins bring to the node: which there are, who has them, and which to take next.

pub mod plugin;
pub mod registration;
#[cfg(test)]
mod plugin_tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::affinity::{Hint, Offers, subsets};
use super::cpu_set::NumberSet;
use plugin::Plugin;

/// A plugin that is gone may come back; after this time its devices are no longer the node's.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub healthy: bool,
    /// The NUMA nodes it is near to; empty if it does not matter.
    pub nodes: NumberSet,
}

/// All devices of one resource, and the plugin that speaks for them.
#[derive(Clone, Default)]
pub struct Kind {
    pub devices: BTreeMap<String, Device>,
    /// None while no plugin answers.
    pub plugin: Option<Plugin>,
    pub gone_since: Option<Timestamp>,
    /// A plugin has told how its devices are, in this life of the node.
    is_told: bool,
}

impl Kind {
    fn healthy(&self) -> BTreeSet<&String> {
        self.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id).collect()
    }

    /// Where so many of these devices could come from, `free` being those nobody has.
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

    /// Those of the free devices that are near the nodes.
    pub fn near(&self, free: &BTreeSet<String>, nodes: &NumberSet) -> BTreeSet<String> {
        let is_near = |id: &&String| self.devices.get(*id).is_some_and(|device| !device.nodes.common(nodes).is_empty());
        free.iter().filter(is_near).cloned().collect()
    }

    /// So many free devices: those that must be among them, then those near the agreed nodes, then any others.
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

/// All kinds of devices by resource name.
#[derive(Default)]
pub struct Devices(Mutex<BTreeMap<String, Kind>>);

impl Devices {
    pub fn kind(&self, resource: &str) -> Option<Kind> {
        self.0.lock().get(resource).cloned()
    }

    pub fn is_known(&self, resource: &str) -> bool {
        self.0.lock().contains_key(resource)
    }

    /// A plugin said so, or left. One that nobody spoke of is taken to be well.
    pub fn is_unwell(&self, resource: &str, id: &str) -> bool {
        let kinds = self.0.lock();
        let kind = kinds.get(resource).filter(|kind| kind.is_told);
        kind.and_then(|kind| kind.devices.get(id)).is_some_and(|device| !device.healthy)
    }

    /// A resource that an earlier life of the node had given away: it is the node's until its grace is over.
    pub fn expect(&self, resource: &str, ids: impl Iterator<Item = String>, now: Timestamp) {
        let mut kinds = self.0.lock();
        let kind =
            kinds.entry(resource.to_string()).or_insert_with(|| Kind { gone_since: Some(now), ..Kind::default() });
        for id in ids {
            kind.devices.entry(id).or_default();
        }
    }

    pub(super) fn connected(&self, resource: &str, plugin: Plugin) {
        let mut kinds = self.0.lock();
        let kind = kinds.entry(resource.to_string()).or_default();
        kind.plugin = Some(plugin);
        kind.gone_since = None;
    }

    pub(super) fn told(&self, resource: &str, devices: BTreeMap<String, Device>) {
        let mut kinds = self.0.lock();
        let kind = kinds.entry(resource.to_string()).or_default();
        kind.devices = devices;
        kind.is_told = true;
    }

    /// The plugin at this endpoint ended. Another may have taken its place already.
    pub(super) fn disconnected(&self, resource: &str, plugin: &Plugin, now: Timestamp) {
        let mut kinds = self.0.lock();
        let Some(kind) = kinds.get_mut(resource) else { return };
        if kind.plugin.as_ref().is_some_and(|own| own.is_same(plugin)) {
            kind.plugin = None;
            kind.gone_since = Some(now);
            kind.devices.values_mut().for_each(|device| device.healthy = false);
        }
    }

    /// How many of each there are, and how many of them pods may have.
    pub fn amounts(&self, now: Timestamp) -> BTreeMap<String, (usize, usize)> {
        let mut kinds = self.0.lock();
        kinds.retain(|_, kind| kind.gone_since.is_none_or(|since| now.duration_since(since) < GRACE));
        kinds.iter().map(|(name, kind)| (name.clone(), (kind.devices.len(), kind.healthy().len()))).collect()
    }

    /// Healthy devices of every kind.
    pub fn all_healthy(&self) -> Vec<(String, BTreeMap<String, Device>)> {
        let kinds = self.0.lock();
        let healthy = |kind: &Kind| {
            kind.devices.iter().filter(|(_, device)| device.healthy).map(|(id, d)| (id.clone(), d.clone())).collect()
        };
        kinds.iter().map(|(name, kind)| (name.clone(), healthy(kind))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(devices: &[(&str, bool, &str)]) -> Kind {
        let one = |(id, healthy, nodes): &(&str, bool, &str)| {
            (id.to_string(), Device { healthy: *healthy, nodes: NumberSet::parse(nodes).expect("a set") })
        };
        Kind { devices: devices.iter().map(one).collect(), ..Kind::default() }
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
        let now = Timestamp::UNIX_EPOCH;
        devices.expect("example.com/d", ["a".to_string()].into_iter(), now);
        assert_eq!(devices.amounts(now).get("example.com/d"), Some(&(1, 0)));
        let later = now.saturating_add(SignedDuration::from_mins(6)).expect("a moment");
        assert!(devices.amounts(later).is_empty());
    }
}
