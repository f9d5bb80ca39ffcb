//! Reads from the caches what is to be known of one volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodStatus};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_client::{Informer, node, owner, pod};

use super::names::VolumeId;
use super::plan::{Attachment, Observed, State};
use super::{BY_ID, BY_VOLUME, Controller, PODS_BY_INLINE};
use crate::common::key::{name, namespace, uid};
use crate::volume_binder::BY_CLAIM;

/// How long the cache may lag behind a write.
const CACHE_TIMEOUT: Duration = Duration::from_secs(30);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The fields of a pod that attachments depend on.
pub(super) fn pod_key(pod: &Pod) -> (Option<&str>, bool) {
    (pod::node_name(pod), is_done(pod))
}

/// The fields of a node that attachments depend on.
pub(super) fn node_key(node: &Node) -> (bool, bool, Vec<&str>, Vec<&str>) {
    let status = node.status.as_ref();
    let in_use = status.and_then(|status| status.volumes_in_use.as_deref()).unwrap_or_default();
    let attached = status.and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default();
    let attached = attached.iter().map(|volume| volume.name.as_str()).collect();
    (node::is_ready(node), is_out_of_service(node), in_use.iter().map(String::as_str).collect(), attached)
}

fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

pub(super) fn is_in_use(node: &Node, id: &VolumeId) -> bool {
    let mut in_use = node.status.iter().flat_map(|status| status.volumes_in_use.iter().flatten());
    in_use.any(|volume| *volume == id.unique_name())
}

/// Whether the node knows that the volume is attached to it.
pub(super) fn is_attached(node: &Node, id: &VolumeId) -> bool {
    let mut attached = node.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
    attached.any(|volume| volume.name == id.unique_name())
}

/// Whether a pod needs its volumes no more: it has finished, or it is deleted and none of its containers runs. The node's
/// `volumesInUse` still keeps the volume until it is unmounted.
fn is_done(pod: &Pod) -> bool {
    let runs = |status: &ContainerStatus| {
        status.state.as_ref().is_none_or(|state| state.terminated.is_none() && state.waiting.is_none())
    };
    let any_runs = |status: &PodStatus| {
        let all = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        all.into_iter().flatten().flatten().any(runs)
    };
    pod::is_terminal(pod) || pod::is_terminating(pod) && !pod.status.as_ref().is_some_and(any_runs)
}

/// The PersistentVolumes that the claims of a pod are bound to.
pub(super) fn claimed_volumes(
    pod: &Pod,
    claims: &Informer<PersistentVolumeClaim>,
    volumes: &Informer<PersistentVolume>,
) -> Vec<Arc<PersistentVolume>> {
    let named = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    named
        .filter_map(|volume| {
            let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => source.claim_name.clone(),
                (None, Some(_)) => format!("{}-{}", name(pod), volume.name),
                (None, None) => return None,
            };
            let claim = claims.get(namespace(pod), &claim)?;
            volumes.get("", claim.spec.as_ref()?.volume_name.as_deref()?)
        })
        .collect()
}

/// Whether several nodes may have the volume attached: not if it is meant for one node, else the driver decides.
fn is_shared(modes: Option<&Vec<String>>) -> bool {
    let modes = modes.map_or(&[][..], Vec::as_slice);
    modes.is_empty() || modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

/// Whether claim and volume are bound to each other.
fn is_bound(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        && claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == Some(name(volume))
        && reference.and_then(|reference| reference.uid.as_deref()) == Some(uid(claim))
}

impl Controller {
    pub(super) fn observe(&self, id: &VolumeId) -> Observed {
        let volumes = self.volumes.by_index(BY_ID, &id.unique_name());
        let inline = self.pods.by_index(PODS_BY_INLINE, &id.unique_name());
        let inline_spec = inline.iter().find_map(|pod| {
            super::source::inline_volumes(pod).into_iter().find(|(other, _)| other == id).map(|(_, spec)| spec)
        });
        let specs = volumes.iter().filter_map(|volume| volume.spec.as_ref()).chain(inline_spec.as_ref());
        let shared = specs.into_iter().all(|spec| is_shared(spec.access_modes.as_ref()));
        let driver = self.drivers.get("", &id.driver);
        let attaches = driver.is_none_or(|driver| driver.spec.attach_required.unwrap_or(true));
        let mut desired: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        if attaches {
            let users = volumes.iter().flat_map(|volume| self.users_of(volume)).chain(inline);
            for pod in users.filter(|pod| !is_done(pod)) {
                let Some(node) = pod::node_name(&pod) else { continue };
                if self.nodes.get("", node).is_some() {
                    desired.entry(node.to_owned()).or_default().push(pod);
                }
            }
        }
        let attachments = self.attachments_of(id, &volumes, desired.keys());
        let name = volumes.first().map_or_else(|| "nil".to_owned(), |volume| name(&**volume).to_owned());
        let force_detach_on_timeout = !self.context.settings.disable_force_detach_on_timeout;
        Observed { id: id.clone(), name, shared, desired, attachments, force_detach_on_timeout }
    }

    fn users_of(&self, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let Some((namespace, claim)) = reference.and_then(|to| Some((to.namespace.as_deref()?, to.name.as_deref()?)))
        else {
            return Vec::new();
        };
        let Some(claim) = self.claims.get(namespace, claim).filter(|claim| is_bound(volume, claim)) else {
            return Vec::new();
        };
        let users = self.pods.by_index(BY_CLAIM, &format!("{namespace}/{}", name(&*claim)));
        users.into_iter().filter(|pod| may_use(pod, &claim)).collect()
    }

    fn attachments_of<'a>(
        &self,
        id: &VolumeId,
        volumes: &[Arc<PersistentVolume>],
        desired: impl Iterator<Item = &'a String>,
    ) -> BTreeMap<String, Attachment> {
        if id.is_disk() {
            let attached = self.state.lock().disks.nodes_of(id);
            return attached.map(|node| (node.clone(), self.attachment(id, &node, State::Attached))).collect();
        }
        let mut nodes: BTreeSet<String> = desired.cloned().collect();
        for volume in volumes {
            let known = self.attachments.by_index(BY_VOLUME, name(&**volume));
            nodes.extend(known.into_iter().map(|attachment| attachment.spec.node_name.clone()));
        }
        if let Some(memory) = self.state.lock().memory.get(id) {
            nodes.extend(memory.keys().cloned());
        }
        let found = nodes.into_iter().filter_map(|node| {
            let state = self.state_of(&id.attachment_name(&node))?;
            let attachment = self.attachment(id, &node, state);
            Some((node, attachment))
        });
        found.collect()
    }

    pub(super) fn state_of(&self, attachment: &str) -> Option<State> {
        let state = self.state.lock();
        match self.attachments.get("", attachment) {
            Some(object) if state.releasing.get(attachment).is_some_and(|own| own == uid(&*object)) => {
                Some(State::Detaching)
            }
            Some(object) => Some(state_of(&object)),
            // One that the cache does not show for long has been deleted before the cache saw it.
            None => {
                let created = state.created.get(attachment)?;
                (self.now().saturating_sub(*created) < CACHE_TIMEOUT).then_some(State::Pending)
            }
        }
    }

    fn attachment(&self, id: &VolumeId, node: &str, state: State) -> Attachment {
        let key = id.attachment_name(node);
        let Some(node) = self.nodes.get("", node) else {
            // A deleted node keeps its mounts; what it never reported is assumed to be mounted.
            let in_use = self.state.lock().in_use.get(&key).copied().unwrap_or(true);
            return Attachment { state, in_use, node_ready: false, out_of_service: false };
        };
        let in_use = is_in_use(&node, id);
        self.state.lock().in_use.insert(key, in_use);
        Attachment { state, in_use, node_ready: node::is_ready(&node), out_of_service: is_out_of_service(&node) }
    }
}

