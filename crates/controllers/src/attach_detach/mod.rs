//! Attaches volumes of CSI drivers to the nodes whose pods use them, and detaches them afterwards.
//!
//! A VolumeAttachment is the request to a driver, and its status the driver's response; both and the nodes' `volumesInUse` are
//! all the state there is, so a restart loses nothing. A node mounts a volume only while its `volumesAttached` lists it:
//! a volume is removed from that list, and only then, if the node has not reported it in use, is it detached.
//! Disks of a storage network (iSCSI, Fibre Channel) are attached by the nodes themselves, and have no VolumeAttachment: to
//! attach one means to list it in `volumesAttached`, so that a disk for one node is mounted by one node ([`disk`]).
//! [`view`] reads the caches, [`plan`] decides, [`act`] carries out, one volume at a time.

mod act;
mod disk;
mod messages;
mod names;
mod node_status;
mod plan;
mod source;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, run_workers};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Context;
use crate::common::key::name;
use crate::common::reconcile::{Reconcile, run_controller};
use crate::error::Result;
use crate::volume_binder::index_pods_by_claim;

use names::VolumeId;
use plan::Memory;

/// Volumes of drivers, by `driver^handle`, are processed concurrently by this many workers.
const WORKERS: usize = 10;
/// Index of PersistentVolumes by the volume they refer to.
const BY_ID: &str = "csi-volume";
/// Indexes of VolumeAttachments by node, and by PersistentVolume.
const BY_NODE: &str = "node";
const BY_VOLUME: &str = "volume";
/// Index of pods by node.
const PODS_BY_NODE: &str = "attach-node";
/// Index of pods by the volumes they name inline.
const PODS_BY_INLINE: &str = "attach-inline";

pub async fn run(context: Context) {
    let recorder = context.recorder("attachdetach-controller");
    let controller = Arc::new(Controller {
        pods: context.informers.of(),
        claims: context.informers.of(),
        volumes: context.informers.of(),
        nodes: context.informers.of(),
        drivers: context.informers.of(),
        attachments: context.informers.of(),
        context,
        recorder,
        queue: WorkQueue::new(),
        node_queue: WorkQueue::new(),
        state: Mutex::default(),
        node_locks: Mutex::default(),
        started: Instant::now(),
    });
    controller.add_indexes();
    controller.watch();
    controller.pods.synced().await;
    controller.claims.synced().await;
    controller.volumes.synced().await;
    controller.nodes.synced().await;
    controller.drivers.synced().await;
    controller.attachments.synced().await;
    controller.restore();
    let volumes = run_controller(&controller, &controller.queue, WORKERS);
    let nodes = {
        let controller = controller.clone();
        run_workers(controller.node_queue.clone(), WORKERS, move |node: String| {
            let controller = controller.clone();
            async move { controller.report_attached(&node).await }
        })
    };
    tokio::join!(volumes, nodes);
}

struct Controller {
    context: Context,
    pods: Arc<Informer<Pod>>,
    claims: Arc<Informer<PersistentVolumeClaim>>,
    volumes: Arc<Informer<PersistentVolume>>,
    nodes: Arc<Informer<Node>>,
    drivers: Arc<Informer<CSIDriver>>,
    attachments: Arc<Informer<VolumeAttachment>>,
    recorder: EventRecorder,
    queue: Arc<WorkQueue<VolumeId>>,
    node_queue: Arc<WorkQueue<String>>,
    state: Mutex<ControllerState>,
    /// One writer at a time of a node's `volumesAttached`.
    node_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    started: Instant,
}

/// State that the caches do not contain, or not yet.
#[derive(Default)]
struct ControllerState {
    memory: HashMap<VolumeId, BTreeMap<String, Memory>>,
    /// Volumes of VolumeAttachments by name, since a PersistentVolume may be deleted before its attachment.
    ids: HashMap<String, VolumeId>,
    /// When VolumeAttachments were created that are not in the cache yet, by name.
    created: HashMap<String, Duration>,
    /// Uids of VolumeAttachments that are no longer needed and must not be reported to nodes any more.
    releasing: HashMap<String, String>,
    /// The last known `volumesInUse` that named the volume, by VolumeAttachment: a deleted node keeps what it had.
    in_use: HashMap<String, bool>,
    /// The nodes that may use a disk.
    disks: disk::Disks,
    /// The last written `volumesAttached` of each node.
    reported: HashMap<String, Vec<String>>,
}

impl Reconcile<VolumeId> for Controller {
    async fn reconcile(self: &Arc<Self>, id: VolumeId) -> Result<()> {
        let observed = self.observe(&id);
        let now = self.now();
        let plan = {
            let mut state = self.state.lock();
            let memory = state.memory.entry(id.clone()).or_default();
            let plan = plan::plan(&observed, memory, now);
            if memory.is_empty() {
                state.memory.remove(&id);
            }
            plan
        };
        if let Some(at) = plan.again_at {
            self.queue.add_after(id, at.saturating_sub(now).max(Duration::from_millis(1)));
        }
        for action in plan.actions {
            self.carry_out(&observed, action).await?;
        }
        Ok(())
    }
}

