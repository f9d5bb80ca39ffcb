//! The ready pods behind the ports of a Service.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::routes::Port;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub address: SocketAddr,
    pub speaks_http2: bool,
}

/// Whether an address can be a pod's. Users can write EndpointSlices, too: these must not reach services of the node itself
/// or of its link, such as a cloud's metadata service.
fn is_pod_address(address: IpAddr, allows_loopback: bool) -> bool {
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    let is_special = is_link_local || address.is_unspecified() || address.is_multicast();
    !is_special && (allows_loopback || !address.is_loopback())
}

/// The ports and ready pods of a Service, as all backends of it read them: an Ingress may name thousands of its ports.
pub struct ServiceEndpoints<'a> {
    ports: HashMap<Port, &'a ServicePort>,
    /// The ports by name and the pods of each slice.
    slices: Vec<(HashMap<&'a str, u16>, Vec<IpAddr>)>,
}

impl<'a> ServiceEndpoints<'a> {
    /// With at most about so many pods.
    pub fn of(service: &'a Service, slices: &'a [Arc<EndpointSlice>], max: usize, allows_loopback: bool) -> Self {
        let mut ports = HashMap::new();
        for port in service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()) {
            let number = u16::try_from(port.port).ok().map(Port::Number);
            // The first that has a name or a number counts.
            for key in number.into_iter().chain(port.name.clone().map(Port::Name)) {
                ports.entry(key).or_insert(port);
            }
        }
        let mut slices: Vec<_> = slices
            .iter()
            .filter(|slice| slice.address_type != "FQDN")
            .map(|slice| {
                let mut numbers = HashMap::new();
                for port in slice.ports.iter().flatten() {
                    if let Some(number) = port.port.and_then(|port| u16::try_from(port).ok()) {
                        numbers.entry(port.name.as_deref().unwrap_or_default()).or_insert(number);
                    }
                }
                let is_ready = |endpoint: &&Endpoint| {
                    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
                };
                // The addresses of an endpoint are one pod; Kubernetes' proxy uses the first of them, too.
                let addresses =
                    slice.endpoints.iter().flatten().filter(is_ready).filter_map(|endpoint| endpoint.addresses.first());
                let addresses = addresses.filter_map(|text| text.parse().ok());
                (
                    numbers,
                    addresses.filter(|address| is_pod_address(*address, allows_loopback)).collect::<Vec<IpAddr>>(),
                )
            })
            .collect();
        let count: usize = slices.iter().map(|(_, pods)| pods.len()).sum();
        if count > max {
            slices.iter_mut().for_each(|(_, pods)| pods.truncate((max * pods.len() / count).max(1)));
        }
        Self { ports, slices }
    }

    /// The pods behind a port of the Service.
    pub fn find(&self, port: &Port) -> Vec<Found> {
        let Some(service_port) = self.ports.get(port) else { return Vec::new() };
        let speaks_http2 = matches!(service_port.app_protocol.as_deref(), Some("kubernetes.io/h2c" | "grpc" | "h2c"));
        let name = service_port.name.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        for (numbers, pods) in &self.slices {
            let Some(number) = numbers.get(name).copied() else { continue };
            found.extend(pods.iter().map(|pod| Found { address: SocketAddr::new(*pod, number), speaks_http2 }));
        }
        found.sort();
        found.dedup();
        // A dual-stack pod would otherwise get twice the requests of a single-stack one.
        if found.iter().any(|found| found.address.is_ipv4()) {
            found.retain(|found| found.address.is_ipv4());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_network_addresses_are_accepted_as_pods() {
        for (address, expected) in [
            ("10.0.0.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_pod_address(address.parse().unwrap(), false), expected, "{address}");
        }
    }

    #[test]
    fn ports_are_found_by_name_or_number() {
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"ports": [
            {"name": "http", "port": 80}, {"name": "grpc", "port": 90, "appProtocol": "kubernetes.io/h2c"}]}}))
        .unwrap();
        let slice = |kind: &str, address: &str| -> Arc<EndpointSlice> {
            let slice = json!({"metadata": {}, "addressType": kind,
                "ports": [{"name": "http", "port": 8080}, {"name": "grpc", "port": 9090}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": true}},
                    {"addresses": ["10.0.0.9"], "conditions": {"ready": false}}]});
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let slices = [slice("IPv4", "10.0.0.1"), slice("IPv6", "fd00::1")];
        for (port, expected) in [
            (Port::Name("http".into()), Some(("10.0.0.1:8080", false))),
            (Port::Number(80), Some(("10.0.0.1:8080", false))),
            (Port::Number(90), Some(("10.0.0.1:9090", true))),
            (Port::Number(8080), None),
        ] {
            let expected: Vec<Found> = expected
                .into_iter()
                .map(|(address, speaks_http2)| Found { address: address.parse().unwrap(), speaks_http2 })
                .collect();
            assert_eq!(ServiceEndpoints::of(&service, &slices, 10, false).find(&port), expected);
        }
    }
}
