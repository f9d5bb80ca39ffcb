//! The objects that the proxy reads, and what their changes mark for the next sync.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::jiff::Timestamp;
use knarr_client::{Informer, Informers};

use super::dirty::{Dirty, Pending};
use super::protected;
use super::status::Status;
use crate::cidr::Cidr;

/// The informers of the proxy.
pub struct Objects {
    pub services: Arc<Informer<Service>>,
    slices: Arc<Informer<EndpointSlice>>,
    pub nodes: Arc<Informer<Node>>,
    networks: Arc<Informer<ServiceCIDR>>,
}

impl Objects {
    /// Marks in `dirty` what each change concerns. `own_node` is the name of this node.
    pub fn watch(informers: &Informers, own_node: &str, dirty: &Arc<Dirty>, status: &Arc<Status>) -> Self {
        let services = informers.of::<Service>();
        let slices = informers.of::<EndpointSlice>();
        let nodes = informers.of::<Node>();
        let networks = informers.of::<ServiceCIDR>();
        let mark = Arc::clone(dirty);
        // An address in a Service network is never an external address.
        networks.on_change(move |_| mark.all());
        slices.add_index(BY_SERVICE, service_of_slice);
        services.add_index(CAPTURING, captures);
        let (mark, reporter) = (Arc::clone(dirty), Arc::clone(status));
        services.on_change(move |change| {
            reporter.service_changed();
            mark.service(change);
        });
        let (mark, reporter) = (Arc::clone(dirty), Arc::clone(status));
        slices.on_change(move |change| {
            reporter.endpoints_changed();
            mark.slice(change);
        });
        let (mark, reporter, own) = (Arc::clone(dirty), Arc::clone(status), own_node.to_owned());
        nodes.on_change(move |change| {
            let is_own = change.latest().metadata.name.as_deref() == Some(own.as_str());
            if is_own {
                reporter.set_node_eligible(!is_going(change.latest()));
            }
            let before = change.previous();
            if is_own && before.is_none_or(|before| zone_of(before) != zone_of(change.latest())) {
                mark.all();
            }
            if before.is_none_or(|before| protected::of_node(before) != protected::of_node(change.latest())) {
                mark.nodes();
            }
        });
        Self { services, slices, nodes, networks }
    }

    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.nodes.synced().await;
    }

    /// Removes what is marked for the next sync.
    pub fn pending(&self, dirty: &Dirty) -> Pending {
        let named = |services: Vec<Arc<Service>>| services.iter().map(|service| key(&service.metadata)).collect();
        dirty.take(|| named(self.services.list()), || named(self.services.by_index(CAPTURING, "")))
    }

    /// The networks of Services.
    pub fn service_networks(&self) -> BTreeSet<Cidr> {
        networks_of(&self.networks.list())
    }

    /// The Services of these names, the oldest first; of one that is gone, nothing but its name.
    pub fn by_age(&self, names: BTreeSet<String>) -> Vec<(String, Option<Arc<Service>>)> {
        let find = |name: &str| {
            let (namespace, short) = name.split_once('/').unwrap_or_default();
            self.services.get(namespace, short)
        };
        let mut found: Vec<_> = names
            .into_iter()
            .map(|name| {
                let service = find(&name);
                (name, service)
            })
            .collect();
        found.sort_by_key(|(_, service)| {
            service.as_ref().and_then(|service| service.metadata.creation_timestamp.as_ref().map(|time| time.0))
        });
        found
    }

    /// The slices of a Service.
    pub fn slices_of(&self, service: &str) -> Vec<Arc<EndpointSlice>> {
        self.slices.by_index(BY_SERVICE, service)
    }

    /// The zone of a node.
    pub fn zone(&self, node: &str) -> Option<String> {
        self.nodes.get("", node).and_then(|node| zone_of(&node))
    }
}

const BY_SERVICE: &str = "service";
/// Services with addresses other than their cluster's, all under one key.
const CAPTURING: &str = "capturing";

fn captures(service: &Service) -> Vec<String> {
    let external = service.spec.as_ref().and_then(|spec| spec.external_ips.as_ref());
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.and_then(|balancer| balancer.ingress.as_ref());
    let captures = external.is_some_and(|all| !all.is_empty()) || points.is_some_and(|all| !all.is_empty());
    captures.then(String::new).into_iter().collect()
}

pub fn networks_of(all: &[Arc<ServiceCIDR>]) -> BTreeSet<Cidr> {
    let texts = all.iter().filter_map(|one| one.spec.as_ref()?.cidrs.as_ref()).flatten();
    texts.filter_map(|text| text.parse().ok()).collect()
}

pub fn service_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let labels = slice.metadata.labels.iter().flatten();
    let name = labels.filter(|(key, _)| *key == "kubernetes.io/service-name").map(|(_, name)| name);
    name.map(|name| format!("{namespace}/{name}")).collect()
}

pub fn key(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> String {
    format!("{}/{}", metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn zone_of(node: &Node) -> Option<String> {
    node.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned()
}

/// Whether a node is about to be removed.
fn is_going(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    node.metadata.deletion_timestamp.is_some()
        || taints.into_iter().any(|taint| taint.key == "ToBeDeletedByClusterAutoscaler")
}

/// When the change in a slice happened, according to its trigger time annotation.
pub fn changed_at(slice: &EndpointSlice) -> Option<SystemTime> {
    let text = slice.metadata.annotations.as_ref()?.get("endpoints.kubernetes.io/last-change-trigger-time")?;
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}
