//! Turns API changes into messages to the one task that owns the scheduler's state.

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
    Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_client::informer::Object;
use knarr_client::{Change, Informers, quantity};
use kube::Resource;
use tokio::sync::mpsc::UnboundedSender;

use crate::cluster::Cluster;
use crate::cluster::claims::{ResourceClaims, allocation};
use crate::cluster::pod::PodState;
use crate::cluster::storage::object_key;
use crate::plugins::{volume_limits, volume_zone};
use crate::queue::{ClusterEvent, Queue};

/// A change, or the completion of something that was in flight.
pub enum Message {
    Pod {
        old: Option<Arc<Pod>>,
        new: Option<Arc<Pod>>,
    },
    Node {
        old: Option<Arc<Node>>,
        new: Option<Arc<Node>>,
    },
    Budget {
        old: Option<Arc<PodDisruptionBudget>>,
        new: Option<Arc<PodDisruptionBudget>>,
    },
    /// A change of another kind, to be applied to the cluster's state.
    Other(Apply),
    /// A claim was written for a pod that is being bound.
    ClaimWritten(Box<ResourceClaim>),
    Bound(Arc<PodState>),
    /// The decision could not be carried out.
    Failed {
        pod: Arc<PodState>,
        error: String,
        is_gone: bool,
    },
    /// A victim could not be evicted for this pod.
    NotPreempted(Arc<PodState>),
}

pub type Apply = Box<dyn FnOnce(&mut Cluster, &mut Queue, Timestamp) + Send>;

/// Sends every change; the channel holds at most what the API has changed since the task last ran. Returns when all kinds
/// have been listed once.
pub async fn watch(informers: &Informers, messages: &UnboundedSender<Message>) {
    let mut synced = vec![watch_namespaces(informers, messages)];
    synced.extend(watch_storage(informers, messages));
    synced.extend(watch_workloads(informers, messages));
    synced.extend(watch_devices(informers, messages));
    synced.push(send_changes(informers, messages, |old, new| Message::Node { old, new }));
    synced.push(send_changes(informers, messages, |old, new| Message::Budget { old, new }));
    synced.push(send_changes(informers, messages, |old, new| Message::Pod { old, new }));
    join_all(synced).await;
}

type Synced = BoxFuture<'static, ()>;

fn send_changes<K: Object + Resource<DynamicType = ()>>(
    informers: &Informers,
    messages: &UnboundedSender<Message>,
    message: impl Fn(Option<Arc<K>>, Option<Arc<K>>) -> Message + Send + Sync + 'static,
) -> Synced {
    let sender = messages.clone();
    let informer = informers.of::<K>();
    informer.on_change(move |change| {
        let (old, new) = both(change);
        // The receiver is dropped only with the scheduler.
        let _ = sender.send(message(old, new));
    });
    Box::pin(async move { informer.synced().await })
}

fn watch_namespaces(informers: &Informers, messages: &UnboundedSender<Message>) -> Synced {
    watch_kind::<Namespace>(informers, messages, |old, new, cluster, queue, now| {
        match (old, new) {
            (_, Some(namespace)) => cluster.set_namespace(namespace),
            (Some(namespace), None) => {
                cluster.namespaces.remove(namespace.metadata.name.as_deref().unwrap_or_default());
            }
            (None, None) => {}
        }
        // A new namespace has no pods yet.
        if let (Some(old), Some(new)) = (old, new)
            && old.metadata.labels != new.metadata.labels
        {
            queue.on_event(&ClusterEvent::NamespaceRelabelled, &cluster.namespaces, now);
        }
    })
}

