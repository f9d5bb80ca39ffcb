//! The service proxy: addresses of services lead to their endpoints, by nftables.
//!
//! A change of a service or its endpoints is worked out for that service alone and reaches the kernel as one atomic
//! transaction. `fronts` says what a service offers and where it leads, `rules` says it in nftables' terms, `transaction`
//! is the difference between two such sayings, `kernel` carries it out. `slots` numbers endpoints. `status` tells others how
//! the proxy is doing.

mod answering;
mod claims;
mod conntrack;
mod fronts;
mod health;
pub mod kernel;
mod protected;
mod rules;
mod shared;
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
use knarr_client::{Change, Informers};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use fronts::{Endpoint, Front, Place, Protocol};
pub use kernel::KernelError;
pub use rules::Family;
pub use status::StatusSettings;

use crate::capture::Protected;
use crate::cidr::Cidr;
use claims::Claims;
use health::HealthPorts;
use rules::Rules;
use shared::Shared;
use slots::Slots;
use status::Status;
use transaction::Transaction;

/// A failed transaction is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Networks of all pods: traffic from elsewhere to a service is masqueraded.
    pub cluster_cidrs: Vec<String>,
    /// Addresses on which node ports answer; all local ones when empty.
    pub node_port_addresses: Vec<String>,
    /// Networks that the cluster's own load balancer gives addresses from; none when it shares those of nodes. `None` where
    /// another one is at work, whose addresses are taken as they are.
    pub balancer_pool: Option<Vec<Cidr>>,
    pub status: StatusSettings,
}

/// Keeps the kernel's rules true until dropped. `synced` is told once the first transaction is in.
pub async fn run(informers: Informers, settings: Settings, synced: impl FnOnce() + Send) {
    let status = Status::new();
    let serving = status::serve(settings.status.clone(), Arc::clone(&status));
    tokio::join!(serving, follow(informers, settings, status, synced));
}

