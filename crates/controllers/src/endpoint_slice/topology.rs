//! Topology mode "Auto": each zone gets a share of a service's endpoints proportional to its share of the cluster's CPUs.
//!
//! Endpoints are hinted for their own zone, and a zone with too many gives some to zones with too few. Unchanged slices
//! keep their hints while these are good enough, so that a pod that comes or goes costs one write.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForZone};
use knarr_client::node::is_ready;
use knarr_client::quantity;

use super::plan::{Changes, Desired, identity};

/// A zone may be overloaded by this factor.
const OVERLOAD: f64 = 0.2;

/// How many endpoints are hinted for each zone.
pub(super) type Shares = BTreeMap<String, usize>;

/// The share of all CPUs that each zone has; `None` when nodes lack the information.
pub(super) struct Zones(BTreeMap<String, f64>);

impl Zones {
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let mut milli: BTreeMap<String, i64> = BTreeMap::new();
        for node in nodes.filter(|node| counts(node)) {
            let cpus = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get("cpu"));
            let cpus = cpus.map_or(0, quantity::milli_value);
            match zone_of(node).filter(|_| cpus > 0) {
                Some(zone) => *milli.entry(zone.to_owned()).or_default() += cpus,
                None => return Zones(BTreeMap::new()),
            }
        }
        if milli.len() < 2 {
            return Zones(BTreeMap::new());
        }
        let all: i64 = milli.values().sum();
        Zones(milli.into_iter().map(|(zone, own)| (zone, own as f64 / all as f64)).collect())
    }

    /// Whether some zone has too few endpoints.
    pub fn overload(&self, shares: &Shares) -> bool {
        let all: usize = shares.values().sum();
        let falls_short = |(zone, part): (&String, &f64)| {
            shares.get(zone).is_none_or(|share| *share < (all as f64 * part / (1.0 + OVERLOAD)).ceil() as usize)
        };
        !shares.is_empty() && (self.0.is_empty() || self.0.iter().any(falls_short))
    }
}

/// Whether the service requests it.
pub(super) fn is_requested(service: &Service) -> bool {
    let annotation = |key: &str| service.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let mode = annotation("service.kubernetes.io/topology-aware-hints")
        .or_else(|| annotation("service.kubernetes.io/topology-mode"));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// Whether a change of a node can change a zone's share of CPUs.
pub(super) fn concerns(old: Option<&Node>, new: &Node) -> bool {
    old.is_none_or(|old| is_ready(old) != is_ready(new) || zone_of(old) != zone_of(new))
}

/// Existing endpoints keep their hints as long as nothing else changes in their slice.
pub(super) fn keep_hints(desired: &mut [Desired], existing: &[Arc<EndpointSlice>]) {
    let mut known = BTreeMap::new();
    for slice in existing {
        for endpoint in slice.endpoints.iter().flatten() {
            known.insert((slice.address_type.as_str(), identity(endpoint)), &endpoint.hints);
        }
    }
    for each in desired {
        let hints = known.get(&(each.family, identity(&each.endpoint)));
        each.endpoint.hints = hints.copied().cloned().flatten();
    }
}

/// Sets hints on the endpoints of one family, or removes them when that is not possible and returns why.
pub(super) fn distribute(
    changes: &mut Changes,
    family: &str,
    existing: &[Arc<EndpointSlice>],
    zones: &Zones,
) -> Result<Shares, String> {
    let shared = try_distribute(changes, family, existing, zones);
    if shared.is_err() {
        for slice in untouched(changes, family, existing) {
            if slice.endpoints.iter().flatten().any(|endpoint| endpoint.hints.is_some()) {
                changes.update.push((*slice).clone());
            }
        }
        changed_endpoints(changes, family).for_each(|endpoint| endpoint.hints = None);
    }
    shared.map_err(|problem| format!("{problem}, addressType: {family}"))
}

fn try_distribute(
    changes: &mut Changes,
    family: &str,
    existing: &[Arc<EndpointSlice>],
    zones: &Zones,
) -> Result<Shares, String> {
    let untouched = untouched(changes, family, existing);
    let still = untouched.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = still.filter(|endpoint| is_ready_endpoint(endpoint)).count()
        + changed_endpoints(changes, family).filter(|endpoint| is_ready_endpoint(endpoint)).count();
    let bounds = bounds(zones, ready)?;
    let mut shares = Shares::new();
    for slice in untouched {
        match shares_of(&slice, &shares, &bounds) {
            Some(own) => own.into_iter().for_each(|(zone, count)| *shares.entry(zone).or_default() += count),
            None => changes.update.push((*slice).clone()),
        }
    }
    for endpoint in changed_endpoints(changes, family) {
        endpoint.hints = None;
        if !is_ready_endpoint(endpoint) {
            continue;
        }
        let Some(zone) = endpoint.zone.clone().filter(|zone| !zone.is_empty()) else {
            return Err("One or more endpoints do not have a zone specified".to_owned());
        };
        *shares.entry(zone.clone()).or_default() += 1;
        endpoint.hints = hint(zone);
    }
    let (mut giving, mut receiving) = exchange(&bounds, &shares);
    for endpoint in changed_endpoints(changes, family).filter(|endpoint| is_ready_endpoint(endpoint)) {
        let giver = endpoint.zone.as_ref().and_then(|zone| giving.get_mut(zone)).filter(|left| **left > 0);
        let Some(left) = giver else { continue };
        let Some((receiver, needed)) = receiving.iter_mut().find(|(_, needed)| **needed > 0) else { break };
        *left -= 1;
        *needed -= 1;
        *shares.entry(receiver.clone()).or_default() += 1;
        if let Some(share) = endpoint.zone.as_ref().and_then(|zone| shares.get_mut(zone)) {
            *share -= 1;
        }
        endpoint.hints = hint(receiver.clone());
    }
    Ok(shares)
}

/// How many endpoints a zone should have.
struct Bounds {
    max: usize,
    ideal: f64,
}

fn bounds(zones: &Zones, endpoints: usize) -> Result<BTreeMap<&str, Bounds>, String> {
    let Zones(parts) = zones;
    if parts.is_empty() {
        let problem =
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes".to_owned();
        return Err(problem);
    }
    let counts = format!("({endpoints} endpoints, {} zones)", parts.len());
    if parts.len() > endpoints {
        return Err(format!("Insufficient number of endpoints {counts}"));
    }
    let ideal = |part: f64| part * endpoints as f64;
    let min = |part: f64| (ideal(part) / (1.0 + OVERLOAD)).ceil() as usize;
    let all_min: usize = parts.values().map(|part| min(*part)).sum();
    let Some(spare) = endpoints.checked_sub(all_min) else {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {counts}"
        ));
    };
    let of_zone = |part: f64| Bounds { max: min(part) + spare, ideal: ideal(part).max(min(part) as f64) };
    Ok(parts.iter().map(|(zone, part)| (zone.as_str(), of_zone(*part))).collect())
}

