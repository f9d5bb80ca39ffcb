//! Host ports that pods use.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use knarr_client::pod_resources::is_sidecar;

const ANY_ADDRESS: &str = "0.0.0.0";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub address: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    /// Two ports conflict when one of them is on all addresses or both are on the same.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let overlap = self.address == ANY_ADDRESS || other.address == ANY_ADDRESS || self.address == other.address;
        self.port == other.port && self.protocol == other.protocol && overlap
    }
}

/// The host ports of a pod's containers and sidecars.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port.host_ip.clone().filter(|address| !address.is_empty());
            Some(HostPort {
                address: address.unwrap_or_else(|| ANY_ADDRESS.to_owned()),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port: number,
            })
        })
        .collect()
}

/// The host ports in use on a node, each with how many pods use it.
#[derive(Clone, Debug, Default)]
pub struct UsedPorts(HashMap<HostPort, usize>);

impl UsedPorts {
    pub fn add(&mut self, ports: &[HostPort]) {
        for port in ports {
            *self.0.entry(port.clone()).or_default() += 1;
        }
    }

    pub fn remove(&mut self, ports: &[HostPort]) {
        for port in ports {
            if let Some(count) = self.0.get_mut(port) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(port);
                }
            }
        }
    }

    pub fn conflict(&self, required: &[HostPort]) -> bool {
        required.iter().any(|required| self.0.keys().any(|used| used.conflicts(required)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_conflict_on_overlapping_addresses() {
        let port = |address: &str, port: i32| HostPort { address: address.into(), protocol: "TCP".into(), port };
        let mut used = UsedPorts::default();
        used.add(&[port("10.0.0.1", 80), port(ANY_ADDRESS, 90)]);
        for (required, conflict) in [
            (port("10.0.0.1", 80), true),
            (port("10.0.0.2", 80), false),
            (port(ANY_ADDRESS, 80), true),
            (port("10.0.0.2", 90), true),
            (port("10.0.0.2", 91), false),
        ] {
            assert_eq!(used.conflict(std::slice::from_ref(&required)), conflict, "{required:?}");
        }
        used.remove(&[port("10.0.0.1", 80)]);
        assert!(!used.conflict(&[port("10.0.0.1", 80)]));
    }
}
