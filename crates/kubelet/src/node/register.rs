//! Registers the node with the API server and keeps its status up to date.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_client::is_unreachable;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::lease::with_timeout;
use super::object::{ObservedNode, status};
use crate::context::{Context, RuntimeFeatures};
use crate::pods::Pods;
use crate::settings::Settings;

const NOT_READY_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A write without a response by then is abandoned: the connection may be dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the node, or updates the labels of an existing one.
pub async fn register(context: &Context) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let name = &context.settings.node_name;
    let labels = labels(context);
    let provided_ip = provided_ip(&context.settings);
    if nodes.get_opt(name).await?.is_some() {
        // Null removes the annotation of a node that no longer has a cloud provider.
        let change = json!({ "metadata": { "labels": labels, "annotations": { PROVIDED_IP: provided_ip } } });
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        return Ok(());
    }
    let own = ("volumes.kubernetes.io/controller-managed-attach-detach".to_string(), "true".to_string());
    let annotations = std::iter::once(own).chain(provided_ip.map(|ip| (PROVIDED_IP.to_string(), ip)));
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(annotations.collect()),
            ..Default::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints(&context.settings)).filter(|taints| !taints.is_empty()),
            provider_id: context.settings.provider_id.clone(),
            ..Default::default()
        }),
        status: None,
    };
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Names the configured address of a node to its cloud provider.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

fn provided_ip(settings: &Settings) -> Option<String> {
    let is_given = settings.external_cloud_provider && settings.node_ip_is_given;
    is_given.then(|| settings.node_ip.to_string())
}

/// A node with an external cloud provider is tainted until that has initialized it.
fn taints(settings: &Settings) -> Vec<Taint> {
    let mut taints = settings.taints.clone();
    if settings.external_cloud_provider {
        taints.push(Taint {
            key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
            value: Some("true".into()),
            effect: "NoSchedule".into(),
            ..Default::default()
        });
    }
    taints
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
        let current = api_status(&context);
        let previous = match &written {
            Some((status, _)) if !overwritten(current.as_ref(), status) => status.conditions.clone(),
            _ => current.as_ref().and_then(|status| status.conditions.clone()),
        };
        let observed = observe(&context, &pods, serving_port, previous.unwrap_or_default()).await;
        let new = status(&context, &observed, Timestamp::now());
        let stale = written.as_ref().is_none_or(|(old, at)| {
            at.elapsed() >= context.settings.tuning.status_report
                || without_heartbeat(old) != without_heartbeat(&new)
                || overwritten(current.as_ref(), &new)
        });
        if stale {
            report(&context, &nodes, &mut written, &observed.previous, new).await;
        }
        let pause = match &written {
            Some((status, _)) if is_ready(status) => context.settings.tuning.status_update,
            // Pods wait for the node to be ready.
            Some(_) => NOT_READY_POLL_INTERVAL,
            None => Duration::from_millis(500),
        };
        let ours = written.as_ref().map(|(status, _)| status);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changed.notified() => {}
            () = context.csi.in_use_changed.notified() => {}
            // Limits the rate of corrections if another writer keeps overwriting the status.
            () = other_writes(&context, &mut changes, ours) => tokio::time::sleep(NOT_READY_POLL_INTERVAL).await,
        }
    }
}

/// Reads what the status is computed from. `previous` are the conditions so far.
async fn observe(context: &Context, pods: &Pods, serving_port: u16, previous: Vec<NodeCondition>) -> ObservedNode {
    let observed = ObservedNode {
        runtime: context.runtime.status(false).await.ok(),
        images: context.runtime.list_images().await.unwrap_or_default(),
        pressure: pods.pressure(),
        serving_port,
        previous,
        shutting_down: pods.is_shutting_down(),
    };
    if let Some(runtime) = &observed.runtime {
        *context.runtime_features.write() = RuntimeFeatures::of(runtime);
    }
    observed
}