/// The zones that a slice's endpoints are hinted for, if the hints may stay.
fn shares_of(slice: &EndpointSlice, others: &Shares, bounds: &BTreeMap<&str, Bounds>) -> Option<Shares> {
    let mut own = Shares::new();
    for endpoint in slice.endpoints.iter().flatten().filter(|endpoint| is_ready_endpoint(endpoint)) {
        let zones = endpoint.hints.as_ref()?.for_zones.as_ref().filter(|zones| !zones.is_empty())?;
        zones.iter().for_each(|zone| *own.entry(zone.name.clone()).or_default() += 1);
    }
    let fits = |(zone, count): (&String, &usize)| {
        let before = others.get(zone).copied().unwrap_or(0);
        bounds.get(zone.as_str()).is_some_and(|bounds| before + count <= bounds.max)
    };
    own.iter().all(fits).then_some(own)
}

/// How many endpoints zones should give away, and how many others should receive.
fn exchange(bounds: &BTreeMap<&str, Bounds>, shares: &Shares) -> (Shares, Shares) {
    let mut surplus: BTreeMap<&str, f64> = BTreeMap::new();
    for (zone, bounds) in bounds {
        let has = shares.get(*zone).copied().unwrap_or(0) as f64;
        surplus.insert(zone, has - bounds.ideal);
    }
    let (mut giving, mut receiving) = (Shares::new(), Shares::new());
    loop {
        let richest = surplus.iter().rev().max_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, much)| (*zone, *much));
        let poorest = surplus.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, much)| (*zone, -*much));
        let (Some((giver, spare)), Some((receiver, lack))) = (richest, poorest) else { break };
        if spare < 0.5 || lack < 0.5 || (spare < 1.0 && lack < 1.0) {
            break;
        }
        *giving.entry(giver.to_owned()).or_default() += 1;
        *receiving.entry(receiver.to_owned()).or_default() += 1;
        surplus.entry(giver).and_modify(|much| *much -= 1.0);
        surplus.entry(receiver).and_modify(|much| *much += 1.0);
    }
    (giving, receiving)
}

fn untouched(changes: &Changes, family: &str, existing: &[Arc<EndpointSlice>]) -> Vec<Arc<EndpointSlice>> {
    let is_touched = |slice: &EndpointSlice| {
        let is_it = |other: &EndpointSlice| other.metadata.name == slice.metadata.name;
        changes.update.iter().any(is_it) || changes.delete.iter().any(|other| is_it(other))
    };
    existing.iter().filter(|slice| slice.address_type == family && !is_touched(slice)).cloned().collect()
}

fn changed_endpoints<'a>(changes: &'a mut Changes, family: &'a str) -> impl Iterator<Item = &'a mut Endpoint> {
    let slices = changes.create.iter_mut().chain(&mut changes.update);
    slices.filter(move |slice| slice.address_type == family).flat_map(|slice| slice.endpoints.iter_mut().flatten())
}