/// Watches what volumes depend on.
fn watch_storage(informers: &Informers, messages: &UnboundedSender<Message>) -> Vec<Synced> {
    vec![
        watch_kind::<PersistentVolumeClaim>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_claim(old, new);
            if let Some(claim) = new {
                let key = object_key(&claim.metadata);
                let event = ClusterEvent::Claim { is_new: old.is_none() };
                let uses_it = |pod: &PodState| pod.claims.iter().any(|used| used.key == key);
                queue.on_event_for(&event, &cluster.namespaces, uses_it, now);
            }
        }),
        watch_kind::<PersistentVolume>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_volume(old, new);
            if let Some(volume) = new {
                let labels = |volume: &PersistentVolume, keys: [&str; 4]| {
                    keys.map(|key| volume.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned())
                };
                let zones = |volume: &PersistentVolume| labels(volume, volume_zone::LABELS);
                let moved = old.is_none_or(|old| zones(old) != zones(volume));
                queue.on_event(&ClusterEvent::Volume { moved }, &cluster.namespaces, now);
            }
        }),
        watch_kind::<StorageClass>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_class(old, new);
            if let Some(class) = new {
                let event = ClusterEvent::StorageClass {
                    is_new: old.is_none(),
                    waits_for_consumer: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
                    topologies_changed: old.is_some_and(|old| old.allowed_topologies != class.allowed_topologies),
                };
                queue.on_event(&event, &cluster.namespaces, now);
            }
        }),
        watch_kind::<CSINode>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_csi_node(old, new);
            if let Some(node) = new {
                let event = ClusterEvent::CsiNode {
                    is_new: old.is_none(),
                    limit_grew: old.is_some_and(|old| volume_limits::is_raised(old, node)),
                };
                queue.on_event(&event, &cluster.namespaces, now);
            }
        }),
        watch_kind::<CSIDriver>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_csi_driver(old, new);
            let counts = |driver: &CSIDriver| driver.spec.storage_capacity == Some(true);
            if let (Some(old), Some(new)) = (old, new)
                && counts(old)
                && !counts(new)
            {
                queue.on_event(&ClusterEvent::CsiDriver, &cluster.namespaces, now);
            }
        }),
        watch_kind::<CSIStorageCapacity>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_capacity(old, new);
            if let Some(new) = new {
                let size = |capacity: &CSIStorageCapacity| {
                    capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref()).map(quantity::value)
                };
                let event = ClusterEvent::StorageCapacity { grew: old.is_none_or(|old| size(new) > size(old)) };
                queue.on_event(&event, &cluster.namespaces, now);
            }
        }),
        watch_kind::<VolumeAttachment>(informers, messages, |old, new, cluster, queue, now| {
            cluster.storage.set_attachment(old, new);
            if new.is_none() {
                queue.on_event(&ClusterEvent::AttachmentRemoved, &cluster.namespaces, now);
            }
        }),
    ]
}

/// Watches what selects pods, by which they are spread.
fn watch_workloads(informers: &Informers, messages: &UnboundedSender<Message>) -> Vec<Synced> {
    vec![
        watch_kind::<Service>(informers, messages, |old, new, cluster, _, _| cluster.workloads.set_service(old, new)),
        watch_kind::<ReplicaSet>(informers, messages, |old, new, cluster, _, _| {
            cluster.workloads.set_replica_set(old, new);
        }),
        watch_kind::<StatefulSet>(informers, messages, |old, new, cluster, _, _| {
            cluster.workloads.set_stateful_set(old, new);
        }),
        watch_kind::<ReplicationController>(informers, messages, |old, new, cluster, _, _| {
            cluster.workloads.set_replication_controller(old, new);
        }),
    ]
}

/// Watches claims for devices, and the devices.
fn watch_devices(informers: &Informers, messages: &UnboundedSender<Message>) -> Vec<Synced> {
    vec![
        watch_kind::<DeviceClass>(informers, messages, |old, new, cluster, queue, now| {
            let resources = cluster.resource_claims.set_class(old, new);
            if new.is_some() {
                let event = ClusterEvent::DeviceClass { is_new: old.is_none(), resources: &resources };
                queue.on_event(&event, &cluster.namespaces, now);
            }
        }),
        watch_kind::<ResourceSlice>(informers, messages, |old, new, cluster, queue, now| {
            cluster.resource_claims.inventory.set(old, new);
            if new.is_some() {
                let event = ClusterEvent::ResourceSlice { is_new: old.is_none() };
                queue.on_event(&event, &cluster.namespaces, now);
            }
        }),
        watch_kind::<ResourceClaim>(informers, messages, |old, new, cluster, queue, now| {
            cluster.resource_claims.set(old, new);
            let claims = &cluster.resource_claims;
            queue.reconsider_gated(|pod| is_gated(pod, claims), now);
            if let Some(claim) = new {
                let event = ClusterEvent::ResourceClaim { is_new: old.is_none() };
                let helps = |pod: &PodState| claim_helps(pod, claims, old, claim);
                queue.on_event_for(&event, &cluster.namespaces, helps, now);
            }
        }),
    ]
}