/// Writes a new status, and registers the node again if it was deleted. `written` is the last status in the API.
async fn report(
    context: &Context,
    nodes: &Api<Node>,
    written: &mut Option<(NodeStatus, Instant)>,
    previous: &[NodeCondition],
    new: NodeStatus,
) {
    let old = written.as_ref().map(|(status, _)| status);
    match with_timeout(TIMEOUT, write(nodes, &context.settings.node_name, old, &new)).await {
        Ok(()) => {
            context.csi.set_reported(new.volumes_in_use.as_deref().unwrap_or_default());
            record_condition_changes(context, previous, &new);
            if is_ready(&new) {
                super::startup::ready(&context.metrics, context.host.booted_at);
            }
            *written = Some((new, Instant::now()));
        }
        Err(kube::Error::Api(status)) if status.code == 404 && context.settings.register => {
            if let Err(error) = with_timeout(TIMEOUT, register(context)).await
                && !is_unreachable(&error)
            {
                tracing::warn!(%error, "cannot register the node again");
            }
            *written = None;
        }
        Err(error) if is_unreachable(&error) => {}
        Err(error) => tracing::warn!(%error, "cannot write the node's status"),
    }
}

/// Waits until another writer, such as the node lifecycle controller, changes the kubelet's own conditions.
async fn other_writes(
    context: &Context,
    changes: &mut tokio::sync::mpsc::UnboundedReceiver<knarr_client::Change<Node>>,
    ours: Option<&NodeStatus>,
) {
    while changes.recv().await.is_some() {
        if ours.is_some_and(|ours| overwritten(api_status(context).as_ref(), ours)) {
            return;
        }
    }
    std::future::pending().await
}

/// The node's status in the API, as last observed.
fn api_status(context: &Context) -> Option<NodeStatus> {
    context.node.get("", &context.settings.node_name)?.status.clone()
}

/// Whether the API has other condition values than ours. The control plane sets a silent node's conditions to unknown,
/// which only the kubelet can correct.
fn overwritten(current: Option<&NodeStatus>, ours: &NodeStatus) -> bool {
    let Some(current) = current else { return false };
    ours.conditions.iter().flatten().any(|condition| {
        let known = current.conditions.iter().flatten().find(|known| known.type_ == condition.type_);
        known.is_some_and(|known| known.status != condition.status)
    })
}

fn is_ready(status: &NodeStatus) -> bool {
    knarr_client::node::condition(status, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Records an event for each changed condition.
fn record_condition_changes(context: &Context, old: &[NodeCondition], new: &NodeStatus) {
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
        context.events.about_node(false, reason, format!("Node {name} status is now: {reason}"));
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
    // Amounts are merged by name: resources that are gone must be set to null.
    let before = old.and_then(|old| old.capacity.as_ref()).into_iter().flatten();
    for (gone, _) in before.filter(|(name, _)| !status.capacity.as_ref().is_some_and(|own| own.contains_key(*name))) {
        value["capacity"][gone] = Value::Null;
        value["allocatable"][gone] = Value::Null;
    }
    // Addresses would be merged by type and keep old ones forever, so the list is replaced.
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
    fn a_cloud_provider_initializes_the_node() {
        let mut settings = Settings::new("n", "/data", String::new());
        settings.node_ip_is_given = true;
        assert_eq!((taints(&settings), provided_ip(&settings)), (Vec::new(), None));
        settings.external_cloud_provider = true;
        let found: Vec<String> =
            taints(&settings).into_iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
        assert_eq!(found, ["node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"]);
        assert_eq!(provided_ip(&settings).as_deref(), Some("127.0.0.1"));
        settings.node_ip_is_given = false;
        assert_eq!(provided_ip(&settings), None);
    }

    #[test]
    fn a_verdict_of_others_is_seen() {
        let of = |ready: &str| -> NodeStatus {
            serde_json::from_value(json!({ "conditions": [
                { "type": "Ready", "status": ready }, { "type": "DiskPressure", "status": "False" }] }))
            .expect("a status")
        };
        let ours = of("True");
        for (current, expected) in [
            (Some(of("Unknown")), true),
            (Some(of("True")), false),
            (Some(NodeStatus::default()), false),
            (None, false),
        ] {
            assert_eq!(overwritten(current.as_ref(), &ours), expected, "{current:?}");
        }
    }
}
