//! Chooses CPUs, memory and devices for one pod, aligned on NUMA nodes. The choice takes effect when [`Resources`]
//! records it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::quantity::value;

use super::affinity::{Hint, Offers, agree};
use super::cpu_set::NumberSet;
use super::devices::DeviceResource;
use super::memory::{Bytes, MemoryPool};
use super::{AllocationRefusal, DeviceGrant, Grant, PodGrants, Resources, TopologyPolicy, containers, cpus, memory};
use crate::pod::{self, Role};

/// Requested extended resources by name, which device plugins provide.
pub fn requested_devices(container: &Container) -> impl Iterator<Item = (String, usize)> + '_ {
    let limits = pod::limits(container).iter().flatten();
    limits
        .filter(|(name, _)| name.contains('/') && !name.starts_with("kubernetes.io/"))
        .map(|(name, amount)| (name.clone(), usize::try_from(value(amount)).unwrap_or(0)))
        .filter(|(_, count)| *count > 0)
}

/// The exclusive resources that a container or a whole pod requests.
#[derive(Default)]
pub struct ResourceRequest {
    cpus: usize,
    memory: Bytes,
    devices: BTreeMap<String, usize>,
}

impl ResourceRequest {
    pub fn of(pod: &Pod, container: &Container) -> Self {
        Self {
            cpus: cpus::exclusive(pod, container),
            memory: memory::requested(pod, container),
            devices: requested_devices(container).collect(),
        }
    }

    /// Init containers run one after the other, so the largest counts; all others run together.
    pub fn of_pod(pod: &Pod) -> Self {
        let (mut together, mut largest) = (Self::default(), Self::default());
        for (role, container) in containers(pod) {
            let one = Self::of(pod, container);
            match role {
                Role::Init => largest.combine(one, usize::max, u64::max),
                _ => together.combine(one, |a, b| a + b, |a, b| a + b),
            }
        }
        together.combine(largest, usize::max, u64::max);
        together
    }

    fn combine(&mut self, other: Self, count: fn(usize, usize) -> usize, bytes: fn(u64, u64) -> u64) {
        self.cpus = count(self.cpus, other.cpus);
        for (name, amount) in other.memory {
            let own = self.memory.entry(name).or_default();
            *own = bytes(*own, amount);
        }
        for (name, amount) in other.devices {
            let own = self.devices.entry(name).or_default();
            *own = count(*own, amount);
        }
    }
}

/// The choice of one pod's resources in progress.
pub struct Choice<'a> {
    resources: &'a Resources,
    pub own: PodGrants,
    /// Resources of init containers, which finish before the next container starts.
    reusable: Grant,
}

impl<'a> Choice<'a> {
    pub fn new(resources: &'a Resources) -> Self {
        Self { resources, own: PodGrants::new(), reusable: Grant::default() }
    }

    /// The NUMA nodes that can provide the whole request.
    pub fn place(&self, request: &ResourceRequest) -> Result<Hint, AllocationRefusal> {
        let resources = self.resources;
        let policies = &resources.policies;
        if policies.topology == TopologyPolicy::None {
            // Hosts with many nodes, such as those whose GPUs have memory of their own, have far too many sets of them.
            return Ok(Hint { nodes: None, preferred: true });
        }
        let mut offers: Vec<Offers> = Vec::new();
        if policies.static_cpus && request.cpus > 0 {
            offers.push(cpus::offers(&resources.layout, &self.available_cpus(), request.cpus));
        }
        if policies.static_memory && !request.memory.is_empty() {
            let grants = resources.grants.lock();
            offers.push(self.memory_pool(&grants).offers(&request.memory));
        }
        for (resource, count) in &request.devices {
            let Some(kind) = resources.devices.kind(resource) else { continue };
            let free = self.free_devices(resource, &kind);
            offers.push(kind.offers(&free, *count, &resources.layout.nodes()));
        }
        match agree(policies.topology, &offers, &resources.layout.nodes()) {
            (place, true) => Ok(place),
            (_, false) => Err(AllocationRefusal {
                reason: "TopologyAffinityError",
                message: "Resources cannot be allocated with Topology locality".to_string(),
            }),
        }
    }

    pub async fn allocate(
        &self,
        request: &ResourceRequest,
        near: Option<&NumberSet>,
    ) -> Result<Grant, AllocationRefusal> {
        let resources = self.resources;
        let mut grant = Grant::default();
        if resources.policies.static_cpus && request.cpus > 0 {
            let cpus = self.allocate_cpus(request.cpus, near);
            resources.count("cpu_manager", cpus.is_ok());
            grant.cpus = Some(cpus?);
        }
        if resources.policies.static_memory && !request.memory.is_empty() {
            let grants = resources.grants.lock();
            let memory = self.memory_pool(&grants).allocate(&request.memory, near);
            resources.count("memory_manager", memory.is_some());
            grant.memory =
                Some(memory.ok_or_else(|| AllocationRefusal::unexpected("no NUMA nodes with enough free memory"))?);
        }
        for (resource, count) in &request.devices {
            if let Some(kind) = resources.devices.kind(resource) {
                grant.devices.insert(resource.clone(), self.allocate_devices(resource, &kind, *count, near).await?);
            }
        }
        Ok(grant)
    }

