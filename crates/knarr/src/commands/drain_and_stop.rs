//! `knarr drain-and-stop`: drains this node, then stops the server or agent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_client::kube::api::{EvictParams, ListParams, Patch, PatchParams};
use knarr_client::kube::{self, Api, Client, ResourceExt};
use serde_json::json;

use super::{ClientArguments, common, stop};
use crate::data_directory_lock;
use crate::join::Identity;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub cluster: ClientArguments,
    /// Node name; by default the host name.
    #[arg(long)]
    pub node_name: Option<String>,
    /// Seconds to wait for the eviction of pods; disruption budgets may delay it.
    #[arg(long, default_value_t = 300)]
    pub timeout: u64,
    /// URL of an agent's server, such as https://10.0.0.1:6443.
    #[arg(long, env = "KNARR_SERVER")]
    pub server: Option<http::Uri>,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let data = &arguments.cluster.data_dir;
    if data_directory_lock::find(data)?.is_none() {
        bail!("Knarr is not running on {}", data.display());
    }
    let name = common::node_name(arguments.node_name.as_deref())?;
    let client = client(&arguments).await?;
    check_host(&client, &name).await?;
    cordon(&client, &name).await.with_context(|| format!("cannot cordon node {name}"))?;
    drain(&client, &name, Duration::from_secs(arguments.timeout)).await?;
    stop::run(&stop::Arguments { data_dir: data.clone(), timeout: 60 })?;
    println!("to schedule pods on this node again after the next start: kubectl uncordon {name}");
    Ok(())
}

/// A client of the user's kubeconfig; without one as the administrator on a server, as the node itself on an agent.
async fn client(arguments: &Arguments) -> anyhow::Result<Client> {
    let cluster = &arguments.cluster;
    let own = common::kubeconfig(&cluster.data_dir);
    if cluster.kubeconfig.is_some() || own.exists() {
        return cluster.client().await;
    }
    let Some(server) = &arguments.server else {
        bail!("set --server, as for `knarr agent`, or --kubeconfig");
    };
    Identity::client_of(server, &cluster.data_dir)
}

/// A kubeconfig may be that of another cluster, which has a node of the same name: it must not be drained.
async fn check_host(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(name).await.with_context(|| format!("cannot read node {name}"))?;
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read this host's boot ID")?;
    if !is_host(&node, own.trim()) {
        bail!("node {name} of that cluster is another host: check --kubeconfig, KUBECONFIG and --node-name");
    }
    Ok(())
}

fn is_host(node: &Node, boot_id: &str) -> bool {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.is_some_and(|info| info.boot_id == boot_id)
}

async fn cordon(client: &Client, name: &str) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    nodes.patch(name, &PatchParams::default(), &patch).await.map(drop)
}

async fn drain(client: &Client, node: &str, timeout: Duration) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut evicted = BTreeSet::new();
    loop {
        let pods: Api<Pod> = Api::all(client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let left: Vec<Pod> = pods.list(&here).await?.items.into_iter().filter(is_drained).collect();
        if left.is_empty() {
            return Ok(());
        }
        if started.elapsed() > timeout {
            let names: Vec<String> = left.iter().map(full_name).collect();
            bail!("these pods were not evicted within {} s: {}", timeout.as_secs(), names.join(", "));
        }
        for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            if evict(client, pod).await? && evicted.insert(full_name(pod)) {
                println!("evicted {}", full_name(pod));
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Static pods and pods of DaemonSets would be created again at once.
fn is_drained(pod: &Pod) -> bool {
    let is_static = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let is_daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !is_static && !is_daemon && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns whether the pod is being evicted; a disruption budget may not allow it yet.
async fn evict(client: &Client, pod: &Pod) -> anyhow::Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    match pods.evict(&pod.name_any(), &EvictParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot evict {}", full_name(pod))),
    }
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_the_same_name_elsewhere_is_not_drained() {
        let node = |boot_id: &str| -> Node {
            let info = json!({
                "bootID": boot_id, "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                "systemUUID": "",
            });
            serde_json::from_value(json!({"status": {"nodeInfo": info}})).unwrap()
        };
        assert!(is_host(&node("a"), "a"));
        assert!(!is_host(&node("b"), "a"));
        assert!(!is_host(&Node::default(), "a"));
    }

    #[test]
    fn only_pods_that_can_run_elsewhere_are_evicted() {
        for (meta, phase, expected) in [
            (json!({}), "Running", true),
            (
                json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}]}),
                "Running",
                true,
            ),
            (
                json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]}),
                "Running",
                false,
            ),
            (json!({"annotations": {"kubernetes.io/config.mirror": "x"}}), "Running", false),
            (json!({}), "Succeeded", false),
        ] {
            let pod: Pod = serde_json::from_value(json!({"metadata": meta, "status": {"phase": phase}})).unwrap();
            assert_eq!(is_drained(&pod), expected, "{pod:?}");
        }
    }
}
