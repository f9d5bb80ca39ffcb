//! Carries out a plan for a pod's volumes: claims get the volume or the node that was chosen for them, and the pod waits
//! until they are bound.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use knarr_client::api_error::message;
use knarr_client::{Change, Informer, Informers};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::storage::{SELECTED_NODE, is_fully_bound, volume_name};
use crate::plugins::volume_binding::{VolumePlan, is_reachable};

/// How long a pod waits for its claims to be bound before it is decided again.
const BIND_TIMEOUT: Duration = Duration::from_secs(600);
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{}", message(.0))]
    Api(#[from] kube::Error),
    #[error("binding volumes: {0}")]
    Lost(String),
    #[error("binding volumes: context deadline exceeded")]
    TooLong,
}

/// Where the state of claims and volumes is read while waiting.
#[derive(Clone)]
pub struct VolumeInformers {
    claims: Arc<Informer<PersistentVolumeClaim>>,
    volumes: Arc<Informer<PersistentVolume>>,
    pods: Arc<Informer<Pod>>,
    nodes: Arc<Informer<Node>>,
    /// Notified when a claim has changed or a pod was deleted.
    changes: watch::Receiver<()>,
}

impl VolumeInformers {
    pub fn new(informers: &Informers) -> Self {
        let (sender, changes) = watch::channel(());
        let claims: Arc<Informer<PersistentVolumeClaim>> = informers.of();
        let pods: Arc<Informer<Pod>> = informers.of();
        let sender = Arc::new(sender);
        let other = Arc::clone(&sender);
        claims.on_change(move |_| other.send_replace(()));
        pods.on_change(move |change| {
            if matches!(change, Change::Deleted(_)) {
                sender.send_replace(());
            }
        });
        VolumeInformers { claims, volumes: informers.of(), pods, nodes: informers.of(), changes }
    }
}

/// Carries the plan out, and returns when all its claims are bound.
pub async fn bind_volumes(
    client: Client,
    watched: &VolumeInformers,
    pod: &PodState,
    node: &str,
    plan: &VolumePlan,
) -> Result<(), VolumeError> {
    let mut written = Vec::new();
    for (claim, volume) in &plan.bind {
        reserve_volume(client.clone(), claim, volume).await?;
        written.push((claim, true));
    }
    let mut spans = Vec::new();
    for claim in &plan.provision {
        spans.push(provisioning_span(pod, claim));
        let version = select_node(client.clone(), claim, node).await?;
        written.push((claim, false));
        tracing::debug!(pod = &*pod.key, version, "requested a volume");
    }
    let all_bound = async {
        // Subscribes before the check, so that no change between check and wait is missed.
        let mut changes = watched.changes.clone();
        loop {
            changes.borrow_and_update();
            let mut bound = true;
            for (claim, is_given) in &written {
                bound &= is_bound(watched, pod, claim, node, *is_given)?;
            }
            if bound {
                return Ok(());
            }
            changes.changed().await.map_err(|_| VolumeError::Lost("the API is no longer watched".to_owned()))?;
        }
    };
    let bound = tokio::time::timeout(BIND_TIMEOUT, all_bound).await.unwrap_or(Err(VolumeError::TooLong));
    drop(spans);
    bound
}

/// Lasts until the claim is bound, for the pod's timeline.
fn provisioning_span(pod: &PodState, claim: &PersistentVolumeClaim) -> tracing::Span {
    let object = format!("pods/{}/{}", pod.namespace(), pod.name());
    let claim = claim.metadata.name.as_deref().unwrap_or_default();
    tracing::info_span!(target: "journey", "provisioned", object, claim)
}

/// Writes the claim into the volume; the binding controller does the rest.
async fn reserve_volume(
    client: Client,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<(), VolumeError> {
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
        "name": claim.metadata.name, "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
    });
    let mut metadata = json!({"resourceVersion": volume.metadata.resource_version});
    if !crate::cluster::storage::is_for_claim(volume, claim) {
        metadata["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    let patch = json!({"metadata": metadata, "spec": {"claimRef": reference}});
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    Api::<PersistentVolume>::all(client).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Requests a volume that the node can use.
async fn select_node(client: Client, claim: &PersistentVolumeClaim, node: &str) -> Result<String, VolumeError> {
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(client, claim.metadata.namespace.as_deref().unwrap_or_default());
    let metadata = json!({"resourceVersion": claim.metadata.resource_version, "annotations": {SELECTED_NODE: node}});
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let written = claims.patch(name, &PatchParams::default(), &patch).await?;
    Ok(written.metadata.resource_version.unwrap_or_default())
}

/// Whether a claim is bound; an error when it will not be, so that the pod must be decided again.
fn is_bound(
    watched: &VolumeInformers,
    pod: &PodState,
    claim: &PersistentVolumeClaim,
    node: &str,
    is_given: bool,
) -> Result<bool, VolumeError> {
    if watched.pods.get(pod.namespace(), pod.name()).is_none_or(|now| now.metadata.uid.as_deref() != Some(pod.uid())) {
        return Err(VolumeError::Lost("pod does not exist any more".to_owned()));
    }
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let Some(now) = watched.claims.get(claim.metadata.namespace.as_deref().unwrap_or_default(), name) else {
        return Err(VolumeError::Lost(format!("failed to check binding: persistentvolumeclaim \"{name}\" not found")));
    };
    let is_as_decided = now.metadata.resource_version == claim.metadata.resource_version;
    if !is_given && !is_as_decided {
        let selected = now.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SELECTED_NODE));
        if selected.map(String::as_str) != Some(node) {
            return Err(VolumeError::Lost(format!("provisioning failed for PVC \"{name}\"")));
        }
    }
    if let Some(volume) = volume_name(&now).and_then(|name| watched.volumes.get("", name))
        && let Some(object) = watched.nodes.get("", node)
        && !is_reachable(&volume, &NodeState::new(object))
    {
        let volume = volume.metadata.name.as_deref().unwrap_or_default();
        return Err(VolumeError::Lost(format!("pv \"{volume}\" node affinity doesn't match node \"{node}\"")));
    }
    Ok(is_fully_bound(&now))
}
