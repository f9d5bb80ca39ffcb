//! Exclusive resources of containers: whole CPUs, memory on chosen NUMA nodes, and plugin devices.
//!
//! Resources are allocated once, before anything of the pod starts, and released when it has terminated. Grants are
//! stored on disk, so that a restarted kubelet knows them. The policies are pure functions in the files next to this
//! one.

mod affinity;
mod checkpoint;
mod choice;
mod cpu_set;
mod cpus;
pub mod devices;
mod memory;
pub mod pod_resources;
mod topology;
pub(crate) mod unary;

pub use affinity::{Policy as TopologyPolicy, Scope as TopologyScope};
pub use cpu_set::NumberSet;
pub use memory::Bytes;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use knarr_client::quantity::{Quantity as Amount, scale};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::pod::{self, Role};
use checkpoint::Checkpoint;
use choice::{Choice, ResourceRequest, requested_devices};
use devices::Devices;
use devices::plugin::Allocated;
use memory::Share;
use topology::Layout;

/// How resources are assigned; by default none are exclusive.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub static_cpus: bool,
    pub static_memory: bool,
    pub topology: TopologyPolicy,
    pub scope: TopologyScope,
    /// Thousandths of a CPU reserved for the system; the static CPU policy needs some.
    pub reserved_cpu_milli: i64,
    /// Reserves exactly these CPUs instead.
    pub reserved_cpus: Option<NumberSet>,
    /// Memory reserved for the system, by NUMA node.
    pub reserved_memory: BTreeMap<u32, Bytes>,
}

/// Why a pod's resources cannot be allocated, for its status.
#[derive(Debug, PartialEq, Eq)]
pub struct AllocationRefusal {
    pub reason: &'static str,
    pub message: String,
}

impl AllocationRefusal {
    fn unexpected(why: impl std::fmt::Display) -> Self {
        let message = format!("Allocate failed due to {why}, which is unexpected");
        Self { reason: "UnexpectedAdmissionError", message }
    }
}

/// The exclusive resources of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<NumberSet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Share>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, DeviceGrant>,
}

/// The devices of one resource, and what a container needs to use them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceGrant {
    pub ids: BTreeSet<String>,
    pub use_with: Allocated,
}

type PodGrants = BTreeMap<String, Grant>;

/// The node's exclusive resources and who has them.
pub struct Resources {
    policies: Policies,
    layout: Layout,
    reserved_cpus: NumberSet,
    pub devices: Arc<Devices>,
    /// By the pod's uid.
    grants: Mutex<BTreeMap<String, PodGrants>>,
    /// Held while a pod's resources are chosen, which includes calls to plugins: two pods must not choose the same.
    choosing: tokio::sync::Mutex<()>,
    checkpoint: Checkpoint,
    /// Notified when the shared CPU pool changes.
    pub shared_changed: Notify,
    pub(crate) metrics: Arc<Counters>,
}

impl Resources {
    /// `root` is where the node keeps its state.
    pub(crate) fn open(root: &Path, policies: Policies, all_memory: u64, metrics: Arc<Counters>) -> io::Result<Self> {
        let layout = topology::read(Path::new("/sys/devices/system"), all_memory);
        Self::with_layout(root, policies, layout, metrics)
    }

    fn with_layout(root: &Path, mut policies: Policies, layout: Layout, metrics: Arc<Counters>) -> io::Result<Self> {
        let reserved_cpus = match &policies.reserved_cpus {
            Some(named) => named.common(&layout.all()),
            None => cpus::reserved(&layout, policies.reserved_cpu_milli),
        };
        if policies.static_cpus && reserved_cpus.is_empty() {
            tracing::error!(
                "the static CPU policy needs CPU reserved for the system; no container gets exclusive CPUs"
            );
            policies.static_cpus = false;
        }
        let compares_nodes = policies.static_memory || policies.topology != TopologyPolicy::None;
        if compares_nodes && layout.nodes().len() > affinity::MAX_NODES {
            tracing::error!(
                "topology and memory policies support at most {} NUMA nodes; nothing is aligned on the {} of this host",
                affinity::MAX_NODES,
                layout.nodes().len()
            );
            policies.static_memory = false;
            policies.topology = TopologyPolicy::None;
        }
        let checkpoint = Checkpoint::new(root);
        let grants: BTreeMap<String, PodGrants> = checkpoint.load()?;
        let devices = Arc::new(Devices::default());
        for (resource, grant) in grants.values().flat_map(BTreeMap::values).flat_map(|grant| &grant.devices) {
            devices.expect(resource, grant.ids.iter().cloned(), Instant::now());
        }
        Ok(Self {
            policies,
            layout,
            reserved_cpus,
            devices,
            grants: Mutex::new(grants),
            choosing: tokio::sync::Mutex::default(),
            checkpoint,
            shared_changed: Notify::new(),
            metrics,
        })
    }

