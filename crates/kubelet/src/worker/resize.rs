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

/// The name under which the resources of the pod as a whole stand among those of its containers.
const WHOLE: &str = "";

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
    let whole = of_whole(pod).map(|resources| (WHOLE.to_string(), resources));
    resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).chain(whole).collect()
}

fn of_whole(pod: &Pod) -> Option<ResourceRequirements> {
    pod::spec(pod).resources.clone()
}

/// The cgroup of the pod has got what the pod as a whole is granted.
pub fn note_whole(pod: &Pod, applied: &mut ByContainer) {
    if let Some(resources) = of_whole(pod) {
        applied.insert(WHOLE.to_string(), resources);
    }
}

/// Whether the pod's cgroup has not got yet what the pod as a whole is granted.
pub fn is_whole_outstanding(pod: &Pod, applied: &ByContainer) -> bool {
    let wanted = of_whole(pod);
    applied.get(WHOLE).zip(wanted.as_ref()).is_some_and(|(applied, wanted)| !same(applied, wanted))
}

/// Whether every container that was started has what the pod is granted.
pub fn is_done(pod: &Pod, applied: &ByContainer) -> bool {
    let wanted = resources_of(pod);
    wanted.iter().all(|(name, wanted)| applied.get(name).is_none_or(|applied| same(applied, wanted)))
}

/// What events say of a change: its stage, and the resources of the containers once it is through.
pub fn told(pod: &Pod, stage: &str, error: &str) -> String {
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

/// What is asked for anew: the resource, whether requests or limits, and in which direction.
pub fn changes(have: &ByContainer, want: &ByContainer) -> Vec<(String, &'static str, &'static str)> {
    type Part = fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>;
    let parts: [(&'static str, Part); 2] =
        [("requests", |one| one.requests.as_ref()), ("limits", |one| one.limits.as_ref())];
    let mut found = Vec::new();
    for (name, wanted) in want.iter().filter(|(name, _)| *name != WHOLE) {
        for (requirement, part) in parts {
            let old = have.get(name).and_then(part).cloned().unwrap_or_default();
            let new = part(wanted).cloned().unwrap_or_default();
            for resource in ["cpu", "memory"] {
                let operation = match (old.get(resource).map(Amount::of), new.get(resource).map(Amount::of)) {
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
        if let Some(known) = resources.get(WHOLE) {
            spec.resources = Some(known.clone());
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

/// Those that must be told anew. When the pod as a whole may use more or less, all are: what limits it limits them too.
pub fn to_tell<'a>(pod: &'a Pod, applied: &ByContainer, is_running: impl Fn(&str) -> bool) -> Vec<&'a Container> {
    match is_whole_outstanding(pod, applied) {
        true => resizable(pod).filter(|container| is_running(&container.name)).collect(),
        false => outstanding(pod, applied, is_running),
    }
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
    fn the_pod_as_a_whole_has_resources_too() {
        let pod = |cpu: &str| -> Pod {
            serde_json::from_value(json!({ "spec": { "resources": { "limits": { "cpu": cpu } },
                "containers": [{ "name": "a" }] } }))
            .expect("a pod")
        };
        let (old, new) = (pod("1"), pod("2"));
        let mut applied = resources_of(&old);
        assert!(!same_all(&applied, &resources_of(&new)));
        assert!(!is_whole_outstanding(&old, &applied) && is_whole_outstanding(&new, &applied));
        assert_eq!(of_whole(&with_resources(&new, &applied)), of_whole(&old));
        assert!(outstanding(&new, &applied, |_| true).is_empty());
        assert_eq!(to_tell(&new, &applied, |_| true).len(), 1, "its limit is that of the pod");
        note_whole(&new, &mut applied);
        assert!(!is_whole_outstanding(&new, &applied) && to_tell(&new, &applied, |_| true).is_empty());
    }

    #[test]
    fn events_tell_the_resources() {
        let mut changed = pod("2", "NotRequired");
        changed.metadata.generation = Some(3);
        let list = "\"containers\":[{\"name\":\"a\",\"resources\":{\"requests\":{\"cpu\":\"2\"}}}],\"generation\":3";
        assert_eq!(told(&changed, "started", ""), format!("Pod resize started: {{{list}}}"));
        assert_eq!(
            told(&changed, "Deferred", "no room"),
            format!("Pod resize Deferred: {{{list},\"error\":\"no room\"}}")
        );
        let applied = resources_of(&pod("1", "NotRequired"));
        assert!(!is_done(&changed, &applied) && is_done(&changed, &resources_of(&changed)));
        assert!(is_done(&changed, &ByContainer::new()), "nothing was started yet");
    }

    #[test]
    fn requests_for_change_are_told_by_direction() {
        let (small, large) = (resources_of(&pod("1", "NotRequired")), resources_of(&pod("2", "NotRequired")));
        let change = |operation| vec![("cpu".to_string(), "requests", operation)];
        assert_eq!(changes(&small, &large), change("increase"));
        assert_eq!(changes(&large, &small), change("decrease"));
        assert_eq!(changes(&small, &small), Vec::new());
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
