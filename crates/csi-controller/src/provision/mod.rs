//! Creates volumes for claims, as external-provisioner does.
//!
//! A claim gets a finalizer before its volume is requested, and loses it when the PersistentVolume exists: whenever the
//! process is killed, the claim remembers that a volume may exist, and `CreateVolume` finds it by the claim's uid.

mod plan;
mod request;
mod volume;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttributesClass};
use knarr_client::events::EventType;
use knarr_client::{Change, Informer, WorkQueue, run_workers};
use knarr_csi::Code;
use knarr_csi::messages::{
    ControllerCapability, CreateVolumeResponse, DeleteVolumeRequest, GetCapacityRequest, StringMap, Topology, Volume,
};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::claim::requested_bytes;
use crate::driver::Driver;
use crate::error::{Error, Result, ignore_not_found, is_already_there};
use crate::meta::{Key, annotation, finalizer_patch, name, namespace, uid};
use crate::parameters::Parameters;
use crate::snapshot;

use plan::{SELECTED_NODE, SOURCE_NODE};
pub(crate) use request::capability;
pub(crate) use volume::{FINALIZER as VOLUME_FINALIZER, PROVISIONED_BY};

use plan::{Provisioner, Step};

/// Nodes select themselves for a claim one after the other, with this distance.
const SELECTION_INTERVAL: Duration = Duration::from_secs(5);
/// How often the data source of a claim is looked for.
const SOURCE_PERIOD: Duration = Duration::from_secs(10);
/// How long a node without room for a claim leaves it to others.
const EXHAUSTED: Duration = Duration::from_secs(60);

struct Claims {
    driver: Arc<Driver>,
    csi_nodes: Arc<Informer<CSINode>>,
    queue: Arc<WorkQueue<Key>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Uids of claims whose PersistentVolume was created; the cache may not show it yet.
    created: HashMap<String, ()>,
    /// When claims, by uid, were first seen without a node.
    seen: HashMap<String, Instant>,
    /// When this node had no room for a claim.
    exhausted: HashMap<String, Instant>,
}

pub(crate) async fn run(driver: Arc<Driver>) {
    if !driver.can(ControllerCapability::CreateDeleteVolume) {
        return;
    }
    let csi_nodes: Arc<Informer<CSINode>> = driver.informers.of();
    csi_nodes.synced().await;
    let claims = Arc::new(Claims { csi_nodes, queue: driver.queue(), state: Mutex::default(), driver: driver.clone() });
    let weak = Arc::downgrade(&claims);
    driver.claims.on_change(move |change| {
        let Some(claims) = weak.upgrade() else { return };
        let claim = change.latest();
        if matches!(change, Change::Deleted(_)) {
            claims.state.lock().forget(uid(&**claim));
        } else if change.previous().is_none_or(|old| relevant(old) != relevant(claim)) {
            claims.queue.add(Key::of(&**claim));
        }
    });
    let weak = Arc::downgrade(&claims);
    driver.classes.on_change(move |change| {
        let (Some(claims), class) = (weak.upgrade(), change.latest()) else { return };
        if !matches!(change, Change::Deleted(_)) && class.provisioner == claims.driver.name {
            claims.driver.claims.for_each(|claim| {
                if claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(name(&**class)) {
                    claims.queue.add(Key::of(&**claim));
                }
            });
        }
    });
    run_workers(claims.queue.clone(), Driver::workers(), move |key: Key| {
        let claims = claims.clone();
        async move { claims.reconcile(key).await }
    })
    .await;
}

/// What of a claim decides about its volume. Changes of anything else, as of our own finalizer, must not end a backoff.
fn relevant(claim: &PersistentVolumeClaim) -> Value {
    let annotations = [SELECTED_NODE, SOURCE_NODE, "volume.kubernetes.io/storage-provisioner"];
    let annotations: Vec<_> = annotations.iter().map(|key| annotation(claim, key)).collect();
    json!([uid(claim), annotations, claim.metadata.deletion_timestamp, claim.spec])
}

