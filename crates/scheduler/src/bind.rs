//! Carries out decisions: bindings, conditions on unschedulable pods, evictions of victims.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::api_error::{is_not_found, message};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::device_binding::{DeviceBinding, DeviceError};
use crate::extender::{Extender, ExtenderError};
use crate::plugins::volume_binding::VolumePlan;
use crate::volumes::{VolumeError, VolumeInformers, bind_volumes};

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("running PreBind plugin \"VolumeBinding\": {0}")]
    Volumes(#[from] VolumeError),
    #[error("running PreBind plugin \"DynamicResources\": {0}")]
    Devices(#[from] DeviceError),
    #[error("running Bind plugin \"DefaultBinder\": {}", message(.0))]
    Bind(kube::Error),
    #[error(transparent)]
    Extender(#[from] ExtenderError),
}

impl BindError {
    /// Whether the pod does not exist (any more): nothing is left to do.
    pub fn is_gone(&self) -> bool {
        matches!(self, BindError::Bind(error) if is_not_found(error))
    }
}

/// Does everything a decision requires: volumes, devices, and finally the binding.
pub async fn carry_out(
    client: Client,
    watched: &VolumeInformers,
    pod: &PodState,
    node: &str,
    plan: &VolumePlan,
    devices: Option<&mut DeviceBinding>,
    binder: Option<&Extender>,
) -> Result<(), BindError> {
    if !plan.is_empty() || devices.is_some() {
        // It may take a while: other components, such as autoscalers, see where the pod will run.
        if let Err(error) = nominate(client.clone(), pod, node).await {
            tracing::warn!(pod = &*pod.key, %error, "cannot write the nominated node to the pod");
        }
        if !plan.is_empty() {
            bind_volumes(client.clone(), watched, pod, node, plan).await?;
        }
    }
    if let Some(devices) = devices {
        devices.bind(pod).await?;
    }
    if let Some(extender) = binder {
        match extender.bind(pod, node).await {
            Err(error) if extender.is_ignorable() => {
                tracing::warn!(extender = extender.url(), %error, "an extender was skipped");
            }
            done => return Ok(done?),
        }
    }
    bind(client, pod, node).await.map_err(BindError::Bind)
}

/// Binds a pod to a node.
async fn bind(client: Client, pod: &PodState, node: &str) -> Result<(), kube::Error> {
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

/// Writes the nominated node into the pod's status.
async fn nominate(client: Client, pod: &PodState, node: &str) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": node}});
    pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Why a pod waits.
#[derive(Clone, Copy)]
pub enum Reason {
    Unschedulable,
    /// It fits, but the decision could not be carried out.
    SchedulerError,
}

/// The change of a pod's nomination.
pub enum Nomination {
    Unchanged,
    Cleared,
    On(String),
}

/// Writes to the pod why it waits, and its nominated node. Nothing is written when the status is up to date.
pub async fn explain(
    client: Client,
    pod: Arc<PodState>,
    reason: Reason,
    message: String,
    nomination: Nomination,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let reason = match reason {
        Reason::Unschedulable => "Unschedulable",
        Reason::SchedulerError => "SchedulerError",
    };
    let status = pod.object.status.as_ref();
    let known = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let known = known.into_iter().find(|condition| condition.type_ == "PodScheduled");
    let same_condition = known.is_some_and(|condition| {
        condition.status == "False"
            && condition.reason.as_deref() == Some(reason)
            && condition.message.as_deref() == Some(message.as_str())
    });
    let nominated = status.and_then(|status| status.nominated_node_name.as_deref()).unwrap_or_default();
    let new_node = match &nomination {
        Nomination::Unchanged => None,
        Nomination::Cleared => Some(""),
        Nomination::On(node) => Some(node.as_str()),
    };
    let new_node = new_node.filter(|node| *node != nominated);
    if same_condition && new_node.is_none() {
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
    let mut patch = condition_patch(&pod, condition);
    patch["metadata"] = json!({"uid": pod.uid()});
    match new_node {
        Some("") => patch["status"]["nominatedNodeName"] = Value::Null,
        Some(node) => patch["status"]["nominatedNodeName"] = node.into(),
        None => {}
    }
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Sets one condition; a new one is appended.
fn condition_patch(pod: &PodState, condition: Value) -> Value {
    let known = pod.object.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut order: Vec<Value> = known.map(|known| json!({"type": known.type_})).collect();
    if !order.iter().any(|known| known["type"] == condition["type"]) {
        order.push(json!({"type": condition["type"]}));
    }
    json!({"status": {"$setElementOrder/conditions": order, "conditions": [condition]}})
}

/// Clears the nominated node.
pub async fn clear_nomination(client: Client, pod: Arc<PodState>) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": null}});
    pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Evicts a victim, after setting its condition.
pub async fn evict(
    client: Client,
    victim: &PlacedPod,
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
    if let Some(generation) = victim.generation {
        condition["observedGeneration"] = generation.into();
    }
    let patch = json!({"metadata": {"uid": victim.uid()}, "status": {"conditions": [condition]}});
    pods.patch_status(victim.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    let uid = Some(victim.uid().to_owned());
    let same =
        DeleteParams { preconditions: Some(Preconditions { uid, resource_version: None }), ..DeleteParams::default() };
    pods.delete(victim.name(), &same).await?;
    Ok(())
}
