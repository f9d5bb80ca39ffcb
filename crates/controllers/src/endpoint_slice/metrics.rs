//! Metrics of endpoint slices: how many there are, how many there would be at best, and how much changes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_metrics::{Family, Gauge, Histogram};
use parking_lot::Mutex;

use super::plan::Changes;
use crate::common::Key;
use crate::metrics::COUNT_BOUNDS;

static SLICES: Gauge =
    Gauge::new("endpoint_slice_controller_num_endpoint_slices", "[BETA] Endpoint slices of services.", &[]);
static DESIRED_SLICES: Gauge = Gauge::new(
    "endpoint_slice_controller_desired_endpoint_slices",
    "[BETA] Endpoint slices that there would be if all were full.",
    &[],
);
static ENDPOINTS: Gauge =
    Gauge::new("endpoint_slice_controller_endpoints_desired", "[BETA] Endpoints of services.", &[]);
static ADDED: Histogram = Histogram::new(
    "endpoint_slice_controller_endpoints_added_per_sync",
    "[BETA] Endpoints that the sync of a service added.",
    &[],
    COUNT_BOUNDS,
);
static REMOVED: Histogram = Histogram::new(
    "endpoint_slice_controller_endpoints_removed_per_sync",
    "[BETA] Endpoints that the sync of a service removed.",
    &[],
    COUNT_BOUNDS,
);
static BY_DISTRIBUTION: Gauge = Gauge::new(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    "[BETA] Services by their traffic distribution, where they have one.",
    &["traffic_distribution"],
);

pub(crate) const METRICS: &[&dyn Family] = &[&SLICES, &DESIRED_SLICES, &ENDPOINTS, &ADDED, &REMOVED, &BY_DISTRIBUTION];

/// The endpoints and slices of each service.
#[derive(Default)]
pub(super) struct Totals(Mutex<HashMap<Key, Counts>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    slices: usize,
    desired_slices: usize,
    endpoints: usize,
    distribution: Option<String>,
}

impl Totals {
    /// Records a sync that makes these changes.
    pub(super) fn synced(
        &self,
        key: &Key,
        existing: &[Arc<EndpointSlice>],
        changes: &Changes,
        max_per_slice: usize,
        distribution: Option<&str>,
    ) {
        let after = after(existing, changes);
        let before = addresses(existing.iter().map(|slice| &**slice));
        let now = addresses(after.iter().copied());
        ADDED.observe(&[], now.difference(&before).count() as f64);
        REMOVED.observe(&[], before.difference(&now).count() as f64);
        let counts = Counts { distribution: distribution.map(str::to_owned), ..count(&after, max_per_slice) };
        self.replace(key, Some(counts));
    }

    pub(super) fn forget(&self, key: &Key) {
        self.replace(key, None);
    }

    /// Publishes the difference, so that a sync costs the same whatever the number of services.
    fn replace(&self, key: &Key, counts: Option<Counts>) {
        let mut all = self.0.lock();
        let former = match counts.clone() {
            Some(counts) => all.insert(key.clone(), counts),
            None => all.remove(key),
        };
        for (counts, sign) in [(former, -1.0), (counts, 1.0)] {
            let Some(counts) = counts else { continue };
            SLICES.add(&[], sign * counts.slices as f64);
            DESIRED_SLICES.add(&[], sign * counts.desired_slices as f64);
            ENDPOINTS.add(&[], sign * counts.endpoints as f64);
            if let Some(distribution) = &counts.distribution {
                BY_DISTRIBUTION.add(&[distribution], sign);
            }
        }
    }
}

impl Drop for Totals {
    /// A controller that stops has nothing.
    fn drop(&mut self) {
        let keys: Vec<Key> = self.0.lock().keys().cloned().collect();
        keys.iter().for_each(|key| self.forget(key));
    }
}

/// The slices once the changes are made.
fn after<'a>(existing: &'a [Arc<EndpointSlice>], changes: &'a Changes) -> Vec<&'a EndpointSlice> {
    let name = |slice: &'a EndpointSlice| slice.metadata.name.as_deref();
    let replaced: HashSet<Option<&str>> =
        changes.update.iter().map(name).chain(changes.delete.iter().map(|slice| name(slice))).collect();
    let kept = existing.iter().map(|slice| &**slice).filter(|slice| !replaced.contains(&name(slice)));
    kept.chain(&changes.update).chain(&changes.create).collect()
}

fn addresses<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> HashSet<(&'a str, &'a str)> {
    let of_slice = |slice: &'a EndpointSlice| {
        let addresses = slice.endpoints.iter().flatten().filter_map(|endpoint| endpoint.addresses.first());
        addresses.map(|address| (slice.address_type.as_str(), address.as_str()))
    };
    slices.flat_map(of_slice).collect()
}

fn count(slices: &[&EndpointSlice], max_per_slice: usize) -> Counts {
    let mut by_ports: BTreeMap<String, usize> = BTreeMap::new();
    for slice in slices {
        let ports = format!("{}{:?}", slice.address_type, slice.ports);
        *by_ports.entry(ports).or_default() += slice.endpoints.as_ref().map_or(0, Vec::len);
    }
    let desired: usize = by_ports.values().map(|endpoints| endpoints.div_ceil(max_per_slice.max(1))).sum();
    Counts {
        slices: slices.len(),
        // There is always one, if only an empty one.
        desired_slices: desired.max(1),
        endpoints: by_ports.values().sum(),
        distribution: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::discovery::v1::Endpoint;

    fn slice(name: &str, addresses: &[&str]) -> EndpointSlice {
        let endpoint = |address: &&str| Endpoint { addresses: vec![(*address).to_owned()], ..Endpoint::default() };
        let mut slice = EndpointSlice { address_type: "IPv4".to_owned(), ..EndpointSlice::default() };
        slice.metadata.name = Some(name.to_owned());
        slice.endpoints = Some(addresses.iter().map(endpoint).collect());
        slice
    }

    #[test]
    fn changes_are_counted() {
        let existing = [Arc::new(slice("a", &["1", "2"])), Arc::new(slice("b", &["3"]))];
        let changes = Changes {
            create: vec![slice("c", &["5"])],
            update: vec![slice("a", &["1", "4"])],
            delete: vec![existing[1].clone()],
        };
        let after = after(&existing, &changes);
        assert_eq!(addresses(after.iter().copied()), HashSet::from([("IPv4", "1"), ("IPv4", "4"), ("IPv4", "5")]));
        let counts = count(&after, 2);
        assert_eq!(counts, Counts { slices: 2, desired_slices: 2, endpoints: 3, distribution: None });
        assert_eq!(count(&[], 2).desired_slices, 1);
    }
}