async fn follow(informers: Informers, settings: Settings, status: Arc<Status>, synced: impl FnOnce() + Send) {
    let dirty = Arc::new(Dirty::default());
    let services = informers.of::<Service>();
    let slices = informers.of::<EndpointSlice>();
    let nodes = informers.of::<Node>();
    let networks = informers.of::<ServiceCIDR>();
    let mark = Arc::clone(&dirty);
    // What is a service's network is no external address.
    networks.on_change(move |_| mark.all());
    slices.add_index(BY_SERVICE, service_of_slice);
    let (mark, told) = (Arc::clone(&dirty), Arc::clone(&status));
    services.on_change(move |change| {
        told.service_changed();
        mark.service(change);
    });
    let (mark, told) = (Arc::clone(&dirty), Arc::clone(&status));
    slices.on_change(move |change| {
        told.endpoints_changed();
        mark.slice(change);
    });
    let (mark, told, own) = (Arc::clone(&dirty), Arc::clone(&status), settings.node_name.clone());
    nodes.on_change(move |change| {
        let is_own = change.latest().metadata.name.as_deref() == Some(own.as_str());
        if is_own {
            told.set_node_eligible(!is_going(change.latest()));
        }
        let is_news = |before: &Node| {
            protected::of_node(before) != protected::of_node(change.latest())
                || (is_own && zone_of(before) != zone_of(change.latest()))
        };
        if change.previous().is_none_or(|before| is_news(before)) {
            mark.all();
        }
    });
    services.synced().await;
    slices.synced().await;
    nodes.synced().await;
    let mut proxy = Proxy {
        settings,
        known: HashMap::new(),
        health: HealthPorts::default(),
        slots: Default::default(),
        hairpins: Default::default(),
        networks: BTreeSet::new(),
        protected: Protected::default(),
        installed: false,
    };
    let mut claims = Claims::default();
    let mut synced = Some(synced);
    loop {
        let (keys, changed_at) = dirty.take(|| services.list().iter().map(|service| key(&service.metadata)).collect());
        let of_services = networks_of(&networks.list());
        if !keys.is_empty() || !proxy.installed || of_services != proxy.networks {
            let started = Instant::now();
            let all_nodes = nodes.list();
            let own = nodes.get("", &proxy.settings.node_name);
            let protected = protected::find(&all_nodes, &of_services, &proxy.settings.cluster_cidrs).await;
            let place = Place {
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
            // Of two that want the same external address the older one gets it.
            known.sort_by_key(|(_, service)| {
                service.as_ref().and_then(|service| service.metadata.creation_timestamp.as_ref().map(|time| time.0))
            });
            let wanted: Vec<(String, Vec<Front>)> = known
                .into_iter()
                .map(|(name, service)| {
                    let mut fronts = service
                        .map(|service| fronts::of(&service, &slices.by_index(BY_SERVICE, &name), &place))
                        .unwrap_or_default();
                    let waiting = claims.settle(&name, &mut fronts);
                    if !waiting.is_empty() {
                        dirty.add(waiting, None);
                    }
                    (name, fronts)
                })
                .collect();
            match proxy.apply(wanted, of_services, place.protected).await {
                Ok(()) => {
                    status.synced(started.elapsed(), &changed_at);
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "the service rules could not be changed");
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

/// Whether a node is about to be taken away.
fn is_going(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    node.metadata.deletion_timestamp.is_some()
        || taints.into_iter().any(|taint| taint.key == "ToBeDeletedByClusterAutoscaler")
}

/// When the change happened that a slice brings, as its maker says.
fn changed_at(slice: &EndpointSlice) -> Option<SystemTime> {
    let text = slice.metadata.annotations.as_ref()?.get("endpoints.kubernetes.io/last-change-trigger-time")?;
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// Services that may have changed since they were last looked at.
#[derive(Default)]
struct Dirty {
    marked: Mutex<Marked>,
    notify: Notify,
}

#[derive(Default)]
struct Marked {
    keys: BTreeSet<String>,
    all: bool,
    changed_at: Vec<SystemTime>,
}

impl Dirty {
    fn service(&self, change: &Change<Service>) {
        self.add([key(&change.latest().metadata)], None);
    }

    fn slice(&self, change: &Change<EndpointSlice>) {
        let before = change.previous().map(|slice| service_of_slice(slice)).unwrap_or_default();
        let moment = changed_at(change.latest());
        let is_news = change.previous().is_some_and(|before| changed_at(before) != moment);
        self.add(before.into_iter().chain(service_of_slice(change.latest())), moment.filter(|_| is_news));
    }

    fn add(&self, keys: impl IntoIterator<Item = String>, changed_at: Option<SystemTime>) {
        let mut marked = self.marked.lock();
        marked.keys.extend(keys);
        marked.changed_at.extend(changed_at);
        self.notify.notify_one();
    }

    fn all(&self) {
        self.marked.lock().all = true;
        self.notify.notify_one();
    }

    fn take(&self, every: impl FnOnce() -> Vec<String>) -> (BTreeSet<String>, Vec<SystemTime>) {
        let mut taken = std::mem::take(&mut *self.marked.lock());
        if taken.all {
            taken.keys.extend(every());
        }
        (taken.keys, taken.changed_at)
    }

    async fn changed(&self) {
        self.notify.notified().await;
    }
}

struct Proxy {
    settings: Settings,
    /// What the kernel holds, by service.
    known: HashMap<String, Vec<Front>>,
    health: HealthPorts,
    /// Numbers of endpoints, by family.
    slots: [Slots; 2],
    /// Pods that may reach themselves, by family.
    hairpins: [Shared; 2],
    /// Networks that services get addresses from.
    networks: BTreeSet<Cidr>,
    /// What no service captures.
    protected: Protected,
    /// Whether the tables are there and hold what `known` says.
    installed: bool,
}

impl Proxy {
    async fn apply(
        &mut self,
        wanted: Vec<(String, Vec<Front>)>,
        networks: BTreeSet<Cidr>,
        protected: Protected,
    ) -> Result<(), KernelError> {
        if !self.installed {
            self.slots = Default::default();
            self.hairpins = Default::default();
        }
        let kept = self.slots.iter_mut().zip(&mut self.hairpins);
        for (family, (slots, hairpins)) in [Family::V4, Family::V6].into_iter().zip(kept) {
            let settings = &self.settings;
            let mut rules = |fronts: &[Front]| -> Rules { rules::of(fronts, family, settings, slots) };
            let mut changes = Transaction::new(family);
            let mut text = String::new();
            let mut left = Vec::new();
            if !self.installed {
                text = rules::tables(family, settings);
                let changed: BTreeMap<&str, &[Front]> =
                    wanted.iter().map(|(name, fronts)| (name.as_str(), fronts.as_slice())).collect();
                let kept = self.known.iter().filter(|(name, _)| !changed.contains_key(name.as_str()));
                let all = kept.map(|(_, fronts)| fronts.as_slice()).chain(changed.values().copied());
                for fronts in all {
                    let after = rules(fronts);
                    changes.add(&Rules::default(), &after);
                    hairpins.change(&BTreeSet::new(), &after.hairpins);
                }
            } else {
                for (name, fronts) in &wanted {
                    let before = self.known.get(name).map(|fronts| rules(fronts)).unwrap_or_default();
                    let after = rules(fronts);
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
        let mut gone = Vec::new();
        for (name, fronts) in wanted {
            tracing::info!(target: "journey", step = "proxied", object = format!("services/{name}"));
            let before = match fronts.is_empty() {
                true => self.known.remove(&name),
                false => self.known.insert(name.clone(), fronts),
            };
            let now = self.known.get(&name).map(Vec::as_slice).unwrap_or_default();
            gone.extend(conntrack::stale(before.as_deref().unwrap_or_default(), now));
            self.health.set(&name, now);
        }
        conntrack::remove(gone).await;
        Ok(())
    }
}

/// Whether an address is of a family.
fn is_of(address: &IpAddr, family: Family) -> bool {
    address.is_ipv4() == (family == Family::V4)
}
