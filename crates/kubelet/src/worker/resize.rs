//! Changing the resources of a pod while it runs.
//!
//! What the API wants may not fit. The node keeps what it has granted; everything else works with the pod as granted, and
//! a wish that can't be granted yet only shows as a condition.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::Quantity as Amount;
use serde::{Deserialize, Serialize};

use crate::pod::{self, Role};

pub type ByContainer = BTreeMap<String, ResourceRequirements>;

/// What must outlive a restart of the node: what was granted, and what the runtime has been told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    pub granted: ByContainer,
    pub applied: ByContainer,
}

/// Why a wish is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub reason: &'static str,
    pub message: String,
}

const FILE: &str = "resources.json";

impl Granted {
    pub fn load(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join(FILE)).ok()?).ok()
    }

    pub fn store(&self, folder: &Path) {
        let written = serde_json::to_vec(self).map_err(std::io::Error::other).and_then(|content| {
            std::fs::create_dir_all(folder)?;
            let beside = folder.join(format!("{FILE}.new"));
            std::fs::write(&beside, content)?;
            std::fs::rename(beside, folder.join(FILE))
        });
        if let Err(error) = written {
            tracing::warn!(%error, folder = %folder.display(), "granted resources can't be noted");
        }
    }
}

fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    let sidecars = pod::init_containers(pod).filter(|(role, _)| *role == Role::Sidecar).map(|(_, container)| container);
    sidecars.chain(pod::main_containers(pod))
}

pub fn resources_of(pod: &Pod) -> ByContainer {
    resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect()
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
    }
    pod
}

/// Whether two descriptions mean the same amounts, however they are written.
pub fn same(left: &ResourceRequirements, right: &ResourceRequirements) -> bool {
    let amounts = |list: &Option<BTreeMap<String, Quantity>>| -> HashMap<String, Amount> {
        list.iter().flatten().map(|(name, amount)| (name.clone(), Amount::of(amount))).collect()
    };
    amounts(&left.requests) == amounts(&right.requests) && amounts(&left.limits) == amounts(&right.limits)
}

pub fn same_all(left: &ByContainer, right: &ByContainer) -> bool {
    left.len() == right.len()
        && left.iter().all(|(name, resources)| right.get(name).is_some_and(|other| same(resources, other)))
}

/// Whether a change from what is applied means a new container, by the container's own policy.
pub fn needs_restart(container: &Container, applied: &ResourceRequirements) -> bool {
    let wanted = container.resources.clone().unwrap_or_default();
    let changed = |name: &str| {
        let of = |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().and_then(|l| l.get(name)).map(Amount::of);
        of(&wanted.requests) != of(&applied.requests) || of(&wanted.limits) != of(&applied.limits)
    };
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().any(|policy| policy.restart_policy == "RestartContainer" && changed(&policy.resource_name))
}

/// Running containers whose resources the runtime has not been told yet.
pub fn outstanding<'a>(pod: &'a Pod, applied: &ByContainer, is_running: impl Fn(&str) -> bool) -> Vec<&'a Container> {
    resizable(pod)
        .filter(|container| is_running(&container.name))
        .filter(|container| {
            let wanted = container.resources.clone().unwrap_or_default();
            applied.get(&container.name).is_some_and(|applied| !same(applied, &wanted))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(cpu: &str, policy: &str) -> Pod {
        serde_json::from_value(
            json!({ "spec": { "containers": [{ "name": "a", "resources": { "requests": { "cpu": cpu } },
            "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": policy }] }] } }),
        )
        .expect("a pod")
    }

    #[test]
    fn changes_are_found_by_amount() {
        let (old, equal, new) = (pod("1", "NotRequired"), pod("1000m", "NotRequired"), pod("2", "NotRequired"));
        assert!(same_all(&resources_of(&old), &resources_of(&equal)));
        assert!(!same_all(&resources_of(&old), &resources_of(&new)));
        let applied = resources_of(&old);
        assert_eq!(outstanding(&new, &applied, |_| true).len(), 1);
        assert!(outstanding(&new, &applied, |_| false).is_empty());
        assert!(outstanding(&equal, &applied, |_| true).is_empty());
        assert!(!needs_restart(&pod::spec(&new).containers[0], &applied["a"]));
        let strict = pod("2", "RestartContainer");
        assert!(needs_restart(&pod::spec(&strict).containers[0], &applied["a"]));
        assert_eq!(resources_of(&with_resources(&new, &applied)), applied);
    }
}