impl State {
    fn forget(&mut self, uid: &str) {
        self.created.remove(uid);
        self.seen.remove(uid);
        self.exhausted.remove(uid);
    }
}

impl Claims {
    async fn reconcile(&self, key: Key) -> Result<()> {
        let driver = &self.driver;
        let Some(claim) = driver.claims.get(&key.namespace, &key.name) else { return Ok(()) };
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
        let class = driver.classes.get("", class);
        self.note_source_node(&claim, class.as_deref()).await?;
        let has_volume = driver.volumes.get("", &request::volume_name(&claim)).is_some()
            || self.state.lock().created.contains_key(uid(&*claim));
        let node = driver.is_local.then_some(driver.node.as_str());
        let by = Provisioner { driver: &driver.name, node, segments: &driver.place.segments };
        match (plan::plan(&claim, class.as_deref(), has_volume, &by), class) {
            (Step::Ignore, _) | (Step::Provision | Step::SelectSelf, None) => Ok(()),
            (Step::RemoveFinalizer, _) => self.set_finalizer(&claim, false).await.map(drop),
            (Step::CleanUp, class) => self.clean_up(&claim, class.as_deref()).await,
            (Step::SelectSelf, Some(class)) => self.select_self(&claim, &class, key).await,
            (Step::Provision, Some(class)) => self.provision(&claim, &class).await,
        }
    }

    /// Marks a claim whose data source is on this node, so that the scheduler places its pod here.
    async fn note_source_node(&self, claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Result<()> {
        let driver = &self.driver;
        if !driver.is_local
            || !snapshot::has_source(claim)
            || annotation(claim, SOURCE_NODE).is_some()
            || claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| !name.is_empty())
            || class.is_none_or(|class| class.provisioner != driver.name)
        {
            return Ok(());
        }
        match snapshot::source_node(driver, claim).await? {
            Some(node) if node == driver.node => {}
            Some(_) => return Ok(()),
            // The source may be created after the claim.
            None => {
                self.queue.add_after(Key::of(claim), SOURCE_PERIOD);
                return Ok(());
            }
        }
        let patch = json!({"metadata": {"annotations": {SOURCE_NODE: driver.node}}});
        self.api(claim).patch(name(claim), &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    fn api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.driver.kube.clone(), namespace(claim))
    }

    async fn set_finalizer(&self, claim: &PersistentVolumeClaim, is_wanted: bool) -> Result<PersistentVolumeClaim> {
        let Some(patch) = finalizer_patch(&claim.metadata, plan::FINALIZER, is_wanted) else {
            return Ok(claim.clone());
        };
        let patched = self.api(claim).patch(name(claim), &PatchParams::default(), &Patch::Merge(patch)).await;
        Ok(ignore_not_found(patched)?.unwrap_or_else(|| claim.clone()))
    }