    /// Whether this pod needs an allocation.
    pub fn needs_allocation(&self, pod: &Pod) -> bool {
        self.policies.static_cpus
            || self.policies.static_memory
            || containers(pod).any(|(_, container)| requested_devices(container).next().is_some())
    }

    /// Allocates the resources of all of a pod's containers, or none.
    pub async fn allocate(&self, pod: &Pod) -> Result<(), AllocationRefusal> {
        let started = std::time::Instant::now();
        let allocated = self.choose(pod).await;
        let took = started.elapsed().as_secs_f64() * 1e3;
        self.metrics.observe_value("kubelet_topology_manager_admission_duration_ms", &[], took);
        self.metrics.count("kubelet_topology_manager_admission_requests_total", &[]);
        if allocated.is_err() {
            self.metrics.count("kubelet_topology_manager_admission_errors_total", &[]);
        }
        allocated
    }

    async fn choose(&self, pod: &Pod) -> Result<(), AllocationRefusal> {
        let _guard = self.choosing.lock().await;
        let uid = pod::uid(pod);
        if self.grants.lock().contains_key(uid) {
            return Ok(());
        }
        let mut choice = Choice::new(self);
        let whole = match self.policies.scope {
            TopologyScope::Pod => Some(choice.place(&ResourceRequest::of_pod(pod))?),
            TopologyScope::Container => None,
        };
        for (role, container) in containers(pod) {
            let request = ResourceRequest::of(pod, container);
            let place = match &whole {
                Some(place) => place.clone(),
                None => choice.place(&request)?,
            };
            let grant = choice.allocate(&request, place.nodes.as_ref()).await?;
            choice.record(role, &container.name, grant);
        }
        let own = choice.own;
        let exclusive = own.values().any(|grant| grant.cpus.is_some());
        if own.values().any(|grant| *grant != Grant::default()) {
            self.grants.lock().insert(uid.to_string(), own);
            // After a restart, others would get what was not stored.
            if let Err(error) = self.store() {
                self.grants.lock().remove(uid);
                return Err(AllocationRefusal::unexpected(format!("could not write the checkpoint: {error}")));
            }
        }
        if exclusive {
            self.shared_changed.notify_one();
        }
        Ok(())
    }

    /// Releases a pod's resources.
    pub fn release(&self, uid: &str) {
        let Some(gone) = self.grants.lock().remove(uid) else { return };
        if let Err(error) = self.store() {
            tracing::error!(%error, "cannot store the resource grants");
        }
        if gone.values().any(|grant| grant.cpus.is_some()) {
            self.shared_changed.notify_one();
        }
    }

