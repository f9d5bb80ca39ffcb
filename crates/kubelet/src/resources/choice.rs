//! Choosing for one pod: what it wishes for, the NUMA nodes on which that can lie together, and which CPUs, memory and
//! devices it gets there. What was chosen counts once [`Resources`] notes it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::quantity::value;

use super::affinity::{Hint, Offers, agree};
use super::cpu_set::NumberSet;
use super::devices::Kind;
use super::memory::{Book, Bytes};
use super::{DeviceGrant, Grant, OfPod, Refused, Resources, containers, cpus, memory};
use crate::pod::{self, Role};

/// Extended resources by name, which is what plugins bring.
pub fn wanted_devices(container: &Container) -> impl Iterator<Item = (String, usize)> + '_ {
    let limits = pod::limits(container).iter().flatten();
    limits
        .filter(|(name, _)| name.contains('/') && !name.starts_with("kubernetes.io/"))
        .map(|(name, amount)| (name.clone(), usize::try_from(value(amount)).unwrap_or(0)))
        .filter(|(_, count)| *count > 0)
}

/// What a container, or a pod as a whole, would like to have.
#[derive(Default)]
pub struct Wish {
    cpus: usize,
    memory: Bytes,
    devices: BTreeMap<String, usize>,
}

impl Wish {
    pub fn of(pod: &Pod, container: &Container) -> Self {
        Self {
            cpus: cpus::exclusive(pod, container),
            memory: memory::wanted(pod, container),
            devices: wanted_devices(container).collect(),
        }
    }

    /// Init containers run one after the other, so the largest of them counts; all others run together.
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

/// One pod's resources while they are chosen.
pub struct Choice<'a> {
    resources: &'a Resources,
    pub own: OfPod,
    /// What init containers had that are over before the next container starts.
    reusable: Grant,
}

impl<'a> Choice<'a> {
    pub fn new(resources: &'a Resources) -> Self {
        Self { resources, own: OfPod::new(), reusable: Grant::default() }
    }

    /// The NUMA nodes on which all that is wished for can lie together.
    pub fn place(&self, wish: &Wish) -> Result<Hint, Refused> {
        let resources = self.resources;
        let policies = &resources.policies;
        let mut offers: Vec<Offers> = Vec::new();
        if policies.static_cpus && wish.cpus > 0 {
            offers.push(cpus::offers(&resources.layout, &self.available_cpus(), wish.cpus));
        }
        if policies.static_memory && !wish.memory.is_empty() {
            let grants = resources.grants.lock();
            offers.push(self.book(&grants).offers(&wish.memory));
        }
        for (resource, count) in &wish.devices {
            let Some(kind) = resources.devices.kind(resource) else { continue };
            let free = self.free_devices(resource, &kind);
            offers.push(kind.offers(&free, *count, &resources.layout.nodes()));
        }
        match agree(policies.topology, &offers, &resources.layout.nodes()) {
            (place, true) => Ok(place),
            (_, false) => Err(Refused {
                reason: "TopologyAffinityError",
                message: "Resources cannot be allocated with Topology locality".to_string(),
            }),
        }
    }

    pub async fn take(&self, wish: &Wish, near: Option<&NumberSet>) -> Result<Grant, Refused> {
        let resources = self.resources;
        let mut grant = Grant::default();
        if resources.policies.static_cpus && wish.cpus > 0 {
            let taken = self.take_cpus(wish.cpus, near);
            resources.count("cpu_manager", taken.is_ok());
            grant.cpus = Some(taken?);
        }
        if resources.policies.static_memory && !wish.memory.is_empty() {
            let grants = resources.grants.lock();
            let taken = self.book(&grants).take(&wish.memory, near);
            resources.count("memory_manager", taken.is_some());
            grant.memory = Some(taken.ok_or_else(|| Refused::unexpected("no NUMA nodes with enough free memory"))?);
        }
        for (resource, count) in &wish.devices {
            if let Some(kind) = resources.devices.kind(resource) {
                grant.devices.insert(resource.clone(), self.take_devices(resource, &kind, *count, near).await?);
            }
        }
        Ok(grant)
    }

