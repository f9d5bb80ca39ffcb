//! The pod condition `DisruptionTarget`: the pod is terminated by the system, not by its own failure.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::key::{name, namespace, uid};
use crate::error::{Result, ignore_not_found};

/// Sets the condition, and the phase if one is given, unless the pod has it already.
pub async fn mark_disrupted(
    client: &Client,
    pod: &Pod,
    reason: &str,
    message: &str,
    phase: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    let is_set =
        knarr_client::pod::condition(pod, "DisruptionTarget").is_some_and(|condition| condition.status == "True");
    let right_phase = phase.is_none_or(|phase| knarr_client::pod::phase(pod) == phase);
    if is_set && right_phase {
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
    // A new condition is appended.
    let known = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut order: Vec<Value> = known.map(|known| json!({"type": known.type_})).collect();
    if !order.iter().any(|known| known["type"] == condition.type_.as_str()) {
        order.push(json!({"type": condition.type_}));
    }
    let mut status = json!({"$setElementOrder/conditions": order, "conditions": [condition]});
    if let Some(phase) = phase {
        status["phase"] = json!(phase);
        status["observedGeneration"] = json!(pod.metadata.generation);
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace(pod));
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid(pod)}, "status": status}));
    ignore_not_found(api.patch_subresource("status", name(pod), &PatchParams::default(), &patch).await)?;
    Ok(())
}
