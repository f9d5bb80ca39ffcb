//! In-place resize of a running pod.
//!
//! Desired resources may not fit. The node keeps the granted ones; all other code uses the pod as granted, and a resize
//! that is not granted yet only shows as a condition.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::decode;
use knarr_client::quantity::{self, Quantity as Amount};
use serde::{Deserialize, Serialize};

use crate::pod::{self, Role};

pub type ByContainer = BTreeMap<String, ResourceRequirements>;

/// The key of the pod-level resources among those of its containers.
const WHOLE: &str = "";

/// What must survive a restart of the kubelet: granted and applied resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    pub granted: ByContainer,
    pub applied: ByContainer,
}

/// Why a resize is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub reason: &'static str,
    pub message: String,
}

const FILE: &str = "resources.json";

impl Granted {
    pub fn load(directory: &Path) -> Option<Self> {
        decode::from_bytes(&std::fs::read(directory.join(FILE)).ok()?).ok()
    }

    pub fn store(&self, directory: &Path) {
        let written = serde_json::to_vec(self).map_err(std::io::Error::other).and_then(|content| {
            std::fs::create_dir_all(directory)?;
            let temporary = directory.join(format!("{FILE}.new"));
            std::fs::write(&temporary, content)?;
            std::fs::rename(temporary, directory.join(FILE))
        });
        if let Err(error) = written {
            tracing::warn!(%error, directory = %directory.display(), "cannot store the granted resources");
        }
    }
}

fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod::init_containers(pod).map(|(_, container)| container).chain(pod::main_containers(pod))
}

pub fn resources_of(pod: &Pod) -> ByContainer {
    let whole = of_whole(pod).map(|resources| (WHOLE.to_string(), resources));
    resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).chain(whole).collect()
}

fn of_whole(pod: &Pod) -> Option<ResourceRequirements> {
    pod::spec(pod).resources.clone()
}

/// Records that the pod's cgroup has the pod-level resources.
pub fn record_pod_level(pod: &Pod, applied: &mut ByContainer) {
    if let Some(resources) = of_whole(pod) {
        applied.insert(WHOLE.to_string(), resources);
    }
}

/// Whether the pod-level resources are not applied yet. A pod that started without any may get some.
pub fn is_whole_outstanding(pod: &Pod, applied: &ByContainer) -> bool {
    let Some(desired) = of_whole(pod) else { return false };
    match applied.get(WHOLE) {
        Some(applied) => !same(applied, &desired),
        None => !applied.is_empty() && !same(&ResourceRequirements::default(), &desired),
    }
}

/// Whether every started container has its granted resources. A finished init container needs none.
pub fn is_done(pod: &Pod, applied: &ByContainer, is_running: impl Fn(&str) -> bool) -> bool {
    let over = |name: &str| {
        !is_running(name) && pod::init_containers(pod).any(|(role, c)| role == Role::Init && c.name == name)
    };
    let has = |container: &Container| {
        let desired = container.resources.clone().unwrap_or_default();
        applied.get(&container.name).is_none_or(|applied| same(applied, &desired)) || over(&container.name)
    };
    !is_whole_outstanding(pod, applied) && resizable(pod).all(has)
}

/// The event message of a resize: its stage and the containers' new resources.
pub fn event_message(pod: &Pod, stage: &str, error: &str) -> String {
    #[derive(Serialize)]
    struct One<'a> {
        name: &'a str,
        resources: ResourceRequirements,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct All<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<One<'a>>,
        containers: Vec<One<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "str::is_empty")]
        error: &'a str,
    }
    fn one(container: &Container) -> One<'_> {
        One { name: &container.name, resources: container.resources.clone().unwrap_or_default() }
    }
    let all = All {
        init_containers: pod::init_containers(pod).map(|(_, container)| one(container)).collect(),
        containers: pod::main_containers(pod).map(one).collect(),
        generation: pod.metadata.generation.unwrap_or(0),
        error,
    };
    match serde_json::to_string(&all) {
        Ok(text) => format!("Pod resize {stage}: {text}"),
        Err(_) => format!("Pod resize {stage}"),
    }
}

/// The changes of a resize: the resource, requests or limits, and the direction.
pub fn changes(have: &ByContainer, want: &ByContainer) -> Vec<(String, &'static str, &'static str)> {
    type Section = fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>;
    let sections: [(&'static str, Section); 2] =
        [("requests", |one| one.requests.as_ref()), ("limits", |one| one.limits.as_ref())];
    let mut found = Vec::new();
    for (name, desired) in want.iter().filter(|(name, _)| *name != WHOLE) {
        for (requirement, section) in sections {
            let old = have.get(name).and_then(section).cloned().unwrap_or_default();
            let new = section(desired).cloned().unwrap_or_default();
            for resource in ["cpu", "memory"] {
                let operation = match (old.get(resource).map(quantity::of), new.get(resource).map(quantity::of)) {
                    (None, Some(_)) => "add",
                    (Some(_), None) => "remove",
                    (Some(old), Some(new)) if new > old => "increase",
                    (Some(old), Some(new)) if new < old => "decrease",
                    _ => continue,
                };
                found.push((resource.to_string(), requirement, operation));
            }
        }
    }
    found
}

/// The pod with these resources instead of its own.
pub fn with_resources(pod: &Pod, resources: &ByContainer) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(known) = resources.get(&container.name) {
                container.resources = Some(known.clone());
            }
        }
        if !resources.is_empty() {
            spec.resources = resources.get(WHOLE).cloned();
        }
    }
    pod
}

