//! Prepares the node for the pod network: once the node has pod CIDRs, writes the CNI configuration, enables forwarding,
//! masquerades traffic that leaves the cluster, and keeps routes to other nodes' pods.

pub mod routes;
mod tunnel_guard;

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use knarr_client::Informers;
use tokio::sync::Notify;

use crate::cidr::Cidr;
use crate::cni::configuration::{CniSettings, NETWORK, write_cni_configuration};
use crate::nft::{self, NftError};
use crate::{cni, sysctl};

/// The interface that carries pods' packets to nodes in other subnets.
pub const TUNNEL: &str = "knarr-vx";
const TABLE: &str = "knarr-pods";
const RETRY: Duration = Duration::from_secs(2);

/// Configuration of the pod network.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// The directory where the container runtime reads CNI configurations.
    pub configuration_directory: PathBuf,
    pub binary_directory: PathBuf,
    /// Path of this program, which the runtime starts as the plugin.
    pub binary: PathBuf,
    pub data_directory: PathBuf,
    pub bridge: String,
    pub cluster_cidrs: Vec<Cidr>,
    pub mtu: Option<u32>,
}

/// Prepares the node once it has pod CIDRs, and keeps the routes to other nodes. Runs until dropped.
pub async fn run(informers: Informers, settings: Settings) {
    let pod_cidrs = pod_cidrs_of(&informers, &settings.node_name).await;
    match cni::reconcile(&settings.data_directory, NETWORK).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "released addresses of pods that are gone"),
        Err(error) => tracing::warn!(%error, "cannot check the address leases"),
    }
    cni::guard::harden(&settings.bridge);
    match cni::adopt(&settings.data_directory, NETWORK, &settings.bridge).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "isolated pods of an earlier version on the bridge"),
        Err(error) => tracing::warn!(%error, "cannot isolate pods of an earlier version"),
    }
    // Without these rules pods could forge addresses: they wait for them.
    while let Err(error) = prepare(&settings.bridge, &pod_cidrs, &settings.cluster_cidrs) {
        tracing::error!(%error, "the rules for pods' packets could not be set: no pod gets a network until they are");
        tokio::time::sleep(RETRY).await;
    }
    let cni_settings = CniSettings {
        data_directory: settings.data_directory.clone(),
        binary_directory: settings.binary_directory.clone(),
        binary: settings.binary.clone(),
        bridge: settings.bridge.clone(),
        pod_cidrs,
        cluster_cidrs: settings.cluster_cidrs.clone(),
        mtu: settings.mtu,
    };
    if let Err(error) = write_cni_configuration(&settings.configuration_directory, &cni_settings) {
        tracing::error!(%error, "cannot write the CNI configuration");
    }
    let of_routes = routes::Settings {
        node_name: settings.node_name,
        cluster_cidrs: settings.cluster_cidrs,
        bridge: settings.bridge,
    };
    routes::run(informers, of_routes).await;
}

/// Enables forwarding of pods' packets, and masquerading of those that leave the cluster.
pub fn prepare(bridge: &str, pod_cidrs: &[Cidr], cluster_cidrs: &[Cidr]) -> Result<(), NftError> {
    sysctl::set("net/ipv4/ip_forward", "1");
    // The kernel sends redirects when a packet leaves through its incoming interface, as between two pods of a node.
    sysctl::set("net/ipv4/conf/all/send_redirects", "0");
    if pod_cidrs.iter().any(|cidr| !cidr.is_ipv4()) {
        sysctl::set("net/ipv6/conf/all/forwarding", "1");
    }
    nft::run(&format!("{}{}", cni::guard::table(bridge, pod_cidrs), masquerade(pod_cidrs, cluster_cidrs)))
}

/// Waits until the node has pod CIDRs.
async fn pod_cidrs_of(informers: &Informers, node: &str) -> Vec<Cidr> {
    let nodes = informers.selected::<Node>(&format!("metadata.name={node}"), "");
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |_| notify.notify_one());
    loop {
        let cidrs = nodes.list().first().map(|node| pod_cidrs(node)).unwrap_or_default();
        if !cidrs.is_empty() {
            return cidrs;
        }
        changed.notified().await;
    }
}

/// The pod CIDRs in the spec of a Node.
pub fn pod_cidrs(node: &Node) -> Vec<Cidr> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let several = spec.pod_cidrs.iter().flatten().filter_map(|text| text.parse().ok());
    let several: Vec<Cidr> = several.collect();
    if several.is_empty() { spec.pod_cidr.iter().filter_map(|text| text.parse().ok()).collect() } else { several }
}

fn masquerade(pod_cidrs: &[Cidr], cluster_cidrs: &[Cidr]) -> String {
    let mut text = String::new();
    for (ip, kind, is_ipv4, never) in
        [("ip", "ipv4_addr", true, "224.0.0.0/4"), ("ip6", "ipv6_addr", false, "ff00::/8")]
    {
        let own = |cidrs: &[Cidr]| -> Vec<String> {
            cidrs.iter().filter(|cidr| cidr.is_ipv4() == is_ipv4).map(Cidr::to_string).collect()
        };
        let pods = own(pod_cidrs);
        let _ = writeln!(text, "add table {ip} {TABLE}\ndelete table {ip} {TABLE}");
        if pods.is_empty() {
            continue;
        }
        let mut inside = own(cluster_cidrs);
        if inside.is_empty() {
            inside.clone_from(&pods);
        }
        inside.push(never.to_owned());
        let _ = writeln!(text, "add table {ip} {TABLE}");
        let inside = inside.join(", ");
        let _ = writeln!(
            text,
            "add set {ip} {TABLE} inside {{ type {kind} ; flags interval ; auto-merge ; elements = {{ {inside} }} ; }}"
        );
        let _ = writeln!(text, "add chain {ip} {TABLE} postrouting {{ type nat hook postrouting priority srcnat ; }}");
        let _ = writeln!(
            text,
            "add rule {ip} {TABLE} postrouting {ip} saddr {{ {} }} {ip} daddr != @inside masquerade fully-random",
            pods.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_traffic_that_leaves_the_cluster_is_masqueraded() {
        let text = masquerade(&["10.244.1.0/24".parse().unwrap()], &["10.244.0.0/16".parse().unwrap()]);
        assert!(
            text.contains("type ipv4_addr ; flags interval ; auto-merge ; elements = { 10.244.0.0/16, 224.0.0.0/4 }")
        );
        assert!(text.contains("postrouting ip saddr { 10.244.1.0/24 } ip daddr != @inside masquerade fully-random"));
        assert!(!text.contains("add chain ip6"), "a family without pods has no table: {text}");
    }
}
