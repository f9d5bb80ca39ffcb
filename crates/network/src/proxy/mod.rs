//! The service proxy: forwards Service addresses to endpoints, by nftables.
//!
//! A change of a Service or its endpoints is computed for that Service only and reaches the kernel as one atomic
//! transaction. `frontends` computes addresses and endpoints of a Service, `rules` expresses them in nftables, `transaction`
//! is the difference between two sets of rules, `kernel` applies it. `slots` numbers endpoints. `status` serves health and
//! metrics.

mod claims;
mod conntrack;
mod debug;
mod dirty;
mod frontends;
mod health;
mod http;
pub mod kernel;
mod protected;
mod rules;
mod shared_elements;
mod slots;
mod status;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::jiff::Timestamp;
use knarr_client::Informers;

pub use frontends::{Endpoint, Frontend, NodeContext};
pub use kernel::KernelError;
pub use rules::Family;
pub use status::StatusSettings;

use crate::capture::Protected;
use crate::cidr::Cidr;
use claims::Claims;
use conntrack::Cleaner;
use dirty::{Dirty, Pending};
use health::HealthPorts;
use protected::Finder;
use rules::Rules;
use shared_elements::SharedElements;
use slots::Slots;
use status::Status;
use transaction::Transaction;

/// Delay before a failed transaction is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Configuration of the service proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Networks of all pods: traffic to a Service from other sources is masqueraded.
    pub cluster_cidrs: Vec<String>,
    /// Addresses that serve node ports; all local ones if empty.
    pub node_port_addresses: Vec<String>,
    /// Networks from which the built-in load balancer allocates; empty if it shares node addresses. `None` if another load
    /// balancer is in use, whose addresses are accepted as they are.
    pub balancer_pool: Option<Vec<Cidr>>,
    pub status: StatusSettings,
}

/// Keeps the kernel's rules in sync until dropped. `synced` is called once the first transaction is applied.
pub async fn run(informers: Informers, settings: Settings, synced: impl FnOnce() + Send) {
    let status = Status::new();
    let serving = status::serve(&settings, Arc::clone(&status));
    let cleaner = Arc::new(Cleaner::default());
    tokio::join!(serving, cleaner.run(), sync_loop(informers, settings.clone(), status, Arc::clone(&cleaner), synced));
}

