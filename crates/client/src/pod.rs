//! Helpers to read a pod's state.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::pod_resources::is_sidecar;
use crate::time;

/// The pod's phase; empty when unset.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

/// The node that the pod is bound to.
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty())
}

/// Whether the pod has succeeded or failed: its containers will not run again.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod is neither finished nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// The condition of a type.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Whether the Ready condition is true.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// When the pod last became ready, if it is.
pub fn ready_since(pod: &Pod) -> Option<&Time> {
    condition(pod, "Ready").filter(|ready| ready.status == "True").and_then(|ready| ready.last_transition_time.as_ref())
}

/// Whether the pod has been ready for at least `min_ready_seconds`.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    if !is_ready(pod) {
        return false;
    }
    min_ready_seconds == 0
        || ready_since(pod).is_some_and(|since| time::after_seconds(since, min_ready_seconds.into()) <= now)
}

/// When a ready pod becomes available, if that is in the future.
pub fn available_at(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Timestamp> {
    let at = time::after_seconds(ready_since(pod)?, min_ready_seconds.into());
    (min_ready_seconds > 0 && at > now).then_some(at)
}

/// The largest restart count of its containers.
pub fn max_restarts(pod: &Pod) -> i32 {
    let Some(status) = &pod.status else { return 0 };
    let sidecars = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let is_sidecar = |name: &str| sidecars.clone().any(|container| container.name == name && is_sidecar(container));
    let containers = status.container_statuses.iter().flatten().map(|container| container.restart_count);
    let init = status.init_container_statuses.iter().flatten();
    let sidecar_restarts =
        init.filter(|container| is_sidecar(&container.name)).map(|container| container.restart_count);
    containers.chain(sidecar_restarts).max().unwrap_or(0)
}

/// A pod with the template's metadata and spec, without a name.
pub fn from_template(template: &PodTemplateSpec) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Frees the unused capacity of decoded lists, which is a third of a small pod's memory.
pub fn shrink_to_fit(pod: &mut Pod) {
    fn fit<T>(list: &mut Option<Vec<T>>) {
        list.iter_mut().for_each(Vec::shrink_to_fit);
    }
    fit(&mut pod.metadata.owner_references);
    if let Some(spec) = &mut pod.spec {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            fit(&mut container.env);
            fit(&mut container.ports);
            fit(&mut container.volume_mounts);
        }
        for volume in spec.volumes.iter_mut().flatten() {
            volume.projected.iter_mut().for_each(|projected| fit(&mut projected.sources));
        }
        spec.containers.shrink_to_fit();
        fit(&mut spec.init_containers);
        fit(&mut spec.tolerations);
        fit(&mut spec.volumes);
    }
    if let Some(status) = &mut pod.status {
        for container in
            [&mut status.container_statuses, &mut status.init_container_statuses].into_iter().flatten().flatten()
        {
            fit(&mut container.volume_mounts);
        }
        fit(&mut status.conditions);
        fit(&mut status.container_statuses);
        fit(&mut status.init_container_statuses);
        fit(&mut status.host_ips);
        fit(&mut status.pod_ips);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodStatus;

    fn ready_at(second: i64) -> Pod {
        let ready = PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            last_transition_time: Some(Time(Timestamp::from_second(second).unwrap())),
            ..Default::default()
        };
        Pod { status: Some(PodStatus { conditions: Some(vec![ready]), ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (min_ready, now, available) in [(0, 100, true), (10, 105, false), (10, 110, true), (10, 111, true)] {
            assert_eq!(is_available(&ready_at(100), min_ready, at(now)), available, "{min_ready} {now}");
        }
        assert_eq!(available_at(&ready_at(100), 10, at(105)), Some(at(110)));
        assert_eq!(available_at(&ready_at(100), 10, at(110)), None);
        assert!(!is_available(&Pod::default(), 0, at(0)));
    }

    #[test]
    fn a_shrunk_pod_says_the_same_in_less_room() {
        let read = serde_json::json!({
            "metadata": {"name": "a"},
            "spec": {
                "containers": [{"name": "c", "env": [{"name": "E"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "m"}}]}}],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0}],
            },
        })
        .to_string();
        let pod: Pod = serde_json::from_str(&read).expect("a pod");
        let mut shrunk: Pod = serde_json::from_str(&read).expect("a pod");
        shrink_to_fit(&mut shrunk);
        assert_eq!(shrunk, pod);
        let statuses = shrunk.status.and_then(|status| status.container_statuses).expect("statuses");
        assert_eq!(statuses.capacity(), 1);
    }
}