    fn allocate_cpus(&self, count: usize, near: Option<&NumberSet>) -> Result<NumberSet, AllocationRefusal> {
        let layout = &self.resources.layout;
        let reusable = self.reusable.cpus.clone().unwrap_or_default();
        let available = if reusable.len() >= count { reusable } else { self.available_cpus() };
        cpus::pick_near(layout, &available, count, near).ok_or_else(|| {
            let text = "not enough cpus available to satisfy request";
            AllocationRefusal::unexpected(format!("{text}: requested={count}, available={}", available.len()))
        })
    }

    fn available_cpus(&self) -> NumberSet {
        let resources = self.resources;
        let own = self.own.values().filter_map(|grant| grant.cpus.as_ref());
        let used = own.fold(resources.exclusive_cpus(), |sum, one| sum.union(one)).union(&resources.reserved_cpus);
        resources.layout.all().without(&used).union(&self.reusable.cpus.clone().unwrap_or_default())
    }

    /// The memory pool with all grants, but without the reusable ones of init containers.
    fn memory_pool<'g>(&'g self, grants: &'g BTreeMap<String, PodGrants>) -> MemoryPool<'g> {
        let others = grants.values().flat_map(BTreeMap::values);
        let given = others.chain(self.own.values()).filter_map(|grant| grant.memory.as_ref());
        let given = given.filter(|share| self.reusable.memory.as_ref() != Some(*share)).collect();
        MemoryPool { layout: &self.resources.layout, reserved: &self.resources.policies.reserved_memory, grants: given }
    }

    fn free_devices(&self, resource: &str, kind: &DeviceResource) -> BTreeSet<String> {
        let mut used = self.resources.assigned_devices(resource);
        let own = self.own.values().filter_map(|grant| grant.devices.get(resource));
        used.extend(own.flat_map(|grant| grant.ids.iter().cloned()));
        let reusable = self.reusable.devices.get(resource).map(|grant| grant.ids.clone()).unwrap_or_default();
        let healthy = kind.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id.clone());
        healthy.filter(|id| !used.contains(id) || reusable.contains(id)).collect()
    }

    async fn allocate_devices(
        &self,
        resource: &str,
        kind: &DeviceResource,
        count: usize,
        near: Option<&NumberSet>,
    ) -> Result<DeviceGrant, AllocationRefusal> {
        let Some(plugin) = &kind.plugin else {
            return Err(AllocationRefusal::unexpected(format!("cannot allocate unregistered device {resource}")));
        };
        let free = self.free_devices(resource, kind);
        if free.is_empty() && !kind.devices.values().any(|device| device.healthy) {
            let text = "no healthy devices present; cannot allocate unhealthy devices";
            return Err(AllocationRefusal::unexpected(format!("{text} {resource}")));
        }
        let reusable = self.reusable.devices.get(resource).map(|grant| grant.ids.clone()).unwrap_or_default();
        let must: BTreeSet<String> = reusable.intersection(&free).take(count).cloned().collect();
        let Some(mut ids) = kind.pick(&free, &must, count, near) else {
            let text = format!("requested number of devices unavailable for {resource}");
            return Err(AllocationRefusal::unexpected(format!(
                "{text}. Requested: {count}, Available: {}",
                free.len()
            )));
        };
        let local = near.map(|near| kind.near(&free, near)).filter(|local| local.len() >= count);
        let preferred = plugin.preferred(local.as_ref().unwrap_or(&free), &must, count).await;
        match preferred {
            Ok(Some(preferred))
                if preferred.len() == count && preferred.is_subset(&free) && preferred.is_superset(&must) =>
            {
                ids = preferred;
            }
            Ok(_) => {}
            Err(error) => return Err(AllocationRefusal::unexpected(describe(&error))),
        }
        let started = std::time::Instant::now();
        let allocated = plugin.allocate(&ids).await;
        let labels = [("resource_name", resource)];
        let metrics = &self.resources.metrics;
        metrics.observe("kubelet_device_plugin_alloc_duration_seconds", &labels, started.elapsed());
        let use_with = allocated.map_err(|error| AllocationRefusal::unexpected(describe(&error)))?;
        Ok(DeviceGrant { ids, use_with })
    }

    /// Records a container's grant. Later containers may reuse an init container's resources; resources of other
    /// containers are no longer reusable.
    pub fn record(&mut self, role: Role, name: &str, grant: Grant) {
        if role == Role::Init {
            let cpus = [&self.reusable.cpus, &grant.cpus].into_iter().flatten();
            self.reusable.cpus = cpus.cloned().reduce(|sum, own| sum.union(&own));
            self.reusable.memory = grant.memory.clone().or(self.reusable.memory.take());
            for (resource, own) in &grant.devices {
                self.reusable.devices.entry(resource.clone()).or_default().ids.extend(own.ids.iter().cloned());
            }
        } else {
            if let (Some(reusable), Some(own)) = (&self.reusable.cpus, &grant.cpus) {
                self.reusable.cpus = Some(reusable.without(own));
            }
            self.reusable.memory = None;
            for (resource, own) in &grant.devices {
                if let Some(reusable) = self.reusable.devices.get_mut(resource) {
                    reusable.ids.retain(|id| !own.ids.contains(id));
                }
            }
        }
        self.own.insert(name.to_string(), grant);
    }
}

fn describe(error: &tonic::Status) -> String {
    format!("rpc error: code = {:?} desc = {}", error.code(), error.message())
}