    /// Releases the resources of pods that are gone.
    pub fn release_unknown(&self, is_known: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.grants.lock().keys().filter(|uid| !is_known(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.release(uid));
    }

    /// The grant of a container; empty if it has none.
    pub fn grant(&self, uid: &str, container: &str) -> Grant {
        self.grants.lock().get(uid).and_then(|own| own.get(container)).cloned().unwrap_or_default()
    }

    /// The health of a pod's devices, by container.
    pub fn health_of(&self, uid: &str) -> BTreeMap<String, Vec<ResourceStatus>> {
        let grants = self.grants.lock();
        let with_devices = grants.get(uid).into_iter().flatten().filter(|(_, grant)| !grant.devices.is_empty());
        let status = |(resource, grant): (&String, &DeviceGrant)| {
            let health = |id: &String| ResourceHealth {
                resource_id: id.clone(),
                health: Some(if self.devices.is_unhealthy(resource, id) { "Unhealthy" } else { "Healthy" }.to_owned()),
                ..Default::default()
            };
            ResourceStatus { name: resource.clone(), resources: Some(grant.ids.iter().map(health).collect()) }
        };
        with_devices.map(|(name, grant)| (name.clone(), grant.devices.iter().map(status).collect())).collect()
    }

    /// The CPUs of a container in the kernel's notation; empty if any.
    pub fn cpus_of(&self, uid: &str, container: &str) -> String {
        match (self.grant(uid, container).cpus, self.policies.static_cpus) {
            (Some(own), _) => own.to_string(),
            (None, true) => self.shared_cpus().to_string(),
            (None, false) => String::new(),
        }
    }

    /// The CPUs that containers without exclusive CPUs share.
    pub fn shared_cpus(&self) -> NumberSet {
        self.layout.all().without(&self.exclusive_cpus())
    }

    /// Whether containers can get exclusive CPUs.
    pub fn has_static_cpus(&self) -> bool {
        self.policies.static_cpus
    }

    /// Notifies the plugins of a container's devices that it is about to start.
    pub async fn before_start(&self, grant: &Grant) -> Result<(), String> {
        for (resource, own) in &grant.devices {
            if let Some(plugin) = self.devices.kind(resource).and_then(|kind| kind.plugin) {
                plugin.before_start(&own.ids).await.map_err(|error| error.message().to_string())?;
            }
        }
        Ok(())
    }

    fn exclusive_cpus(&self) -> NumberSet {
        let grants = self.grants.lock();
        let given = grants.values().flat_map(BTreeMap::values).filter_map(|grant| grant.cpus.as_ref());
        given.fold(NumberSet::default(), |sum, own| sum.union(own))
    }

    /// Counts an allocation request and its outcome.
    fn count(&self, manager: &str, succeeded: bool) {
        let (requests, errors) = match manager {
            "cpu_manager" => ("kubelet_cpu_manager_pinning_requests_total", "kubelet_cpu_manager_pinning_errors_total"),
            _ => ("kubelet_memory_manager_pinning_requests_total", "kubelet_memory_manager_pinning_errors_total"),
        };
        self.metrics.count(requests, &[]);
        if !succeeded {
            self.metrics.count(errors, &[]);
        }
    }

    /// The number of exclusive and of shared CPUs; zero without the static policy.
    pub fn cpu_counts(&self) -> (usize, usize) {
        match self.policies.static_cpus {
            true => (self.exclusive_cpus().len(), self.shared_cpus().len()),
            false => (0, 0),
        }
    }

    fn assigned_devices(&self, resource: &str) -> BTreeSet<String> {
        let grants = self.grants.lock();
        let given = grants.values().flat_map(BTreeMap::values).filter_map(|grant| grant.devices.get(resource));
        given.flat_map(|grant| grant.ids.iter().cloned()).collect()
    }

    fn store(&self) -> io::Result<()> {
        self.checkpoint.save(&*self.grants.lock())
    }
}

/// Init containers in their order, then all others.
fn containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    pod::init_containers(pod).chain(pod::main_containers(pod).map(|container| (Role::Main, container)))
}

/// Parses the reserved memory setting: `0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1Gi`.
pub fn parse_reserved_memory(text: &str) -> Option<BTreeMap<u32, Bytes>> {
    let node = |part: &str| {
        let (node, amounts) = part.split_once(':')?;
        let amount = |one: &str| {
            let (name, amount) = one.split_once('=')?;
            Some((
                name.trim().to_string(),
                u64::try_from(Amount::parse(amount.trim()).ok()?.saturating_value(scale::ONE)).ok()?,
            ))
        };
        Some((node.trim().parse().ok()?, amounts.split(',').map(amount).collect::<Option<Bytes>>()?))
    };
    text.split(';').filter(|part| !part.trim().is_empty()).map(node).collect()
}

#[cfg(test)]
mod tests;
