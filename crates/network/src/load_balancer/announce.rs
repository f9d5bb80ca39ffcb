//! Decides which node announces a load balancer's address on the local network. All nodes compute it alike by rendezvous
//! hashing: the ready node with the greatest hash of name and address wins, so that addresses spread over nodes and few
//! move when a node joins or leaves.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::Informers;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::assigned::{self, AssignedAddresses};
use super::{addresses, is_ours};
use crate::cidr::Cidr;

const RETRY: Duration = Duration::from_secs(2);
const BY_SERVICE: &str = "service";

/// Holds the addresses that this node is to announce until dropped. With an empty pool there is nothing to do.
pub async fn run(informers: Informers, node_name: String, pool: Vec<Cidr>) {
    if pool.is_empty() {
        return;
    }
    let (services, nodes, slices) =
        (informers.of::<Service>(), informers.of::<Node>(), informers.of::<EndpointSlice>());
    slices.add_index(BY_SERVICE, service_of_slice);
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    services.on_change(move |_| notify.notify_one());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |_| notify.notify_one());
    let notify = Arc::clone(&changed);
    slices.on_change(move |_| notify.notify_one());
    services.synced().await;
    nodes.synced().await;
    slices.synced().await;
    let mut held = AssignedAddresses::default();
    let mut are_leftovers_gone = false;
    loop {
        let ready: Vec<String> =
            nodes.list().iter().filter(|node| is_ready(node)).filter_map(|node| node.metadata.name.clone()).collect();
        let mut desired = BTreeSet::new();
        services.for_each(|service| {
            if is_ours(service) {
                let candidates = candidates(service, &ready, |key| slices.by_index(BY_SERVICE, key));
                let own = addresses(service)
                    .into_iter()
                    .filter(|address| pool.iter().any(|network| network.contains(*address)));
                desired.extend(own.filter(|address| winner(&candidates, *address) == Some(node_name.as_str())));
            }
        });
        if !are_leftovers_gone {
            match assigned::release_leftovers(&pool, &desired).await {
                Ok(()) => are_leftovers_gone = true,
                Err(error) => tracing::warn!(%error, "cannot release load balancer addresses of a previous process"),
            }
        }
        if held.reconcile(&desired).await && are_leftovers_gone {
            changed.notified().await;
        } else {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Nodes that may announce: all ready ones, or with a local traffic policy those that have an endpoint.
fn candidates(service: &Service, ready: &[String], slices_of: impl Fn(&str) -> Vec<Arc<EndpointSlice>>) -> Vec<String> {
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.external_traffic_policy.as_deref()) != Some("Local") {
        return ready.to_vec();
    }
    let meta = &service.metadata;
    let key = format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    let mut with_endpoints = BTreeSet::new();
    for slice in slices_of(&key) {
        for endpoint in slice.endpoints.iter().flatten() {
            if endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true) {
                with_endpoints.extend(endpoint.node_name.clone());
            }
        }
    }
    ready.iter().filter(|node| with_endpoints.contains(*node)).cloned().collect()
}

fn winner(nodes: &[String], address: IpAddr) -> Option<&str> {
    let weight = |node: &&String| Sha256::digest(format!("{node}/{address}").as_bytes());
    nodes.iter().max_by_key(weight).map(String::as_str)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn service_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let labels = slice.metadata.labels.iter().flatten();
    let names = labels.filter(|(key, _)| *key == "kubernetes.io/service-name").map(|(_, name)| name);
    names.map(|name| format!("{namespace}/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_wins_and_few_addresses_move() {
        let nodes: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        let without = &nodes[..2];
        let mut wins = 0;
        for last in 0..90 {
            let address = IpAddr::from([192, 168, 7, last]);
            let before = winner(&nodes, address).unwrap();
            wins += u32::from(before == "a");
            if before != "c" {
                assert_eq!(winner(without, address), Some(before), "{address} need not move");
            }
        }
        assert!((10..60).contains(&wins), "{wins} of 90");
        assert_eq!(winner(&[], [1, 2, 3, 4].into()), None);
    }
}