impl Controller {
    fn add_indexes(&self) {
        index_pods_by_claim(&self.pods);
        self.pods.add_index(PODS_BY_NODE, |pod| {
            let node = knarr_client::pod::node_name(pod).map(str::to_owned);
            let has_volumes = source::may_attach(pod);
            node.filter(|_| has_volumes).into_iter().collect()
        });
        self.pods.add_index(PODS_BY_INLINE, |pod| {
            source::inline_volumes(pod).into_iter().map(|(id, _)| id.unique_name()).collect()
        });
        self.volumes
            .add_index(BY_ID, |volume| source::of_volume(volume).map(|id| id.unique_name()).into_iter().collect());
        self.attachments.add_index(BY_NODE, |attachment| vec![attachment.spec.node_name.clone()]);
        self.attachments.add_index(BY_VOLUME, |attachment| {
            attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
        });
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let pod = change.latest();
            let changed = change.previous().is_none_or(|old| view::pod_key(old) != view::pod_key(pod));
            if changed && source::may_attach(pod) {
                controller.queue_volumes_of(pod);
            }
        });
        let weak = Arc::downgrade(self);
        self.claims.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
            let phase = |claim: &PersistentVolumeClaim| claim.status.as_ref().and_then(|status| status.phase.clone());
            let claim = change.latest();
            let is_same = |old: &Arc<PersistentVolumeClaim>| (volume(old), phase(old)) == (volume(claim), phase(claim));
            if change.previous().is_none_or(|old| !is_same(old)) {
                let volume = volume(claim).and_then(|name| controller.volumes.get("", &name));
                controller.queue_volume(volume.as_deref());
            }
        });
        let weak = Arc::downgrade(self);
        self.volumes.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            controller.queue_volume(Some(change.latest()));
        });
        let weak = Arc::downgrade(self);
        self.attachments.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.attachment_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.nodes.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.node_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.drivers.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let required = |driver: &CSIDriver| driver.spec.attach_required;
            let driver = change.latest();
            if change.previous().is_none_or(|old| required(old) != required(driver)) {
                controller.volumes.for_each(|volume| {
                    if let Some(id) = source::of_volume(volume).filter(|id| id.driver == name(&**driver)) {
                        controller.queue.add(id);
                    }
                });
            }
        });
    }

    fn queue_volume(&self, volume: Option<&PersistentVolume>) {
        if let Some(id) = volume.and_then(source::of_volume) {
            self.queue.add(id);
        }
    }

    fn queue_volumes_of(&self, pod: &Pod) {
        for volume in view::claimed_volumes(pod, &self.claims, &self.volumes) {
            self.queue_volume(Some(&volume));
        }
        source::inline_volumes(pod).into_iter().for_each(|(id, _)| self.queue.add(id));
    }

    fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        let attachment = change.latest();
        {
            let mut state = self.state.lock();
            // The cache shows what was created.
            state.created.remove(name(&**attachment));
            if matches!(change, Change::Deleted(_)) {
                state.releasing.remove(name(&**attachment));
                state.in_use.remove(name(&**attachment));
            }
        }
        if let Some(id) = self.id_of(attachment) {
            self.queue.add(id);
        }
        if matches!(change, Change::Deleted(_)) {
            self.state.lock().ids.remove(name(&**attachment));
        }
        self.node_queue.add(attachment.spec.node_name.clone());
    }

    fn node_changed(&self, change: &Change<Node>) {
        let node = change.latest();
        let is_new = change.previous().is_none();
        if !is_new && change.previous().is_some_and(|old| view::node_key(old) == view::node_key(node)) {
            return;
        }
        for attachment in self.attachments.by_index(BY_NODE, name(&**node)) {
            if let Some(id) = self.id_of(&attachment) {
                self.queue.add(id);
            }
        }
        self.state.lock().disks.on_node(name(&**node)).for_each(|id| self.queue.add(id));
        if is_new {
            for pod in self.pods.by_index(PODS_BY_NODE, name(&**node)) {
                self.queue_volumes_of(&pod);
            }
            self.state.lock().reported.remove(name(&**node));
        }
        self.node_queue.add(name(&**node).to_owned());
    }

    /// Learns from the nodes which volumes they have attached: their PersistentVolumes may be gone.
    fn restore(&self) {
        for node in self.nodes.list() {
            let attached = node.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
            for id in attached.filter_map(|volume| VolumeId::parse(&volume.name)) {
                let attachment = id.attachment_name(name(&*node));
                let mut state = self.state.lock();
                match id.is_disk() {
                    true => state.disks.attach(&id, name(&*node)),
                    false => drop(state.ids.insert(attachment, id.clone())),
                }
                state.memory.entry(id.clone()).or_default().entry(name(&*node).to_owned()).or_default();
                self.queue.add(id);
            }
        }
        for attachment in self.attachments.list() {
            let Some(id) = self.id_of(&attachment) else { continue };
            let node = &attachment.spec.node_name;
            if !self.nodes.get("", node).is_some_and(|node| view::is_attached(&node, &id)) {
                // The previous process did not finish attaching it: pods still expect the outcome.
                let now = self.now();
                let mut state = self.state.lock();
                let memory = state.memory.entry(id.clone()).or_default().entry(node.clone()).or_default();
                memory.attaching_since.get_or_insert(now);
            }
            self.queue.add(id);
        }
    }

    /// The volume of a VolumeAttachment; `None` if nothing that names it is left.
    fn id_of(&self, attachment: &VolumeAttachment) -> Option<VolumeId> {
        if let Some(id) = self.state.lock().ids.get(name(attachment)) {
            return Some(id.clone());
        }
        let source = &attachment.spec.source;
        let volume = source.persistent_volume_name.as_ref().and_then(|volume| self.volumes.get("", volume));
        let id = volume.and_then(|volume| source::of_volume(&volume)).or_else(|| {
            let inline = source.inline_volume_spec.as_ref()?.csi.as_ref()?;
            Some(VolumeId::new(&inline.driver, &inline.volume_handle))
        })?;
        // An attachment with another name was created by someone else, who deletes it.
        if id.attachment_name(&attachment.spec.node_name) != name(attachment) {
            return None;
        }
        self.state.lock().ids.insert(name(attachment).to_owned(), id.clone());
        Some(id)
    }
}