fn hint(zone: String) -> Option<EndpointHints> {
    Some(EndpointHints { for_zones: Some(vec![ForZone { name: zone }]), for_nodes: None })
}

fn is_ready_endpoint(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
}

/// Control plane nodes and nodes that are not ready do not count.
fn counts(node: &Node) -> bool {
    const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
    let labels = node.metadata.labels.as_ref();
    is_ready(node) && !EXCLUDED.iter().any(|label| labels.is_some_and(|labels| labels.contains_key(*label)))
}

fn zone_of(node: &Node) -> Option<&str> {
    let zone = node.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone")?;
    Some(zone.as_str()).filter(|zone| !zone.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn zones(cpus: &[(&str, &str)]) -> Zones {
        let node = |(zone, cpu): &(&str, &str)| -> Node {
            serde_json::from_value(json!({
                "metadata": {"labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]}
            }))
            .unwrap()
        };
        let nodes: Vec<Node> = cpus.iter().map(node).collect();
        Zones::of(nodes.iter())
    }

    fn slice(name: &str, endpoints: &[(&str, Option<&str>)]) -> EndpointSlice {
        let endpoints: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(n, (zone, hint))| {
                let hints = hint.map(|zone| json!({"forZones": [{"name": zone}]}));
                json!({"addresses": [format!("{name}{n}")], "zone": zone, "conditions": {"ready": true}, "hints": hints})
            })
            .collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints}))
            .unwrap()
    }

    fn hints(changes: &Changes) -> Vec<String> {
        let slices = changes.create.iter().chain(&changes.update);
        let endpoints = slices.flat_map(|slice| slice.endpoints.iter().flatten());
        endpoints
            .map(|endpoint| {
                endpoint
                    .hints
                    .as_ref()
                    .map_or("-".to_owned(), |hints| hints.for_zones.as_ref().unwrap()[0].name.clone())
            })
            .collect()
    }

    #[test]
    fn zones_get_endpoints_by_their_cpus() {
        let halves = [("a", "2"), ("b", "2")];
        for (cpus, endpoints, expected) in [
            (&halves[..], &["a", "b"][..], Ok(vec!["a", "b"])),
            (&halves, &["a", "a", "a", "b"], Ok(vec!["b", "a", "a", "b"])),
            (&[("a", "1"), ("b", "3")], &["a", "a", "b", "b"], Ok(vec!["b", "a", "b", "b"])),
            (&halves, &["a"], Err("Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4")),
            (
                &halves,
                &["a", "a", "b"],
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones), addressType: IPv4",
                ),
            ),
            (
                &halves[..1],
                &["a", "a"],
                Err(
                    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4",
                ),
            ),
            (&halves, &["a", ""], Err("One or more endpoints do not have a zone specified, addressType: IPv4")),
        ] {
            let endpoints: Vec<_> = endpoints.iter().map(|zone| (*zone, None)).collect();
            let mut changes = Changes { create: vec![slice("s", &endpoints)], ..Changes::default() };
            let shared = distribute(&mut changes, "IPv4", &[], &zones(cpus));
            match expected {
                Ok(expected) => assert_eq!(
                    (shared.is_ok(), hints(&changes)),
                    (true, expected.iter().map(|zone| zone.to_string()).collect())
                ),
                Err(expected) => {
                    assert_eq!(shared.unwrap_err(), expected);
                    assert!(hints(&changes).iter().all(|hint| hint == "-"));
                }
            }
        }
    }

    #[test]
    fn slices_keep_hints_that_do_no_harm() {
        let existing = [Arc::new(slice("kept", &[("a", Some("a")), ("a", Some("b"))]))];
        let halves = zones(&[("a", "2"), ("b", "2")]);
        let mut changes = Changes::default();
        let shares = distribute(&mut changes, "IPv4", &existing, &halves).unwrap();
        assert_eq!((changes.update.len(), shares), (0, [("a".to_owned(), 1), ("b".to_owned(), 1)].into()));
        let lost = [Arc::new(slice("lost", &[("a", Some("a")), ("a", Some("gone"))]))];
        distribute(&mut changes, "IPv4", &lost, &halves).unwrap();
        assert_eq!(hints(&changes), ["b", "a"]);
        let mut changes = Changes::default();
        assert!(distribute(&mut changes, "IPv4", &existing, &zones(&[("a", "1")])).is_err());
        assert_eq!(hints(&changes), ["-", "-"], "hints are removed");
    }

    #[test]
    fn services_are_queued_again_when_zones_change() {
        let shares: Shares = [("a".to_owned(), 3), ("b".to_owned(), 1)].into();
        assert!(zones(&[("a", "2"), ("b", "2")]).overload(&shares));
        assert!(!zones(&[("a", "3"), ("b", "1")]).overload(&shares));
        assert!(zones(&[]).overload(&shares) && !zones(&[]).overload(&Shares::new()));
    }
}
