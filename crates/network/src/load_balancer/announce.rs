//! Decides which node announces a load balancer's address on the local network. All nodes compute it alike by rendezvous
//! hashing: the ready node with the greatest hash of name and address wins, so that addresses spread over nodes and few
//! move when a node joins or leaves.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::node::is_ready;
use knarr_client::{Change, Informer, Informers};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::assigned::{self, AssignedAddresses};
use super::{addresses, is_ours};
use crate::cidr::Cidr;

const RETRY: Duration = Duration::from_secs(2);
const BY_SERVICE: &str = "service";
/// Services of this load balancer, all under one key.
const OURS: &str = "load-balancer-announced";

/// Holds the addresses that this node is to announce until dropped. With an empty pool there is nothing to do.
pub async fn run(informers: Informers, node_name: String, pool: Vec<Cidr>) {
    if pool.is_empty() {
        return;
    }
    let (services, nodes, slices) =
        (informers.of::<Service>(), informers.of::<Node>(), informers.of::<EndpointSlice>());
    slices.add_index(BY_SERVICE, service_of_slice);
    services.add_index(OURS, |service| is_ours(service).then(String::new).into_iter().collect());
    let changed = watch_changes(&services, &nodes, &slices);
    services.synced().await;
    nodes.synced().await;
    slices.synced().await;
    let mut held = AssignedAddresses::default();
    let mut are_leftovers_gone = false;
    let mut winners = Winners::default();
    loop {
        let ready =
            nodes.list().iter().filter(|node| is_ready(node)).filter_map(|node| node.metadata.name.clone()).collect();
        winners.set_ready(ready);
        let mut desired = BTreeSet::new();
        for service in services.by_index(OURS, "") {
            let with_endpoints =
                is_local(&service).then(|| with_endpoints(&slices.by_index(BY_SERVICE, &key(&service))));
            let own = addresses(&service).into_iter();
            let own = own.filter(|address| pool.iter().any(|network| network.contains(*address)));
            desired.extend(own.filter(|address| winners.of(*address, with_endpoints.as_ref()) == Some(&node_name)));
        }
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

/// Notifies of changes that may give an address to another node.
fn watch_changes(
    services: &Arc<Informer<Service>>,
    nodes: &Informer<Node>,
    slices: &Informer<EndpointSlice>,
) -> Arc<Notify> {
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    services.on_change(move |change| {
        if is_ours(change.latest()) || change.previous().is_some_and(|before| is_ours(before)) {
            notify.notify_one();
        }
    });
    let notify = Arc::clone(&changed);
    nodes.on_change(move |change| {
        let was_ready = change.previous().map(|before| is_ready(before));
        if matches!(change, Change::Deleted(_)) || was_ready != Some(is_ready(change.latest())) {
            notify.notify_one();
        }
    });
    let (notify, known) = (Arc::clone(&changed), Arc::downgrade(services));
    slices.on_change(move |change| {
        let Some(known) = known.upgrade() else { return };
        // The endpoints of all other Services do not matter here.
        let matters = |key: &String| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            known.get(namespace, name).is_some_and(|service| is_ours(&service) && is_local(&service))
        };
        let before = change.previous().map(|before| service_of_slice(before)).unwrap_or_default();
        if before.iter().chain(&service_of_slice(change.latest())).any(matters) {
            notify.notify_one();
        }
    });
    changed
}

/// Whether only nodes with an endpoint may announce a Service's addresses.
fn is_local(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local")
}

fn key(service: &Service) -> String {
    let meta = &service.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// The nodes with a ready endpoint.
fn with_endpoints(slices: &[Arc<EndpointSlice>]) -> BTreeSet<String> {
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint.conditions.as_ref().and_then(|own| own.ready).unwrap_or(true));
    ready.filter_map(|endpoint| endpoint.node_name.clone()).collect()
}

/// Who announces which address. What all ready nodes compete for is remembered, as it takes a hash for each node.
#[derive(Default)]
struct Winners {
    ready: Vec<String>,
    known: HashMap<IpAddr, Option<String>>,
}

impl Winners {
    fn set_ready(&mut self, mut ready: Vec<String>) {
        ready.sort_unstable();
        if self.ready != ready {
            self.ready = ready;
            self.known.clear();
        }
    }

    /// The winner of all ready nodes, or of those among them that are `only` eligible.
    fn of(&mut self, address: IpAddr, only: Option<&BTreeSet<String>>) -> Option<&String> {
        match only {
            Some(only) => winner(self.ready.iter().filter(|node| only.contains(*node)), address),
            None => {
                let ready = &self.ready;
                self.known.entry(address).or_insert_with(|| winner(ready.iter(), address).cloned()).as_ref()
            }
        }
    }
}

fn winner<'a>(nodes: impl Iterator<Item = &'a String>, address: IpAddr) -> Option<&'a String> {
    nodes.max_by_key(|node| Sha256::digest(format!("{node}/{address}").as_bytes()))
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
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let mut winners = Winners::default();
        winners.set_ready(nodes(&["c", "a", "b"]));
        let all: Vec<IpAddr> = (0..90).map(|last| IpAddr::from([192, 168, 7, last])).collect();
        let before: Vec<String> = all.iter().map(|address| winners.of(*address, None).unwrap().clone()).collect();
        winners.set_ready(nodes(&["a", "b"]));
        for (address, before) in all.iter().zip(&before) {
            if before != "c" {
                assert_eq!(winners.of(*address, None), Some(before), "{address} need not move");
            }
        }
        let wins = before.iter().filter(|name| *name == "a").count();
        assert!((10..60).contains(&wins), "{wins} of 90");
        // With a local traffic policy, a node without an endpoint does not compete.
        let only = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
        assert_eq!(winners.of(all[0], Some(&only)), Some(&"b".to_owned()));
        winners.set_ready(Vec::new());
        assert_eq!(winners.of(all[0], None), None);
    }
}
