//! Carrying out decisions: bindings, conditions on pods that fit nowhere, evictions that make room.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster::pod::PodState;

/// Binds a pod to a node.
pub async fn bind(client: Client, pod: &PodState, node: &str) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(pod.name().to_owned()),
            namespace: Some(pod.namespace().to_owned()),
            uid: Some(pod.uid().to_owned()),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let _: Value = pods.create_subresource("binding", pod.name(), &PostParams::default(), &binding).await?;
    Ok(())
}

/// Writes why a pod waits, and where room is being made for it, onto the pod. Nothing is written when it says so already.
pub async fn explain(
    client: Client,
    pod: Arc<PodState>,
    reason: &'static str,
    message: String,
    nominated: Option<String>,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let status = pod.object.status.as_ref();
    let known = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let known = known.into_iter().find(|condition| condition.type_ == "PodScheduled");
    let same_condition = known.is_some_and(|condition| {
        condition.status == "False"
            && condition.reason.as_deref() == Some(reason)
            && condition.message.as_deref() == Some(message.as_str())
    });
    let same_node =
        nominated.is_none() || status.and_then(|status| status.nominated_node_name.as_ref()) == nominated.as_ref();
    if same_condition && same_node {
        return Ok(());
    }
    let since = known
        .filter(|condition| condition.status == "False")
        .and_then(|condition| condition.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    if let Some(generation) = pod.object.metadata.generation {
        condition["observedGeneration"] = generation.into();
    }
    let mut patch = json!({"status": {"conditions": [condition]}});
    if let Some(node) = nominated {
        patch["status"]["nominatedNodeName"] = node.into();
    }
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Takes a promise back: the pod is no longer awaited on a node.
pub async fn clear_nomination(client: Client, pod: Arc<PodState>) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let patch = json!({"status": {"nominatedNodeName": null}});
    pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Deletes a pod to make room for another, and says so on it first.
pub async fn evict(
    client: Client,
    victim: Arc<PodState>,
    preemptor: &PodState,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, victim.namespace());
    let scheduler = preemptor.object.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    let message =
        format!("{}: preempting to accommodate a higher priority pod", scheduler.unwrap_or("default-scheduler"));
    let mut condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    if let Some(generation) = victim.object.metadata.generation {
        condition["observedGeneration"] = generation.into();
    }
    let patch = json!({"status": {"conditions": [condition]}});
    pods.patch_status(victim.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    let uid = Some(victim.uid().to_owned());
    let same =
        DeleteParams { preconditions: Some(Preconditions { uid, resource_version: None }), ..DeleteParams::default() };
    pods.delete(victim.name(), &same).await?;
    Ok(())
}

/// Whether the object was not there (any more): nothing is left to do.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
