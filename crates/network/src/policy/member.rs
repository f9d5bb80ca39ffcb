//! The properties of a pod that matter to policies.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use knarr_client::pod;
use knarr_client::selector::Labels;

use crate::protocol::Protocol;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPod {
    pub namespace: String,
    pub labels: Labels,
    pub addresses: Vec<IpAddr>,
    pub named_ports: Vec<NamedPort>,
    /// Whether it runs on this node, which then enforces its policies.
    pub is_local: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

impl PolicyPod {
    /// `None` for pods without an own address and for terminated pods.
    /// `attached` are the addresses that this node's CNI plugin assigned.
    pub fn of(pod: &Pod, node_name: &str, attached: Option<Vec<IpAddr>>) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
        let is_local = spec.node_name.as_deref() == Some(node_name);
        if spec.host_network == Some(true) || pod::is_terminal(pod) {
            return None;
        }
        let several = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
        let mut addresses: Vec<IpAddr> = several.filter_map(|address| address.ip.parse().ok()).collect();
        if addresses.is_empty() {
            let one = status.and_then(|status| status.pod_ip.as_deref());
            addresses.extend(one.and_then(|text| text.parse::<IpAddr>().ok()));
        }
        // The status is updated after the network, also when a pod gets a new one.
        if let Some(attached) = attached.filter(|_| is_local) {
            addresses = attached;
        }
        if addresses.is_empty() {
            return None;
        }
        Some(Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            addresses,
            named_ports: named_ports(spec),
            is_local,
        })
    }
}

fn named_ports(spec: &PodSpec) -> Vec<NamedPort> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone()?,
                protocol: Protocol::parse(port.protocol.as_deref()),
                number: u16::try_from(port.container_port).ok()?,
            })
        })
        .collect()
}

/// Keeps only the fields of a pod that policies need: all pods of the cluster are held in memory.
pub fn reduce(pod: &mut Pod) {
    pod.metadata.annotations = None;
    pod.metadata.owner_references = None;
    if let Some(spec) = &mut pod.spec {
        let keep = |containers: &mut Vec<k8s_openapi::api::core::v1::Container>| {
            for container in containers {
                *container = k8s_openapi::api::core::v1::Container {
                    name: std::mem::take(&mut container.name),
                    ports: container.ports.take(),
                    restart_policy: container.restart_policy.take(),
                    ..Default::default()
                };
            }
        };
        keep(&mut spec.containers);
        spec.init_containers.iter_mut().for_each(keep);
        *spec = PodSpec {
            containers: std::mem::take(&mut spec.containers),
            init_containers: spec.init_containers.take(),
            host_network: spec.host_network,
            node_name: spec.node_name.take(),
            ..Default::default()
        };
    }
    if let Some(status) = &mut pod.status {
        *status = PodStatus {
            phase: status.phase.take(),
            pod_ip: status.pod_ip.take(),
            pod_ips: status.pod_ips.take(),
            ..Default::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn member(spec: Value, status: Value) -> Option<PolicyPod> {
        let mut pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": status}),
        )
        .unwrap();
        let before = PolicyPod::of(&pod, "here", None);
        reduce(&mut pod);
        assert_eq!(PolicyPod::of(&pod, "here", None), before, "nothing that counts is left out");
        before
    }

    #[test]
    fn pods_with_their_own_address_count() {
        let spec = json!({"nodeName": "here", "containers": [{"name": "c", "image": "i",
            "ports": [{"name": "web", "containerPort": 80}, {"containerPort": 81}]}]});
        let found =
            member(spec.clone(), json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}));
        let found = found.unwrap();
        assert!(found.is_local);
        assert_eq!((found.addresses.len(), found.named_ports.len()), (2, 1));
        assert!(member(spec.clone(), json!({})).is_none(), "no address yet");
        assert!(member(spec.clone(), json!({"podIP": "10.0.0.1", "phase": "Succeeded"})).is_none(), "ended");
        let mut new: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).unwrap();
        let given = || Some(vec!["10.0.0.7".parse().unwrap()]);
        assert_eq!(PolicyPod::of(&new, "here", given()).unwrap().addresses, given().unwrap(), "before its status");
        assert!(PolicyPod::of(&new, "there", given()).is_none(), "another node's");
        new.status = serde_json::from_value(json!({"podIP": "10.0.0.1"})).unwrap();
        assert_eq!(PolicyPod::of(&new, "here", given()).unwrap().addresses, given().unwrap(), "a new network");
        let on_host = json!({"hostNetwork": true, "containers": []});
        assert!(member(on_host, json!({"podIP": "192.168.0.1"})).is_none(), "the node's address is not the pod's");
    }
}
