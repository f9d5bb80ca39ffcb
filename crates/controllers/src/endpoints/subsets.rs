//! The subsets of an Endpoints object: addresses that share their ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, ObjectReference, Pod, Service, ServiceSpec,
};
use knarr_client::pod;

use crate::common::port_order;
use crate::common::service_pods::{addresses, belongs_in_endpoints, hostname_for, target_port};

/// At most this many addresses are published.
const CAPACITY: usize = 1000;
/// At most this many pairs of an address and a port are looked at. A Service may have thousands of ports, and its author thousands
/// of pods: together they would fill the memory, and no object could hold them.
const MAX_PAIRS: usize = 100 * CAPACITY;

pub(super) fn of_service(service: &Service, spec: &ServiceSpec, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let publish_unready = spec.publish_not_ready_addresses == Some(true);
    let mut subsets = Vec::new();
    let max_pods = MAX_PAIRS / spec.ports.as_ref().map_or(1, Vec::len).max(1);
    for pod in pods.iter().filter(|pod| belongs_in_endpoints(pod, publish_unready)).take(max_pods.max(1)) {
        let Some(address) = address(service, spec, pod) else { continue };
        let ready = publish_unready || pod::is_ready(pod);
        let subset = |ports: Vec<EndpointPort>| EndpointSubset {
            addresses: ready.then(|| vec![address.clone()]),
            not_ready_addresses: (!ready).then(|| vec![address.clone()]),
            ports: (!ports.is_empty()).then_some(ports),
        };
        let service_ports = spec.ports.as_deref().unwrap_or_default();
        if service_ports.is_empty() {
            if spec.cluster_ip.as_deref() == Some("None") {
                subsets.push(subset(Vec::new()));
            }
            continue;
        }
        for port in service_ports {
            if let Some(number) = target_port(pod, port) {
                subsets.push(subset(vec![EndpointPort {
                    name: port.name.clone(),
                    port: number,
                    protocol: port.protocol.clone().or_else(|| Some("TCP".to_owned())),
                    app_protocol: port.app_protocol.clone(),
                }]));
            }
        }
    }
    repack(subsets)
}

fn address(service: &Service, spec: &ServiceSpec, pod: &Pod) -> Option<EndpointAddress> {
    let first = spec.ip_families.as_ref().and_then(|families| families.first());
    let cluster_ip = || spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    let pod_ip = || pod.status.as_ref()?.pod_ip.as_deref()?.parse::<IpAddr>().ok();
    let ipv6 = match first {
        Some(family) => family == "IPv6",
        None => cluster_ip().or_else(pod_ip).is_some_and(|ip| ip.is_ipv6()),
    };
    Some(EndpointAddress {
        ip: addresses(pod, ipv6).into_iter().next()?,
        hostname: hostname_for(pod, service),
        // Without a node the name is empty: the server rejects it, as it does for Kubernetes' own controller.
        node_name: pod.spec.as_ref().map(|spec| spec.node_name.clone().unwrap_or_default()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
    })
}

/// An address counts once per target. Addresses sort as text.
type AddressKey = (String, String);
type PortKey = (String, i32, String, String);

/// The same content in canonical form: each address and port once, ports with equal addresses together, all sorted. What would
/// take too much memory in that form stays as it is: users may write it.
pub(crate) fn repack(subsets: Vec<EndpointSubset>) -> Vec<EndpointSubset> {
    if subsets.iter().map(pairs).sum::<usize>() > MAX_PAIRS {
        return subsets;
    }
    let mut all: BTreeMap<AddressKey, EndpointAddress> = BTreeMap::new();
    let mut by_port: BTreeMap<Option<PortKey>, (Option<EndpointPort>, BTreeMap<AddressKey, bool>)> = BTreeMap::new();
    for subset in subsets {
        let ports: Vec<Option<EndpointPort>> = match subset.ports.unwrap_or_default() {
            ports if ports.is_empty() => vec![None],
            ports => ports.into_iter().map(Some).collect(),
        };
        let ready = subset.addresses.into_iter().flatten().map(|address| (address, true));
        let not_ready = subset.not_ready_addresses.into_iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready) {
            let key = address_key(&address);
            all.entry(key.clone()).or_insert(address);
            for port in &ports {
                let entry =
                    by_port.entry(port.as_ref().map(port_key)).or_insert_with(|| (port.clone(), BTreeMap::new()));
                // Not ready in one subset is not ready in all.
                entry.1.entry(key.clone()).and_modify(|known| *known &= ready).or_insert(ready);
            }
        }
    }
    let mut by_addresses: BTreeMap<Vec<(AddressKey, bool)>, Vec<EndpointPort>> = BTreeMap::new();
    for (_, (port, addresses)) in by_port {
        by_addresses.entry(addresses.into_iter().collect()).or_default().extend(port);
    }
    let mut packed: Vec<EndpointSubset> = by_addresses
        .into_iter()
        .map(|(addresses, mut ports)| {
            ports.sort_by_cached_key(port_order::in_endpoints);
            let pick = |desired: bool| {
                let picked = addresses.iter().filter(|(_, ready)| *ready == desired);
                let picked: Vec<EndpointAddress> = picked.filter_map(|(key, _)| all.get(key).cloned()).collect();
                (!picked.is_empty()).then_some(picked)
            };
            EndpointSubset {
                addresses: pick(true),
                not_ready_addresses: pick(false),
                ports: (!ports.is_empty()).then_some(ports),
            }
        })
        .collect();
    packed.sort_by_key(|subset| subset.ports.iter().flatten().map(port_key).collect::<Vec<_>>());
    packed
}