/// Whether two resource lists mean the same amounts, however they are written.
pub fn same(left: &ResourceRequirements, right: &ResourceRequirements) -> bool {
    let amounts = |list: &Option<BTreeMap<String, Quantity>>| -> HashMap<String, Amount> {
        list.iter().flatten().map(|(name, amount)| (name.clone(), quantity::of(amount))).collect()
    };
    amounts(&left.requests) == amounts(&right.requests) && amounts(&left.limits) == amounts(&right.limits)
}

pub fn same_all(left: &ByContainer, right: &ByContainer) -> bool {
    left.len() == right.len()
        && left.iter().all(|(name, resources)| right.get(name).is_some_and(|other| same(resources, other)))
}

/// A container's request of a resource, and its limit: its own or the pod-level one.
fn demand(
    whole: Option<&ResourceRequirements>,
    own: &ResourceRequirements,
    name: &str,
) -> (Option<Amount>, Option<Amount>) {
    let of = |list: Option<&BTreeMap<String, Quantity>>| list.and_then(|list| list.get(name)).map(quantity::of);
    let limit = of(own.limits.as_ref()).filter(|limit| !limit.is_zero());
    (of(own.requests.as_ref()), limit.or_else(|| of(whole.and_then(|whole| whole.limits.as_ref()))))
}

/// Whether a container's request or limit of a resource differs from what is applied.
fn changes_demand(pod: &Pod, container: &Container, applied: &ByContainer, name: &str) -> bool {
    let Some(known) = applied.get(&container.name) else { return false };
    let desired = container.resources.clone().unwrap_or_default();
    let whole = of_whole(pod);
    demand(applied.get(WHOLE), known, name) != demand(whole.as_ref(), &desired, name)
}

/// Whether the container's resize policy requires a restart for this change.
pub fn needs_restart(pod: &Pod, container: &Container, applied: &ByContainer) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|policy| {
        policy.restart_policy == "RestartContainer" && changes_demand(pod, container, applied, &policy.resource_name)
    })
}

/// Running containers whose resources are not applied yet. A change of pod-level limits affects containers without
/// their own limit.
pub fn outstanding<'a>(pod: &'a Pod, applied: &ByContainer, is_running: impl Fn(&str) -> bool) -> Vec<&'a Container> {
    resizable(pod)
        .filter(|container| is_running(&container.name))
        .filter(|container| {
            let desired = container.resources.clone().unwrap_or_default();
            applied.get(&container.name).is_some_and(|applied| !same(applied, &desired))
                || ["cpu", "memory"].iter().any(|name| changes_demand(pod, container, applied, name))
        })
        .collect()
}

/// The container's new memory limit if it is lower than before, or new.
pub fn lowered_memory_limit(pod: &Pod, container: &Container, applied: &ByContainer) -> Option<i64> {
    let known = applied.get(&container.name)?;
    let desired = container.resources.clone().unwrap_or_default();
    let new = demand(of_whole(pod).as_ref(), &desired, "memory").1?.value();
    let old = demand(applied.get(WHOLE), known, "memory").1.map(|limit| limit.value());
    (new > 0 && old.is_none_or(|old| new < old)).then_some(new)
}

/// The memory usage of a pod and the limits that a resize lowers.
#[derive(Debug, Default)]
pub struct MemoryDecrease {
    pub pod_limit: Option<i64>,
    pub pod_usage: Option<u64>,
    /// Name, limit and usage.
    pub containers: Vec<(String, i64, Option<u64>)>,
}

impl MemoryDecrease {
    /// Why the limits cannot be lowered: the kernel would have to kill processes.
    pub fn refusal(&self) -> Option<String> {
        let exceeds = |usage: u64, limit: i64| u64::try_from(limit).is_ok_and(|limit| usage >= limit);
        let mut errors = Vec::new();
        match (self.pod_limit, self.pod_usage) {
            (None, _) => {}
            (Some(_), None) => errors.push("missing pod memory usage".to_string()),
            (Some(limit), Some(usage)) if exceeds(usage, limit) => {
                errors.push(format!("attempting to set pod memory limit ({limit}) below current usage ({usage})"));
            }
            _ => {}
        }
        for (name, limit, usage) in &self.containers {
            match usage {
                None => errors.push(format!("missing container \"{name}\" memory usage")),
                Some(usage) if exceeds(*usage, *limit) => errors.push(format!(
                    "attempting to set container \"{name}\" memory limit ({limit}) below current usage ({})",
                    self.pod_usage.unwrap_or(*usage)
                )),
                Some(_) => {}
            }
        }
        let all = match errors.as_slice() {
            [] => return None,
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        Some(format!("cannot decrease memory limits: {all}"))
    }
}

#[cfg(test)]
mod tests;
