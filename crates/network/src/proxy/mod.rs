//! The service proxy: forwards Service addresses to endpoints, by nftables.
//!
//! A change of a Service or its endpoints is computed for that Service only and reaches the kernel as one atomic
//! transaction. `objects` watches the API and marks in `dirty` what changed, `frontends` computes addresses and endpoints of a
//! Service, `rules` expresses them in nftables, `transaction` is the difference between two sets of rules, `installed` is what
//! the kernel has, `kernel` applies a transaction. `slots` numbers endpoints. `status` serves health and metrics.

mod claims;
mod conntrack;
mod debug;
mod dirty;
mod frontends;
mod health;
mod http;
mod installed;
pub mod kernel;
mod metrics;
mod objects;
mod protected;
mod rules;
mod shared_elements;
mod slots;
mod status;
mod transaction;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use knarr_client::Informers;

pub use frontends::{Endpoint, Frontend, NodeContext};
pub use kernel::KernelError;
pub(crate) use objects::networks_of;
pub use rules::Family;
pub use status::StatusSettings;

use crate::cidr::Cidr;
use claims::Claims;
use conntrack::Cleaner;
use dirty::{Dirty, Pending};
use health::HealthPorts;
use installed::{Desired, Installed};
use objects::Objects;
use protected::Finder;
use status::Status;

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
    let objects = Objects::watch(&informers, &settings.node_name, &dirty, &status);
    objects.synced().await;
    let mut installed = Installed::new(settings, HealthPorts::new(Arc::clone(&status)), cleaner);
    let mut claims = Claims::default();
    let mut finder = Finder::default();
    let mut synced = Some(synced);
    loop {
        let Pending { keys, changed_at, nodes: nodes_changed } = objects.pending(&dirty);
        let networks = objects.service_networks();
        if nodes_changed {
            finder.forget_nodes();
        }
        if !keys.is_empty() || nodes_changed || !installed.is_current || networks != installed.networks {
            let started = Instant::now();
            let settings = &installed.settings;
            let protected = finder.find(|| objects.nodes.list(), &networks, &settings.cluster_cidrs).await;
            let node_context = NodeContext {
                node: settings.node_name.clone(),
                zone: objects.zone(&settings.node_name),
                protected: Arc::clone(&protected),
                balancer_pool: settings.balancer_pool.clone(),
            };
            let frontends = desired_frontends(&objects, keys, &node_context, &mut claims, &dirty);
            match installed.apply(Desired { frontends, networks, protected }).await {
                Ok(()) => {
                    status.synced(started.elapsed(), &changed_at);
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot update the service rules");
                    status.failed();
                    installed.is_current = false;
                    dirty.all();
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        dirty.changed().await;
    }
}

/// The frontends of the Services of these names. Of two Services that claim the same external address, the older one gets
/// it; one that waited for an address that is free now is marked for the next sync.
fn desired_frontends(
    objects: &Objects,
    names: BTreeSet<String>,
    node_context: &NodeContext,
    claims: &mut Claims,
    dirty: &Dirty,
) -> Vec<(String, Vec<Frontend>)> {
    let mut desired = Vec::new();
    for (name, service) in objects.by_age(names) {
        let mut frontends =
            service.map(|service| frontends::of(&service, &objects.slices_of(&name), node_context)).unwrap_or_default();
        let waiting = claims.reconcile(&name, &mut frontends);
        if !waiting.is_empty() {
            dirty.add(waiting, None);
        }
        desired.push((name, frontends));
    }
    desired
}

/// Whether an address is of a family.
fn is_of(address: &IpAddr, family: Family) -> bool {
    address.is_ipv4() == (family == Family::V4)
}
