//! Builds the CRI configuration of a pod's sandbox: names, namespaces, ports, DNS and cgroup parent.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::messages::{
    DnsConfig, LinuxContainerResources, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping,
    Protocol,
};

use super::dns::{Cluster, dns_config};
use super::hosts::kernel_hostname;
use super::security::sandbox_security;
use crate::cgroup::amounts::pod_amounts;
use crate::cgroup::cpu::{cpu_quota, cpu_shares};
use crate::pod;
use crate::runtime::label;
use crate::settings::Settings;

pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    settings: &Settings,
    node_dns: &DnsConfig,
    cgroup_parent: &str,
) -> PodSandboxConfig {
    let (namespace, name, uid) = (pod::namespace(pod), pod::name(pod), pod::uid(pod));
    let mut labels: HashMap<String, String> = pod.metadata.labels.iter().flatten().map(owned).collect();
    labels.insert(label::POD_NAME.into(), name.into());
    labels.insert(label::POD_NAMESPACE.into(), namespace.into());
    labels.insert(label::POD_UID.into(), uid.into());
    let cluster = Cluster { servers: &settings.cluster_dns, domain: &settings.cluster_domain, node: node_dns };
    let sysctls = pod::spec(pod).security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    let amounts = pod_amounts(pod);
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata { name: name.into(), uid: uid.into(), namespace: namespace.into(), attempt }),
        hostname: if pod::host_network(pod) { String::new() } else { kernel_hostname(pod, &settings.cluster_domain) },
        log_directory: settings.log_directory(namespace, name, uid).to_string_lossy().into_owned(),
        dns_config: Some(dns_config(pod, &cluster)),
        port_mappings: port_mappings(pod),
        labels,
        annotations: pod.metadata.annotations.iter().flatten().map(owned).collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_string(),
            security_context: Some(sandbox_security(pod, settings)),
            sysctls: sysctls.map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect(),
            overhead: None,
            resources: Some(LinuxContainerResources {
                cpu_shares: cpu_shares(amounts.cpu_request),
                cpu_quota: cpu_quota(amounts.cpu_limit.unwrap_or(0)),
                cpu_period: 100_000,
                memory_limit_in_bytes: amounts.memory_limit.unwrap_or(0),
                ..Default::default()
            }),
        }),
    }
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// The host ports of a pod. On the host network there is nothing to map.
fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    if pod::host_network(pod) {
        return Vec::new();
    }
    let sidecars = pod::init_containers(pod).map(|(_, container)| container);
    let containers = sidecars.chain(pod::main_containers(pod));
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .map(|port| PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}