/// Whether a claim that was created or changed can help a pod: it is the pod's own, or its devices are free now.
fn claim_helps(
    pod: &PodState,
    claims: &ResourceClaims,
    old: Option<&Arc<ResourceClaim>>,
    claim: &ResourceClaim,
) -> bool {
    let Ok(own) = claims.of_pod(&pod.object) else { return false };
    if old.is_some_and(|old| allocation(old).is_some()) && allocation(claim).is_none() {
        return true;
    }
    own.iter().any(|own| own.metadata.uid == claim.metadata.uid) && old.is_none_or(|old| old.status != claim.status)
}

/// Pods are by far the most numerous objects: the cache keeps only the fields that decisions read.
pub fn reduce_pod(pod: &mut Pod) {
    let container = |container: Container| Container {
        name: container.name,
        image: container.image,
        ports: container.ports,
        resources: container.resources,
        restart_policy: container.restart_policy,
        restart_policy_rules: container.restart_policy_rules,
        ..Container::default()
    };
    let status = |status: ContainerStatus| ContainerStatus {
        name: status.name,
        resources: status.resources,
        allocated_resources: status.allocated_resources,
        ..ContainerStatus::default()
    };
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        spec.containers = std::mem::take(&mut spec.containers).into_iter().map(container).collect();
        spec.init_containers = spec.init_containers.take().map(|all| all.into_iter().map(container).collect());
        spec.ephemeral_containers = None;
        spec.security_context = None;
        spec.dns_config = None;
        spec.image_pull_secrets = None;
        spec.host_aliases = None;
        // Every pod has a volume with its token, which no decision reads.
        spec.volumes =
            spec.volumes.take().map(|all| all.into_iter().filter(|volume| volume.projected.is_none()).collect());
    }
    if let Some(pod_status) = &mut pod.status {
        for statuses in [&mut pod_status.container_statuses, &mut pod_status.init_container_statuses] {
            *statuses = statuses.take().map(|all| all.into_iter().map(status).collect());
        }
        pod_status.ephemeral_container_statuses = None;
    }
    knarr_client::pod::shrink_to_fit(pod);
}

/// Whether a pod must not be scheduled yet: because of its scheduling gates, or missing claims.
pub fn is_gated(pod: &PodState, claims: &ResourceClaims) -> bool {
    let Some(spec) = &pod.object.spec else { return false };
    spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty())
        || spec.resource_claims.as_ref().is_some_and(|claimed| !claimed.is_empty())
            && claims.of_pod(&pod.object).is_err()
}

/// Applies a change (old, new) to the cluster's state, and notifies the queue.
type ApplyChange<K> = fn(Option<&Arc<K>>, Option<&Arc<K>>, &mut Cluster, &mut Queue, Timestamp);

fn watch_kind<K: Object + Resource<DynamicType = ()>>(
    informers: &Informers,
    messages: &UnboundedSender<Message>,
    apply: ApplyChange<K>,
) -> Synced {
    send_changes::<K>(informers, messages, move |old, new| {
        Message::Other(Box::new(move |cluster, queue, now| apply(old.as_ref(), new.as_ref(), cluster, queue, now)))
    })
}

fn both<K>(change: &Change<K>) -> (Option<Arc<K>>, Option<Arc<K>>) {
    match change {
        Change::Added(new) => (None, Some(Arc::clone(new))),
        Change::Updated { old, new } => (Some(Arc::clone(old)), Some(Arc::clone(new))),
        Change::Deleted(old) => (Some(Arc::clone(old)), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cached_pods_keep_what_decisions_read() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "x"}},
            "spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "k"}],
                "volumes": [{"name": "token", "projected": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
                "containers": [{"name": "c", "image": "i", "env": [{"name": "A"}], "ports": [{"containerPort": 80, "hostPort": 80}],
                    "resources": {"requests": {"cpu": "1"}}}]},
        }))
        .unwrap();
        let whole = PodState::new(Arc::new(pod.clone()));
        reduce_pod(&mut pod);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!((spec.containers[0].env.as_ref(), spec.containers[0].image.as_deref()), (None, Some("i")));
        assert_eq!(spec.volumes.as_ref().map(Vec::len), Some(1));
        let reduced = PodState::new(Arc::new(pod));
        assert!(reduced.requests == whole.requests && reduced.claims == whole.claims);
        assert_eq!(reduced.host_ports.len(), whole.host_ports.len());
    }
}
