//! One driver: what it can do, and which volumes are its.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use knarr_client::{EventRecorder, Informer, Informers, WorkQueue, node_fit};
use knarr_csi::Client as CsiClient;
use knarr_csi::messages::{ControllerCapability, ControllerGetCapabilitiesResponse, StringMap};
use kube::Client;
use tokio::sync::Notify;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(300);
const WORKERS: usize = 8;
/// Index of VolumeAttachments by PersistentVolume.
const BY_VOLUME: &str = "volume";

/// Where a driver is: the node's segments of its topology (none for drivers without), and the node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub segments: StringMap,
    pub node_uid: String,
    pub node_id: String,
}

pub(crate) struct Driver {
    pub name: String,
    pub node: String,
    pub namespace: String,
    pub place: Place,
    /// Whether its volumes belong to nodes: then this node serves only its own.
    pub is_local: bool,
    pub csi: CsiClient,
    pub kube: Client,
    pub recorder: EventRecorder,
    pub informers: Informers,
    pub claims: Arc<Informer<PersistentVolumeClaim>>,
    pub volumes: Arc<Informer<PersistentVolume>>,
    pub classes: Arc<Informer<StorageClass>>,
    pub attachments: Arc<Informer<VolumeAttachment>>,
    pub csi_drivers: Arc<Informer<CSIDriver>>,
    pub capabilities: ControllerGetCapabilitiesResponse,
    /// Notified when the free space has changed.
    pub space_changed: Notify,
}

impl Driver {
    pub fn can(&self, capability: ControllerCapability) -> bool {
        self.capabilities.has(capability)
    }

    /// Whether the volume is this driver's, and this node's if volumes belong to nodes.
    pub fn serves(&self, volume: &PersistentVolume) -> bool {
        let spec = volume.spec.as_ref();
        let is_own = spec.and_then(|spec| spec.csi.as_ref()).is_some_and(|source| source.driver == self.name);
        is_own && (!self.is_local || self.is_here(volume))
    }

    fn is_here(&self, volume: &PersistentVolume) -> bool {
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return false };
        let labels = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(self.node.clone()),
            labels: Some(self.place.segments.clone()),
            ..Default::default()
        };
        node_fit::selector_matches(required, &Node { metadata: labels, ..Node::default() })
    }

    /// The volume that a claim is bound to, if this driver serves it here.
    pub fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        let name = claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())?;
        let volume = self.volumes.get("", name).filter(|volume| self.serves(volume))?;
        let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
        (reference.uid == claim.metadata.uid).then_some(volume)
    }

    /// Call this once before [`Driver::attachments_of`].
    pub fn add_indexes(&self) {
        self.attachments.add_index(BY_VOLUME, |attachment| {
            attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
        });
    }

    /// The VolumeAttachments that refer to a volume.
    pub fn attachments_of(&self, volume: &PersistentVolume) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.by_index(BY_VOLUME, volume.metadata.name.as_deref().unwrap_or_default())
    }

    pub fn queue<T: knarr_client::work_queue::Key>(&self) -> Arc<WorkQueue<T>> {
        WorkQueue::with_backoff(INITIAL_BACKOFF, MAX_BACKOFF)
    }

    pub const fn workers() -> usize {
        WORKERS
    }
}
