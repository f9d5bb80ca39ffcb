//! Applies a granted resize to the cgroups and containers of a pod.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::resize::{self, ByContainer, MemoryDecrease};
use crate::cgroup::Cgroups;
use crate::cgroup::amounts::pod_amounts;
use crate::container::resources::linux_resources;
use crate::context::Context;

/// Enlarges the pod's cgroup to the maximum of old and new, updates the containers, and then sets the pod's cgroup to
/// its new size: a child must never be allowed more than its parent.
pub async fn apply_resize(
    context: &Context,
    pod: &Pod,
    running: Vec<(String, String)>,
    mut applied: ByContainer,
) -> (ByContainer, Option<String>) {
    let cgroups = context.cgroups.as_ref();
    let is_running = |name: &str| running.iter().any(|(known, _)| known == name);
    let before = applied.clone();
    let to_update: Vec<_> = resize::outstanding(pod, &before, is_running)
        .into_iter()
        .filter(|container| !resize::needs_restart(pod, container, &before))
        .collect();
    let old = resize::with_resources(pod, &applied);
    if let Some(cgroups) = cgroups
        && let Some(refusal) = memory_decrease(context, cgroups, pod, &old, &to_update, &running, &before).refusal()
    {
        return (applied, Some(refusal));
    }
    let widened = cgroups.map_or(Ok(()), |cgroups| cgroups.widen(&old, pod));
    if let Err(error) = widened {
        return (applied, Some(error.to_string()));
    }
    for container in to_update {
        let mut resources = linux_resources(pod, container, &context.node_memory());
        if resources.cpu_quota == 0 {
            resources.cpu_quota = -1;
        }
        let Some((_, id)) = running.iter().find(|(name, _)| *name == container.name) else { continue };
        if let Err(error) = context.runtime.update_container_resources(id, resources).await {
            return (applied, Some(error.message()));
        }
        applied.insert(container.name.clone(), container.resources.clone().unwrap_or_default());
    }
    resize::record_pod_level(pod, &mut applied);
    let started = std::time::Instant::now();
    let narrowed = cgroups.map_or(Ok(()), |cgroups| cgroups.ensure(&resize::with_resources(pod, &applied)));
    let operation = [("operation_type", "update")];
    context.metrics.observe("kubelet_cgroup_manager_duration_seconds", &operation, started.elapsed());
    (applied, narrowed.err().map(|error| error.to_string()))
}

/// Reads the usage of the memory whose limits are lowered.
fn memory_decrease(
    context: &Context,
    cgroups: &Cgroups,
    pod: &Pod,
    old: &Pod,
    to_update: &[&Container],
    running: &[(String, String)],
    applied: &ByContainer,
) -> MemoryDecrease {
    let limits = (pod_amounts(old).memory_limit, pod_amounts(pod).memory_limit);
    let pod_limit = limits.1.filter(|new| limits.0.is_none_or(|old| *new < old));
    let containers = to_update.iter().filter_map(|container| {
        let limit = resize::lowered_memory_limit(pod, container, applied)?;
        let (_, id) = running.iter().find(|(name, _)| *name == container.name)?;
        let usage = cgroups.usage(&context.container_cgroup(pod, id));
        Some((container.name.clone(), limit, usage.memory))
    });
    MemoryDecrease { pod_limit, containers: containers.collect(), pod_usage: cgroups.pod_usage(pod).memory }
}
