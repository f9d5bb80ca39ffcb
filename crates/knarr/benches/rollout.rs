//! A Deployment of many replicas on hollow nodes: created, rolled out with another image, and deleted with its namespace. Prints
//! the duration of each step, and the CPU time and memory of each component.
//!
//! `cargo bench -p knarr --bench rollout -- [replicas]`

#[path = "../tests/control_plane/support/mod.rs"]
#[allow(dead_code)]
mod support;

use std::time::{Duration, Instant};

use knarr_client::k8s_openapi::api::apps::v1::Deployment;
use knarr_client::k8s_openapi::api::core::v1::Namespace;
use knarr_client::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use knarr_client::kube::{Api, Client};
use serde_json::json;
use support::ControlPlane;
use support::hollow::HollowNodes;

const NAMESPACE: &str = "rollout";
const PODS_A_NODE: usize = 100;
const COMPONENTS: [&str; 3] = ["apiserver", "controller-manager", "scheduler"];

#[tokio::main]
async fn main() {
    let replicas: usize = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10_000);
    let plane = ControlPlane::start();
    let client = plane.client().await;
    // Room for the surge of a rolling update.
    let _nodes = HollowNodes::start(client.clone(), replicas * 5 / 4 / PODS_A_NODE + 1).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
    namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace is created");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);

    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "one"}]}}},
    }))
    .expect("a deployment");
    println!("{:<10} {:>7}   processor seconds and largest memory of each component", "stage", "seconds");
    let stage = Stage::start(&plane, "roll out");
    deployments.create(&PostParams::default(), &deployment).await.expect("a deployment is created");
    rolled_out(&client, replicas).await;
    stage.end();

    let stage = Stage::start(&plane, "roll over");
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a new image is set");
    rolled_out(&client, replicas).await;
    stage.end();

    let stage = Stage::start(&plane, "delete");
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await.expect("the namespace is deleted");
    while namespaces.get_opt(NAMESPACE).await.expect("the namespace is asked for").is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.end();
}

async fn rolled_out(client: &Client, replicas: usize) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let wanted = Some(replicas as i32);
    loop {
        let found = deployments.get("web").await.expect("the deployment");
        let status = found.status.unwrap_or_default();
        if status.observed_generation == found.metadata.generation
            && [status.replicas, status.updated_replicas, status.available_replicas] == [wanted; 3]
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Stage<'a> {
    plane: &'a ControlPlane,
    name: &'static str,
    started: Instant,
    before: [f64; 3],
}

impl<'a> Stage<'a> {
    fn start(plane: &'a ControlPlane, name: &'static str) -> Self {
        Stage {
            plane,
            name,
            started: Instant::now(),
            before: COMPONENTS.map(|component| processor_seconds(plane.pid(component))),
        }
    }

    fn end(self) {
        let took = self.started.elapsed().as_secs_f64();
        let parts = COMPONENTS.iter().zip(self.before).map(|(component, before)| {
            let pid = self.plane.pid(component);
            format!("{component} {:.1} s {} MB", processor_seconds(pid) - before, largest_memory(pid) / 1024)
        });
        println!("{:<10} {took:>7.1}   {}", self.name, parts.collect::<Vec<_>>().join(", "));
    }
}

/// User and system time of a process; clock ticks are hundredths of a second on Linux.
fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Peak memory of a process, in KiB.
fn largest_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