/// Whether the pod may use the claim: one of a generic ephemeral volume belongs to its own pod only.
fn may_use(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => source.claim_name == name(claim),
        (None, Some(_)) => {
            format!("{}-{}", name(pod), volume.name) == name(claim)
                && owner::is_controlled_by(&claim.metadata, &pod.metadata)
        }
        _ => false,
    })
}

fn state_of(attachment: &VolumeAttachment) -> State {
    if attachment.metadata.deletion_timestamp.is_some() {
        return State::Detaching;
    }
    let Some(status) = &attachment.status else { return State::Pending };
    match &status.attach_error {
        _ if status.attached => State::Attached,
        Some(error) => State::Failed(error.message.clone().unwrap_or_default()),
        None => State::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_state_follows_from_the_attachment() {
        let attachment = |metadata: Value, status: Value| -> VolumeAttachment {
            let spec = json!({"attacher": "d", "nodeName": "n", "source": {}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
        };
        let error = json!({"attached": false, "attachError": {"message": "no"}});
        let leaving = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (object, expected) in [
            (attachment(json!({}), Value::Null), State::Pending),
            (attachment(json!({}), json!({"attached": true})), State::Attached),
            (attachment(json!({}), error.clone()), State::Failed("no".into())),
            (attachment(leaving, json!({"attached": true})), State::Detaching),
        ] {
            assert_eq!(state_of(&object), expected);
        }
    }

    #[test]
    fn volumes_for_one_node_are_exclusive() {
        let modes = |modes: &[&str]| Some(modes.iter().map(|mode| mode.to_string()).collect::<Vec<_>>());
        for (modes, shared) in [
            (None, true),
            (modes(&["ReadWriteOnce"]), false),
            (modes(&["ReadWriteOncePod"]), false),
            (modes(&["ReadWriteOnce", "ReadOnlyMany"]), true),
            (modes(&["ReadWriteMany"]), true),
        ] {
            assert_eq!(is_shared(modes.as_ref()), shared, "{modes:?}");
        }
    }

    #[test]
    fn a_pod_needs_its_volumes_while_a_container_runs() {
        let pod = |deleted: bool, phase: &str, kind: &str, state: Value| -> Pod {
            let metadata = if deleted { json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}) } else { json!({}) };
            let container =
                json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase, kind: [container]}}))
                .unwrap()
        };
        let (main, init, added) = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses");
        let (running, terminated) = (json!({"running": {}}), json!({"terminated": {"exitCode": 0}}));
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        for (deleted, phase, kind, state, done) in [
            (false, "Running", main, &running, false),
            (false, "Running", main, &terminated, false),
            (false, "Pending", main, &waiting, false),
            (true, "Running", main, &running, false),
            (true, "Running", main, &json!({}), false),
            (true, "Running", init, &running, false),
            (true, "Running", added, &running, false),
            (true, "Running", main, &terminated, true),
            (true, "Pending", main, &waiting, true),
            (false, "Succeeded", main, &terminated, true),
        ] {
            assert_eq!(is_done(&pod(deleted, phase, kind, state.clone())), done, "{deleted} {phase} {kind} {state}");
        }
        let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(is_done(&serde_json::from_value(gone).unwrap()), "no container was started");
    }
}