    fn take_cpus(&self, count: usize, near: Option<&NumberSet>) -> Result<NumberSet, Refused> {
        let layout = &self.resources.layout;
        let reusable = self.reusable.cpus.clone().unwrap_or_default();
        let available = if reusable.len() >= count { reusable } else { self.available_cpus() };
        cpus::take_near(layout, &available, count, near).ok_or_else(|| {
            let text = "not enough cpus available to satisfy request";
            Refused::unexpected(format!("{text}: requested={count}, available={}", available.len()))
        })
    }

    fn available_cpus(&self) -> NumberSet {
        let resources = self.resources;
        let own = self.own.values().filter_map(|grant| grant.cpus.as_ref());
        let taken = own.fold(resources.given_cpus(), |sum, one| sum.union(one)).union(&resources.reserved_cpus);
        resources.layout.all().without(&taken).union(&self.reusable.cpus.clone().unwrap_or_default())
    }

    /// The memory as others and this pod's own containers have it; init containers' is free again.
    fn book<'g>(&'g self, grants: &'g BTreeMap<String, OfPod>) -> Book<'g> {
        let others = grants.values().flat_map(BTreeMap::values);
        let given = others.chain(self.own.values()).filter_map(|grant| grant.memory.as_ref());
        let given = given.filter(|share| self.reusable.memory.as_ref() != Some(*share)).collect();
        Book { layout: &self.resources.layout, reserved: &self.resources.policies.reserved_memory, given }
    }

    fn free_devices(&self, resource: &str, kind: &Kind) -> BTreeSet<String> {
        let mut taken = self.resources.given_devices(resource);
        let own = self.own.values().filter_map(|grant| grant.devices.get(resource));
        taken.extend(own.flat_map(|grant| grant.ids.iter().cloned()));
        let reusable = self.reusable.devices.get(resource).map(|grant| grant.ids.clone()).unwrap_or_default();
        let healthy = kind.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id.clone());
        healthy.filter(|id| !taken.contains(id) || reusable.contains(id)).collect()
    }

    async fn take_devices(
        &self,
        resource: &str,
        kind: &Kind,
        count: usize,
        near: Option<&NumberSet>,
    ) -> Result<DeviceGrant, Refused> {
        let Some(plugin) = &kind.plugin else {
            return Err(Refused::unexpected(format!("cannot allocate unregistered device {resource}")));
        };
        let free = self.free_devices(resource, kind);
        if free.is_empty() && !kind.devices.values().any(|device| device.healthy) {
            let text = "no healthy devices present; cannot allocate unhealthy devices";
            return Err(Refused::unexpected(format!("{text} {resource}")));
        }
        let reusable = self.reusable.devices.get(resource).map(|grant| grant.ids.clone()).unwrap_or_default();
        let must: BTreeSet<String> = reusable.intersection(&free).take(count).cloned().collect();
        let Some(mut ids) = kind.pick(&free, &must, count, near) else {
            let text = format!("requested number of devices unavailable for {resource}");
            return Err(Refused::unexpected(format!("{text}. Requested: {count}, Available: {}", free.len())));
        };
        let local = near.map(|near| kind.near(&free, near)).filter(|local| local.len() >= count);
        let preferred = plugin.preferred(local.as_ref().unwrap_or(&free), &must, count).await;
        match preferred {
            Ok(Some(wished)) if wished.len() == count && wished.is_subset(&free) && wished.is_superset(&must) => {
                ids = wished;
            }
            Ok(_) => {}
            Err(error) => return Err(Refused::unexpected(describe(&error))),
        }
        let begun = std::time::Instant::now();
        let allocated = plugin.allocate(&ids).await;
        let labels = [("resource_name", resource)];
        let metrics = &self.resources.metrics;
        metrics.observe("kubelet_device_plugin_alloc_duration_seconds", &labels, begun.elapsed());
        let use_with = allocated.map_err(|error| Refused::unexpected(describe(&error)))?;
        Ok(DeviceGrant { ids, use_with })
    }

    /// What an init container had can be had again by those that come after it; what others get from it is theirs.
    pub fn note(&mut self, role: Role, name: &str, grant: Grant) {
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
