//! Hollow nodes, which only pretend to run pods: bound pods become ready, pods of Jobs succeed, deleted pods are removed.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use knarr_client::k8s_openapi::api::coordination::v1::Lease;
use knarr_client::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_client::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use knarr_client::kube::{self, Api, Client};
use knarr_client::{Change, Informers};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const HEARTBEAT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const REQUESTS_AT_ONCE: usize = 32;

/// Nodes whose tasks stop on drop.
pub struct HollowNodes {
    _tasks: JoinSet<()>,
}

impl HollowNodes {
    pub async fn start(client: Client, count: usize) -> Self {
        let room = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
        let names: Vec<String> = (0..count).map(|number| format!("hollow-{number}")).collect();
        futures::stream::iter(&names)
            .for_each_concurrent(REQUESTS_AT_ONCE, |name| register(&client, name, "z", &room))
            .await;
        let mut tasks = JoinSet::new();
        tasks.spawn(beat(client.clone(), names));
        tasks.spawn(play(client));
        HollowNodes { _tasks: tasks }
    }
}

/// Creates a ready node with these allocatable resources, in a zone unless that is empty.
pub async fn register(client: &Client, name: &str, zone: &str, room: &Value) {
    let mut labels = json!({"kubernetes.io/hostname": name});
    if !zone.is_empty() {
        labels["topology.kubernetes.io/zone"] = zone.into();
    }
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).expect("a node");
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.expect("a node is created");
    let now = knarr_client::time::now();
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
        .await
        .expect("the node's status is written");
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    nodes.patch(name, &PatchParams::default(), &untainted).await.expect("the node is open to pods");
}

/// Renews the nodes' leases.
async fn beat(client: Client, names: Vec<String>) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    loop {
        for name in &names {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": knarr_client::time::now_micro()}});
            // A failure is repaired by the next renewal.
            let _ = leases.patch(name, &PatchParams::apply("hollow").force(), &Patch::Apply(lease)).await;
        }
        tokio::time::sleep(HEARTBEAT).await;
    }
}

async fn play(client: Client) {
    let informers = Informers::new(client.clone());
    let pods = informers.of::<Pod>();
    let mut changes = pods.subscribe();
    let places = Arc::new(Semaphore::new(REQUESTS_AT_ONCE));
    let mut requests = JoinSet::new();
    while let Some(change) = changes.recv().await {
        let (Change::Added(pod) | Change::Updated { new: pod, .. }) = change else { continue };
        if !is_to_act(&pod) {
            continue;
        }
        let place = places.clone().acquire_owned().await.expect("never closed");
        let client = client.clone();
        while requests.try_join_next().is_some() {}
        requests.spawn(async move {
            let _place = place;
            loop {
                match act(client.clone(), &pod).await {
                    Ok(()) => break,
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => break,
                    Err(kube::Error::Api(status)) => panic!("a hollow node cannot report a pod: {status:?}"),
                    // Some tests kill the server.
                    Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
                }
            }
        });
    }
}

fn is_to_act(pod: &Pod) -> bool {
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let started = knarr_client::pod::phase(pod) != "Pending";
    is_bound && (!started || pod.metadata.deletion_timestamp.is_some())
}

async fn act(client: Client, pod: &Pod) -> kube::Result<()> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client, pod.metadata.namespace.as_deref().unwrap_or_default());
    if pod.metadata.deletion_timestamp.is_some() {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        return pods.delete(name, &now).await.map(drop);
    }
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status_of(pod)});
    pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
}

fn status_of(pod: &Pod) -> Value {
    let now = knarr_client::time::now();
    let ends = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) != Some("Always");
    if ends {
        return json!({"phase": "Succeeded", "startTime": now});
    }
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    json!({"phase": "Running", "startTime": now, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [condition("Initialized"), condition("ContainersReady"), condition("Ready")]})
}
