//! `knarr drain-and-stop`: moves this node's pods away, then ends the server or agent.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_client::kube::api::{EvictParams, ListParams, Patch, PatchParams};
use knarr_client::kube::{self, Api, Client, ResourceExt};
use serde_json::json;

use super::{common, stop};
use crate::join::Identity;
use crate::running;

const LOOK: Duration = Duration::from_millis(500);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where it keeps its files.
    #[arg(long, default_value = common::DATA)]
    pub data_dir: PathBuf,
    /// The node's name; the machine's name when it is not given.
    #[arg(long)]
    pub node_name: Option<String>,
    /// How many seconds to wait for the pods to go; budgets may hold them back.
    #[arg(long, default_value_t = 300)]
    pub timeout: u64,
    /// The server of an agent, such as https://10.0.0.1:6443.
    #[arg(long, env = "KNARR_SERVER")]
    pub server: Option<http::Uri>,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if running::find(&arguments.data_dir)?.is_none() {
        bail!("Knarr does not run on {}", arguments.data_dir.display());
    }
    let name = common::node_name(arguments.node_name.as_deref())?;
    let client = client(&arguments).await?;
    cordon(&client, &name).await.with_context(|| format!("node {name} cannot be closed for new pods"))?;
    drain(&client, &name, Duration::from_secs(arguments.timeout)).await?;
    stop::run(&stop::Arguments { data_dir: arguments.data_dir, timeout: 60 })?;
    println!("to take pods again after the next start: kubectl uncordon {name}");
    Ok(())
}

/// On a server the administrator, on an agent the node itself.
async fn client(arguments: &Arguments) -> anyhow::Result<Client> {
    let kubeconfig = common::kubeconfig(&arguments.data_dir);
    if kubeconfig.exists() {
        return common::connect(&kubeconfig).await;
    }
    let Some(server) = &arguments.server else {
        bail!("name the server with --server, as for `knarr agent`");
    };
    Identity::client_of(server, &arguments.data_dir)
}

async fn cordon(client: &Client, name: &str) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    nodes.patch(name, &PatchParams::default(), &patch).await.map(drop)
}

async fn drain(client: &Client, node: &str, patience: Duration) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut asked = BTreeSet::new();
    loop {
        let pods: Api<Pod> = Api::all(client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let left: Vec<Pod> = pods.list(&here).await?.items.into_iter().filter(is_moved).collect();
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > patience {
            let names: Vec<String> = left.iter().map(full_name).collect();
            bail!("these pods have not gone within {} s: {}", patience.as_secs(), names.join(", "));
        }
        for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            if evict(client, pod).await? && asked.insert(full_name(pod)) {
                println!("evicted {}", full_name(pod));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A node's own pods and those of daemon sets would come back at once.
fn is_moved(pod: &Pod) -> bool {
    let is_static = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let is_daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !is_static && !is_daemon && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Tells whether the pod is going; a budget may not allow it yet.
async fn evict(client: &Client, pod: &Pod) -> anyhow::Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    match pods.evict(&pod.name_any(), &EvictParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{} cannot be evicted", full_name(pod))),
    }
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_run_elsewhere_too_are_moved() {
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
            assert_eq!(is_moved(&pod), expected, "{pod:?}");
        }
    }
}
