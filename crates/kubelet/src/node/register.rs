//! Making the node known and keeping what is known of it true.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_client::is_unreachable;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::lease::answered_within;
use super::object::{Observed, status};
use crate::context::{Abilities, Context};
use crate::pods::Pods;

/// How often the node looks at itself, and how long an unchanged status may stay unwritten: the lease tells that it lives.
const LOOK: Duration = Duration::from_secs(10);
const IMPATIENT_LOOK: Duration = Duration::from_millis(200);
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// A write that has not been answered by then is given up: the connection may be dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the node, or brings labels and endpoints of an earlier life up to date.
pub async fn register(context: &Context) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let name = &context.settings.node_name;
    let labels = labels(context);
    if nodes.get_opt(name).await?.is_some() {
        let change = json!({ "metadata": { "labels": labels } });
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        return Ok(());
    }
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(
                [("volumes.kubernetes.io/controller-managed-attach-detach".to_string(), "true".to_string())].into(),
            ),
            ..Default::default()
        },
        spec: Some(NodeSpec {
            taints: Some(context.settings.taints.clone()).filter(|taints| !taints.is_empty()),
            ..Default::default()
        }),
        status: None,
    };
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

fn labels(context: &Context) -> std::collections::BTreeMap<String, String> {
    let mut labels = context.settings.labels.clone();
    let architecture = context.host.architecture;
    for (key, value) in [
        ("kubernetes.io/hostname", context.settings.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ] {
        labels.insert(key.to_string(), value.to_string());
    }
    labels
}

/// Runs for as long as the node does.
pub async fn keep_status(context: Arc<Context>, pods: Arc<Pods>, serving_port: u16) {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let mut written: Option<(NodeStatus, Instant)> = None;
    let changed = pods.node_changed();
    let mut changes = context.node.subscribe();
    loop {
        let held = held_by_api(&context);
        let previous = match &written {
            Some((status, _)) if !overwritten(held.as_ref(), status) => status.conditions.clone(),
            _ => held.as_ref().and_then(|status| status.conditions.clone()),
        };
        let observed = Observed {
            runtime: context.runtime.status(false).await.ok(),
            images: context.runtime.list_images().await.unwrap_or_default(),
            pressure: pods.pressure(),
            serving_port,
            previous: previous.unwrap_or_default(),
            shutting_down: pods.is_shutting_down(),
        };
        if let Some(runtime) = &observed.runtime {
            *context.abilities.write() = Abilities::of(runtime);
        }
        let now = Timestamp::now();
        let new = status(&context, &observed, now);
        let stale = written.as_ref().is_none_or(|(old, at)| {
            at.elapsed() >= LONGEST_SILENCE
                || without_heartbeat(old) != without_heartbeat(&new)
                || overwritten(held.as_ref(), &new)
        });
        if stale {
            let old = written.as_ref().map(|(status, _)| status);
            match answered_within(TIMEOUT, write(&nodes, &context.settings.node_name, old, &new)).await {
                Ok(()) => {
                    tell_changes(&context, &observed.previous, &new);
                    if is_ready(&new) {
                        super::startup::ready(&context.metrics, context.host.booted_at);
                    }
                    written = Some((new, Instant::now()));
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 && context.settings.register => {
                    if let Err(error) = answered_within(TIMEOUT, register(&context)).await
                        && !is_unreachable(&error)
                    {
                        tracing::warn!(%error, "the node can't be registered again");
                    }
                    written = None;
                }
                Err(error) if is_unreachable(&error) => {}
                Err(error) => tracing::warn!(%error, "the node's status can't be written"),
            }
        }
        let pause = match &written {
            Some((status, _)) if is_ready(status) => LOOK,
            // Pods wait for the node to be ready.
            Some(_) => IMPATIENT_LOOK,
            None => Duration::from_millis(500),
        };
        let ours = written.as_ref().map(|(status, _)| status);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changed.notified() => {}
            // Whoever changes what the node says of itself, again and again, is answered no faster than that.
            () = other_writes(&context, &mut changes, ours) => tokio::time::sleep(IMPATIENT_LOOK).await,
        }
    }
}

/// Waits until somebody else, such as the node lifecycle controller, writes conditions that are the node's to write.
async fn other_writes(
    context: &Context,
    changes: &mut tokio::sync::mpsc::UnboundedReceiver<knarr_client::Change<Node>>,
    ours: Option<&NodeStatus>,
) {
    while changes.recv().await.is_some() {
        if ours.is_some_and(|ours| overwritten(held_by_api(context).as_ref(), ours)) {
            return;
        }
    }
    std::future::pending().await
}

/// The node's status as the API holds it, as far as that is known here.
fn held_by_api(context: &Context) -> Option<NodeStatus> {
    context.node.get("", &context.settings.node_name)?.status.clone()
}

/// Whether the API holds other verdicts than ours. A node that was silent for a while is told to be unknown, which only
/// the node itself can set right.
fn overwritten(held: Option<&NodeStatus>, ours: &NodeStatus) -> bool {
    let Some(held) = held else { return false };
    ours.conditions.iter().flatten().any(|condition| {
        let known = held.conditions.iter().flatten().find(|known| known.type_ == condition.type_);
        known.is_some_and(|known| known.status != condition.status)
    })
}

fn is_ready(status: &NodeStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Changes of the node's conditions are worth an event.
fn tell_changes(context: &Context, old: &[NodeCondition], new: &NodeStatus) {
    for condition in new.conditions.iter().flatten() {
        let known = old.iter().find(|known| known.type_ == condition.type_);
        if known.is_some_and(|known| known.status == condition.status) {
            continue;
        }
        let name = &context.settings.node_name;
        let reason = match (condition.type_.as_str(), condition.status.as_str()) {
            ("Ready", "True") => "NodeReady",
            ("Ready", _) => "NodeNotReady",
            ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
            ("MemoryPressure", _) => "NodeHasSufficientMemory",
            ("DiskPressure", "True") => "NodeHasDiskPressure",
            ("DiskPressure", _) => "NodeHasNoDiskPressure",
            ("PIDPressure", "True") => "NodeHasInsufficientPID",
            _ => "NodeHasSufficientPID",
        };
        context.node_event(false, reason, format!("Node {name} status is now: {reason}"));
    }
}

fn without_heartbeat(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status
}

async fn write(
    nodes: &Api<Node>,
    name: &str,
    old: Option<&NodeStatus>,
    status: &NodeStatus,
) -> Result<(), kube::Error> {
    let mut value = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    // Amounts are merged by name: what the node no longer has must be named to go.
    let before = old.and_then(|old| old.capacity.as_ref()).into_iter().flatten();
    for (gone, _) in before.filter(|(name, _)| !status.capacity.as_ref().is_some_and(|own| own.contains_key(*name))) {
        value["capacity"][gone] = Value::Null;
        value["allocatable"][gone] = Value::Null;
    }
    // Addresses are merged by type where they are not replaced, which would keep an old one for ever.
    if let Some(addresses) = value.get_mut("addresses").and_then(Value::as_array_mut) {
        addresses.insert(0, json!({ "$patch": "replace" }));
    }
    let change = json!({ "status": value });
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_of_others_is_seen() {
        let of = |ready: &str| -> NodeStatus {
            serde_json::from_value(json!({ "conditions": [
                { "type": "Ready", "status": ready }, { "type": "DiskPressure", "status": "False" }] }))
            .expect("a status")
        };
        let ours = of("True");
        for (held, expected) in [
            (Some(of("Unknown")), true),
            (Some(of("True")), false),
            (Some(NodeStatus::default()), false),
            (None, false),
        ] {
            assert_eq!(overwritten(held.as_ref(), &ours), expected, "{held:?}");
        }
    }
}
