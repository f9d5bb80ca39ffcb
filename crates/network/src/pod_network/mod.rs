//! Prepares the node for the pod network: once the node has pod CIDRs, writes the CNI configuration, enables forwarding,
//! masquerades traffic that leaves the cluster, and keeps routes to other nodes' pods.

pub mod routes;
mod tunnel_guard;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use knarr_client::Informers;
use tokio::sync::Notify;

use crate::cidr::{Cidr, pod_cidrs};
use crate::cni;
use crate::cni::configuration::{CniSettings, NETWORK, write_cni_configuration};

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
    while let Err(error) = cni::prepare(&settings.bridge, &pod_cidrs, &settings.cluster_cidrs) {
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
