//! Tells in a pod's status that it ends for no fault of its own.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::key::{name, namespace, uid};
use crate::error::{Result, ignore_not_found};

/// Sets the condition `DisruptionTarget`, and the phase if one is given, unless the pod says so already.
pub async fn mark_disrupted(
    client: &Client,
    pod: &Pod,
    reason: &str,
    message: &str,
    phase: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    let told =
        knarr_client::pod::condition(pod, "DisruptionTarget").is_some_and(|condition| condition.status == "True");
    let right_phase = phase.is_none_or(|phase| knarr_client::pod::phase(pod) == phase);
    if told && right_phase {
        return Ok(());
    }
    let condition = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(knarr_client::time::truncated(now)),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    };
    let mut status = json!({"conditions": [condition]});
    if let Some(phase) = phase {
        status["phase"] = json!(phase);
        status["observedGeneration"] = json!(pod.metadata.generation);
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace(pod));
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid(pod)}, "status": status}));
    ignore_not_found(api.patch_subresource("status", name(pod), &PatchParams::default(), &patch).await)?;
    Ok(())
}