    /// Selects this node for a claim that binds at once, if it is this node's turn and it has room.
    async fn select_self(&self, claim: &PersistentVolumeClaim, class: &StorageClass, key: Key) -> Result<()> {
        let now = Instant::now();
        let (since, exhausted) = {
            let mut state = self.state.lock();
            let since = *state.seen.entry(uid(claim).to_owned()).or_insert(now);
            (since, state.exhausted.get(uid(claim)).copied())
        };
        let rank = plan::rank(uid(claim), &self.driver.node, &self.nodes_with_driver());
        let turn = since + SELECTION_INTERVAL * u32::try_from(rank).unwrap_or(u32::MAX);
        let at = exhausted.map_or(turn, |exhausted| turn.max(exhausted + EXHAUSTED));
        if at > now {
            self.queue.add_after(key, at - now);
            return Ok(());
        }
        if !self.has_room(claim, class).await? {
            self.state.lock().exhausted.insert(uid(claim).to_owned(), now);
            return Err(Error::Later(format!("node {} has no room for the claim", self.driver.node)));
        }
        let metadata = json!({"resourceVersion": claim.metadata.resource_version, "annotations": {SELECTED_NODE: self.driver.node}});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.api(claim).patch(name(claim), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    fn nodes_with_driver(&self) -> Vec<String> {
        let has_driver = |node: &Arc<CSINode>| node.spec.drivers.iter().any(|own| own.name == self.driver.name);
        self.csi_nodes.list().iter().filter(|node| has_driver(node)).map(|node| name(&**node).to_owned()).collect()
    }

    async fn has_room(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<bool> {
        if !self.driver.can(ControllerCapability::GetCapacity) {
            return Ok(true);
        }
        let parameters = Parameters::parse(class.parameters.as_ref()).map_err(Error::Refused)?;
        let request = GetCapacityRequest {
            parameters: parameters.driver,
            accessible_topology: Some(Topology { segments: self.driver.place.segments.clone() }),
            ..GetCapacityRequest::default()
        };
        Ok(self.driver.csi.get_capacity(request).await?.available_capacity >= requested_bytes(claim))
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<()> {
        let recorder = &self.driver.recorder;
        if snapshot::is_for_populator(claim) {
            let text = "Assuming an external populator will provision the volume";
            recorder.normal(claim, "Provisioning", text);
            return Ok(());
        }
        let message =
            format!("External provisioner is provisioning volume for claim \"{}/{}\"", namespace(claim), name(claim));
        recorder.normal(claim, "Provisioning", message);
        let step = provisioning_span(claim, &self.driver.name);
        let claim = self.set_finalizer(claim, true).await?;
        match self.create(&claim, class).await {
            Ok(created) => {
                let published = self.publish(&claim, class, &created).await;
                drop(step);
                published
            }
            Err(error) => {
                let message = format!("failed to provision volume with StorageClass \"{}\": {error}", name(class));
                recorder.about(
                    knarr_client::events::reference(&claim),
                    EventType::Warning,
                    "ProvisioningFailed",
                    message,
                );
                self.give_up(&claim, class, &error).await?;
                Err(error)
            }
        }
    }

    /// Asks the driver for the volume, or for the one it has created already.
    async fn create(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Volume> {
        let driver = &self.driver;
        let parameters = Parameters::parse(class.parameters.as_ref()).map_err(Error::Refused)?;
        let details = request::Details {
            segments: if driver.is_local { driver.place.segments.clone() } else { StringMap::new() },
            content: snapshot::content_source(driver, claim).await?,
            mutable_parameters: self.mutable_parameters(claim).await?,
            counts_writers: driver.can(ControllerCapability::SingleNodeMultiWriter),
        };
        let options = class.mount_options.as_deref().unwrap_or_default();
        let request = request::create(claim, &parameters, options, details);
        let wanted = request.volume_content_source.clone();
        let CreateVolumeResponse { volume } = driver.csi.create_volume(request).await?;
        let volume = volume.ok_or_else(|| Error::Later("the driver returned no volume".to_owned()))?;
        if volume.content_source != wanted {
            self.delete(&volume.volume_id).await?;
            return Err(Error::Refused("the driver created a volume without the requested content".to_owned()));
        }
        Ok(volume)
    }

    async fn create_without_source(&self, claim: &PersistentVolumeClaim) -> Result<Volume> {
        let segments = if self.driver.is_local { self.driver.place.segments.clone() } else { StringMap::new() };
        let details = request::Details { segments, ..request::Details::default() };
        let request = request::create(claim, &Parameters::default(), &[], details);
        let created = self.driver.csi.create_volume(request).await?;
        created.volume.ok_or_else(|| Error::Later("the driver returned no volume".to_owned()))
    }

    async fn mutable_parameters(&self, claim: &PersistentVolumeClaim) -> Result<StringMap> {
        let class = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
        let Some(class) = class.filter(|class| !class.is_empty()) else { return Ok(StringMap::new()) };
        let api: Api<VolumeAttributesClass> = Api::all(self.driver.kube.clone());
        Ok(api.get(class).await?.parameters.unwrap_or_default())
    }

    /// Creates the PersistentVolume, by which the claim is bound.
    async fn publish(&self, claim: &PersistentVolumeClaim, class: &StorageClass, created: &Volume) -> Result<()> {
        let driver = &self.driver;
        let parameters = Parameters::parse(class.parameters.as_ref()).map_err(Error::Refused)?;
        let object = volume::persistent_volume(&driver.name, claim, class, &parameters, created);
        let api: Api<PersistentVolume> = Api::all(driver.kube.clone());
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => {
                let message = format!("Successfully provisioned volume {}", name(&object));
                driver.recorder.normal(claim, "ProvisioningSucceeded", message);
            }
            Err(error) if is_already_there(&error) => {}
            Err(error) => return Err(error.into()),
        }
        self.state.lock().created.insert(uid(claim).to_owned(), ());
        driver.space_changed.notify_one();
        // The watch may have been faster, and then the claim was changed by the binding.
        let api = self.api(claim);
        if let Some(latest) = api.get_opt(name(claim)).await?.filter(|latest| uid(latest) == uid(claim)) {
            self.set_finalizer(&latest, false).await?;
        }
        Ok(())
    }

    /// After a failure that left no volume: the finalizer goes, and without room another node may be selected.
    async fn give_up(&self, claim: &PersistentVolumeClaim, class: &StorageClass, error: &Error) -> Result<()> {
        let (is_final, is_exhausted) = match error {
            Error::Call(error) => (error.is_final(), error.is_exhausted()),
            Error::Refused(_) => (true, false),
            Error::Api(_) | Error::Later(_) => (false, false),
        };
        if !is_final {
            return Ok(());
        }
        let misplaced = annotation(claim, SOURCE_NODE).is_some_and(|source| source != self.driver.node);
        let mut finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|own| own != plan::FINALIZER);
        let mut metadata = json!({"resourceVersion": claim.metadata.resource_version, "finalizers": finalizers});
        let selects = self.driver.is_local || class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        if (is_exhausted || misplaced) && selects {
            metadata["annotations"] = json!({SELECTED_NODE: null});
            self.state.lock().exhausted.insert(uid(claim).to_owned(), Instant::now());
            self.driver.space_changed.notify_one();
        }
        let patch = Patch::Merge(json!({"metadata": metadata}));
        ignore_not_found(self.api(claim).patch(name(claim), &PatchParams::default(), &patch).await)?;
        Ok(())
    }

    /// Deletes the volume of a claim that was deleted before it had a PersistentVolume.
    async fn clean_up(&self, claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Result<()> {
        let default = StorageClass::default();
        let class = class.unwrap_or(&default);
        let found = match self.create(claim, class).await {
            // What the volume was to contain may be gone: the name is enough to find it.
            Err(Error::Refused(_)) => self.create_without_source(claim).await,
            found => found,
        };
        match found {
            Ok(volume) => self.delete(&volume.volume_id).await?,
            // It exists, but not as it is described now: nothing is known by which to delete it.
            Err(Error::Call(error)) if error.is_final() && error.code() != Code::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        self.set_finalizer(claim, false).await?;
        Ok(())
    }

    async fn delete(&self, volume_id: &str) -> Result<()> {
        let request = DeleteVolumeRequest { volume_id: volume_id.to_owned(), secrets: Vec::new() };
        self.driver.csi.delete_volume(request).await?;
        self.driver.space_changed.notify_one();
        Ok(())
    }
}

/// Lasts until the PersistentVolume exists, for the claim's timeline.
fn provisioning_span(claim: &PersistentVolumeClaim, driver: &str) -> tracing::Span {
    let object = format!("persistentvolumeclaims/{}/{}", namespace(claim), name(claim));
    tracing::info_span!(target: "journey", "provisioned", object, claim = name(claim), driver)
}