/// How many pairs of an address and a port a subset has.
fn pairs(subset: &EndpointSubset) -> usize {
    let addresses = [&subset.addresses, &subset.not_ready_addresses].map(|list| list.as_ref().map_or(0, Vec::len));
    addresses.iter().sum::<usize>() * subset.ports.as_ref().map_or(1, |ports| ports.len().max(1))
}

fn address_key(address: &EndpointAddress) -> AddressKey {
    let uid = address.target_ref.as_ref().and_then(|target| target.uid.clone()).unwrap_or_default();
    (address.ip.clone(), uid)
}

fn port_key(port: &EndpointPort) -> PortKey {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    (text(&port.name), port.port, text(&port.protocol), text(&port.app_protocol))
}

/// Equal but for the versions of their targets.
pub(super) fn equal(a: &[EndpointSubset], b: &[EndpointSubset]) -> bool {
    let plain = |subsets: &[EndpointSubset]| -> Vec<EndpointSubset> {
        let mut subsets = subsets.to_vec();
        for subset in &mut subsets {
            for address in subset.addresses.iter_mut().chain(&mut subset.not_ready_addresses).flatten() {
                if let Some(target) = &mut address.target_ref {
                    target.resource_version = None;
                }
            }
        }
        subsets
    };
    plain(a) == plain(b)
}