async fn sync_loop(
    informers: Informers,
    settings: Settings,
    status: Arc<Status>,
    cleaner: Arc<Cleaner>,
    synced: impl FnOnce() + Send,
) {
    let dirty = Arc::new(Dirty::default());
    let services = informers.of::<Service>();
    let slices = informers.of::<EndpointSlice>();
    let nodes = informers.of::<Node>();
    let networks = informers.of::<ServiceCIDR>();
    let mark = Arc::clone(&dirty);
    // An address in a Service network is never an external address.
    networks.on_change(move |_| mark.all());
    slices.add_index(BY_SERVICE, service_of_slice);
    services.add_index(CAPTURING, captures);
    let (mark, reporter) = (Arc::clone(&dirty), Arc::clone(&status));
    services.on_change(move |change| {
        reporter.service_changed();
        mark.service(change);
    });
    let (mark, reporter) = (Arc::clone(&dirty), Arc::clone(&status));
    slices.on_change(move |change| {
        reporter.endpoints_changed();
        mark.slice(change);
    });
    let (mark, reporter, own) = (Arc::clone(&dirty), Arc::clone(&status), settings.node_name.clone());
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
    services.synced().await;
    slices.synced().await;
    nodes.synced().await;
    let mut proxy = Proxy {
        settings,
        known: HashMap::new(),
        health: HealthPorts::new(Arc::clone(&status)),
        cleaner,
        slots: Default::default(),
        hairpins: Default::default(),
        networks: BTreeSet::new(),
        protected: Arc::default(),
        installed: false,
    };
    let mut claims = Claims::default();
    let mut finder = Finder::default();
    let mut synced = Some(synced);
    loop {
        let named =
            |services: Vec<Arc<Service>>| services.iter().map(|service| key(&service.metadata)).collect::<Vec<_>>();
        let Pending { keys, changed_at, nodes: nodes_changed } =
            dirty.take(|| named(services.list()), || named(services.by_index(CAPTURING, "")));
        let of_services = networks_of(&networks.list());
        if nodes_changed {
            finder.forget_nodes();
        }
        if !keys.is_empty() || nodes_changed || !proxy.installed || of_services != proxy.networks {
            let started = Instant::now();
            let own = nodes.get("", &proxy.settings.node_name);
            let protected = finder.find(|| nodes.list(), &of_services, &proxy.settings.cluster_cidrs).await;
            let node_context = NodeContext {
                node: proxy.settings.node_name.clone(),
                zone: own.and_then(|node| zone_of(&node)),
                protected,
                balancer_pool: proxy.settings.balancer_pool.clone(),
            };
            let mut known: Vec<(String, Option<Arc<Service>>)> = keys
                .into_iter()
                .map(|name| {
                    let (namespace, short) = name.split_once('/').unwrap_or_default();
                    let service = services.get(namespace, short);
                    (name, service)
                })
                .collect();
            // Of two Services that claim the same external address, the older one gets it.
            known.sort_by_key(|(_, service)| {
                service.as_ref().and_then(|service| service.metadata.creation_timestamp.as_ref().map(|time| time.0))
            });
            let desired: Vec<(String, Vec<Frontend>)> = known
                .into_iter()
                .map(|(name, service)| {
                    let mut frontends = service
                        .map(|service| frontends::of(&service, &slices.by_index(BY_SERVICE, &name), &node_context))
                        .unwrap_or_default();
                    let waiting = claims.reconcile(&name, &mut frontends);
                    if !waiting.is_empty() {
                        dirty.add(waiting, None);
                    }
                    (name, frontends)
                })
                .collect();
            match proxy.apply(desired, of_services, node_context.protected).await {
                Ok(()) => {
                    status.synced(started.elapsed(), &changed_at);
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot update the service rules");
                    status.failed();
                    proxy.installed = false;
                    dirty.all();
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        dirty.changed().await;
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

pub(crate) fn networks_of(all: &[Arc<ServiceCIDR>]) -> BTreeSet<Cidr> {
    let texts = all.iter().filter_map(|one| one.spec.as_ref()?.cidrs.as_ref()).flatten();
    texts.filter_map(|text| text.parse().ok()).collect()
}

fn service_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let labels = slice.metadata.labels.iter().flatten();
    let name = labels.filter(|(key, _)| *key == "kubernetes.io/service-name").map(|(_, name)| name);
    name.map(|name| format!("{namespace}/{name}")).collect()
}

fn key(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> String {
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
fn changed_at(slice: &EndpointSlice) -> Option<SystemTime> {
    let text = slice.metadata.annotations.as_ref()?.get("endpoints.kubernetes.io/last-change-trigger-time")?;
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

struct Proxy {
    settings: Settings,
    /// The installed frontends, by Service.
    known: HashMap<String, Vec<Frontend>>,
    health: HealthPorts,
    /// Deletes what the kernel tracks of endpoints that are gone.
    cleaner: Arc<Cleaner>,
    /// Numbers of endpoints, by family.
    slots: [Slots; 2],
    /// Pods that may reach themselves, by family.
    hairpins: [SharedElements; 2],
    /// Service networks.
    networks: BTreeSet<Cidr>,
    /// What no Service may capture.
    protected: Arc<Protected>,
    /// Whether the tables exist and hold what `known` says.
    installed: bool,
}

impl Proxy {
    async fn apply(
        &mut self,
        desired: Vec<(String, Vec<Frontend>)>,
        networks: BTreeSet<Cidr>,
        protected: Arc<Protected>,
    ) -> Result<(), KernelError> {
        if !self.installed {
            self.slots = Default::default();
            self.hairpins = Default::default();
        }
        let kept = self.slots.iter_mut().zip(&mut self.hairpins);
        for (family, (slots, hairpins)) in [Family::V4, Family::V6].into_iter().zip(kept) {
            let settings = &self.settings;
            let mut rules = |frontends: &[Frontend]| -> Rules { rules::of(frontends, family, settings, slots) };
            let mut changes = Transaction::new(family);
            let mut text = String::new();
            let mut left = Vec::new();
            if !self.installed {
                text = rules::tables(family, settings);
                let changed: BTreeMap<&str, &[Frontend]> =
                    desired.iter().map(|(name, frontends)| (name.as_str(), frontends.as_slice())).collect();
                let kept = self.known.iter().filter(|(name, _)| !changed.contains_key(name.as_str()));
                let all = kept.map(|(_, frontends)| frontends.as_slice()).chain(changed.values().copied());
                for frontends in all {
                    let after = rules(frontends);
                    changes.add(&Rules::default(), &after);
                    hairpins.change(&BTreeSet::new(), &after.hairpins);
                }
            } else {
                for (name, frontends) in &desired {
                    let before = self.known.get(name).map(|frontends| rules(frontends)).unwrap_or_default();
                    let after = rules(frontends);
                    changes.add(&before, &after);
                    hairpins.change(&before.hairpins, &after.hairpins);
                    left.extend(before.runs.difference(&after.runs).cloned());
                }
            }
            changes.add_shared("hairpin", hairpins.take_difference());
            text.push_str(&changes.text());
            if !self.installed || networks != self.networks {
                text.push_str(&rules::set_networks(&networks, family));
            }
            if !self.installed || protected != self.protected {
                text.push_str(&rules::set_protected(&protected, family));
            }
            if !text.is_empty() {
                kernel::run(text).await?;
            }
            left.iter().for_each(|run| slots.release(run));
        }
        self.installed = true;
        self.networks = networks;
        self.protected = protected;
        let mut gone = BTreeSet::new();
        for (name, frontends) in desired {
            tracing::info!(target: "journey", step = "proxied", object = format!("services/{name}"));
            let before = match frontends.is_empty() {
                true => self.known.remove(&name),
                false => self.known.insert(name.clone(), frontends),
            };
            let now = self.known.get(&name).map(Vec::as_slice).unwrap_or_default();
            gone.extend(conntrack::stale(before.as_deref().unwrap_or_default(), now));
            self.health.set(&name, now);
        }
        self.cleaner.add(gone);
        Ok(())
    }
}

/// Whether an address is of a family.
fn is_of(address: &IpAddr, family: Family) -> bool {
    address.is_ipv4() == (family == Family::V4)
}