/// Truncates to the capacity, ready addresses first, each subset in proportion; returns whether anything was cut.
pub(super) fn truncate(mut subsets: Vec<EndpointSubset>) -> (Vec<EndpointSubset>, bool) {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| count(&subset.addresses)).sum();
    let not_ready: usize = subsets.iter().map(|subset| count(&subset.not_ready_addresses)).sum();
    if ready + not_ready <= CAPACITY {
        return (subsets, false);
    }
    let cut_ready = ready > CAPACITY;
    let (room, total) = if cut_ready { (CAPACITY, ready) } else { (CAPACITY - ready, not_ready) };
    let mut left = room;
    for subset in &mut subsets {
        let list = if cut_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        let share = (count(list) * room).div_ceil(total).min(left);
        if let Some(addresses) = list {
            addresses.truncate(share);
            left -= addresses.len();
        }
        *list = list.take().filter(|addresses| !addresses.is_empty());
        if cut_ready {
            subset.not_ready_addresses = None;
        }
    }
    let used: BTreeSet<usize> = (0..subsets.len())
        .filter(|at| subsets[*at].addresses.is_some() || subsets[*at].not_ready_addresses.is_some())
        .collect();
    let remaining =
        subsets.into_iter().enumerate().filter(|(at, _)| used.contains(at)).map(|(_, subset)| subset).collect();
    (remaining, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn subsets(value: Value) -> Vec<EndpointSubset> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn equal_ports_share_a_subset() {
        let packed = repack(subsets(json!([
            {"addresses": [{"ip": "10.0.0.10"}], "ports": [{"name": "a", "port": 1}]},
            {"addresses": [{"ip": "10.0.0.10"}], "ports": [{"name": "b", "port": 2}]},
            {"notReadyAddresses": [{"ip": "10.0.0.9"}], "ports": [{"name": "a", "port": 1}]},
            {"notReadyAddresses": [{"ip": "10.0.0.9"}], "ports": [{"name": "b", "port": 2}]},
            {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"name": "c", "port": 3}]}
        ])));
        let expected = subsets(json!([
            {"addresses": [{"ip": "10.0.0.10"}], "notReadyAddresses": [{"ip": "10.0.0.9"}],
                "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]},
            {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"name": "c", "port": 3}]}
        ]));
        assert_eq!(packed, expected);
        assert_eq!(repack(packed.clone()), packed);
    }

    #[test]
    fn many_ports_of_many_pods_do_not_fill_memory() {
        let ports: Vec<Value> = (1..=20_000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let service =
            json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"clusterIP": "10.96.0.1", "ports": ports}});
        let service: Service = serde_json::from_value(service).unwrap();
        let pod = |n: usize| {
            let address = format!("10.0.{}.{}", n / 250, n % 250);
            let pod = json!({"metadata": {"name": format!("p{n}"), "uid": format!("{n}")}, "spec": {"containers": []},
                "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                    "conditions": [{"type": "Ready", "status": "True"}]}});
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let pods: Vec<Arc<Pod>> = (0..500).map(pod).collect();
        let found = of_service(&service, service.spec.as_ref().unwrap(), &pods);
        let all: usize = found.iter().map(pairs).sum();
        assert!(all > 0 && all <= MAX_PAIRS, "{all}");
        // Written by hand: as many pairs as the square of its length.
        let addresses: Vec<Value> = (0..5000).map(|n| json!({"ip": format!("10.0.{}.{}", n / 250, n % 250)})).collect();
        let ports: Vec<Value> = (1..=5000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let written = subsets(json!([{"addresses": addresses, "ports": ports}]));
        assert_eq!(repack(written.clone()), written);
    }

    #[test]
    fn addresses_and_ports_are_in_the_order_of_kubernetes() {
        let packed = repack(subsets(json!([{
            "addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.10"}, {"ip": "10.0.0.1"}],
            "ports": [
                {"name": "http", "port": 8080, "protocol": "TCP"},
                {"name": "dns", "port": 53, "protocol": "UDP", "appProtocol": "dns"}
            ]
        }])));
        let addresses: Vec<&str> = packed[0].addresses.iter().flatten().map(|address| address.ip.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1", "10.0.0.10", "10.0.0.2"]);
        let ports: Vec<&str> = packed[0].ports.iter().flatten().filter_map(|port| port.name.as_deref()).collect();
        assert_eq!(ports, ["dns", "http"]);
    }

    #[test]
    fn addresses_beyond_the_capacity_are_cut() {
        let many = |ready: usize, not_ready: usize| {
            let addresses = |count: usize, net: &str| -> Vec<Value> {
                (0..count).map(|n| json!({"ip": format!("{net}.{}.{}", n / 250, n % 250)})).collect()
            };
            subsets(json!([{"addresses": addresses(ready, "10.0"), "notReadyAddresses": addresses(not_ready, "10.1")}]))
        };
        for (ready, not_ready, left, cut) in
            [(500, 500, (500, 500), false), (900, 200, (900, 100), true), (1200, 10, (1000, 0), true)]
        {
            let (remaining, was_cut) = truncate(many(ready, not_ready));
            let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
            assert_eq!((count(&remaining[0].addresses), count(&remaining[0].not_ready_addresses)), left);
            assert_eq!(was_cut, cut);
        }
    }
}
