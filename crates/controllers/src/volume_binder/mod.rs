//! Binds PersistentVolumeClaims to PersistentVolumes, and records events on claims that wait.
//!
//! [`claim`] decides for a claim, [`volume`] for a volume, [`matching`] finds the best volume. Binding is written in four
//! steps (volume, its phase, claim, its status), and a crash may come after each: the next run continues from
//! what is written. Provisioning is left to external provisioners, which an annotation and an event notify.

mod claim;
mod matching;
mod recycler;
mod volume;

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_client::events::EventType;
use knarr_client::{EventRecorder, Informer, WorkQueue, run_workers};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use parking_lot::Mutex;

use crate::Context;
use crate::common::key::{name, namespace, uid};
use crate::common::requests::{replace, replace_status};
use crate::common::{Key, journey};
use crate::error::{Result, ignore_not_found};

use claim::ClaimStep;
use volume::VolumeStep;

/// Index of pods by the claims they use.
pub(crate) const BY_CLAIM: &str = "claim";
/// Index of volumes without a claim by storage class, and of the others by their claim.
const FREE: &str = "free";
const FOR_CLAIM: &str = "for-claim";
/// Index of claims that are not bound, by storage class.
const UNBOUND: &str = "unbound";

pub async fn run(context: Context) {
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let volumes = context.informers.of::<PersistentVolume>();
    let classes = context.informers.of::<StorageClass>();
    let pods = context.informers.of::<Pod>();
    index_pods_by_claim(&pods);
    claims.add_index(UNBOUND, |claim| {
        let class = (!claim::is_bound(claim)).then(|| matching::claim_class(claim).to_owned());
        class.into_iter().collect()
    });
    volumes.add_index(FREE, |volume| {
        let is_free = volume.spec.as_ref().is_none_or(|spec| spec.claim_ref.is_none());
        is_free.then(|| matching::volume_class(volume).to_owned()).into_iter().collect()
    });
    volumes.add_index(FOR_CLAIM, |volume| {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        reference.map(|to| format!("{}/{}", text(&to.namespace), text(&to.name))).into_iter().collect()
    });
    let claim_queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let volume_queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let recorder = context.recorder("persistentvolume-controller");
    let binder = Arc::new(Binder {
        context,
        claims,
        volumes,
        classes,
        pods,
        claim_queue,
        volume_queue,
        recorder,
        confirmed: Mutex::default(),
        recycling: Mutex::default(),
    });
    binder.watch();
    binder.claims.synced().await;
    binder.volumes.synced().await;
    binder.classes.synced().await;
    binder.pods.synced().await;
    let claims = {
        let binder = binder.clone();
        // One worker, so that two claims never choose the same volume.
        run_workers(binder.claim_queue.clone(), 1, move |key| {
            let binder = binder.clone();
            async move { binder.reconcile_claim(key).await }
        })
    };
    let volumes = {
        let binder = binder.clone();
        run_workers(binder.volume_queue.clone(), 1, move |key| {
            let binder = binder.clone();
            async move { binder.reconcile_volume(key).await }
        })
    };
    tokio::join!(claims, volumes);
}

pub(crate) fn index_pods_by_claim(pods: &Informer<Pod>) {
    pods.add_index(BY_CLAIM, |pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claims = volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => Some(source.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", name(pod), volume.name)),
            _ => None,
        });
        claims.map(|claim| format!("{}/{claim}", namespace(pod))).collect()
    });
}

struct Binder {
    context: Context,
    claims: Arc<Informer<PersistentVolumeClaim>>,
    volumes: Arc<Informer<PersistentVolume>>,
    classes: Arc<Informer<StorageClass>>,
    pods: Arc<Informer<Pod>>,
    claim_queue: Arc<WorkQueue<Key>>,
    volume_queue: Arc<WorkQueue<String>>,
    recorder: EventRecorder,
    /// Uids of claims of which the server confirmed that no volume matches.
    confirmed: Mutex<HashSet<String>>,
    /// Names of volumes that are being recycled.
    recycling: Mutex<HashSet<String>>,
}

impl Binder {
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.claims.on_change(move |change| {
            let Some(binder) = weak.upgrade() else { return };
            let claim = change.latest();
            binder.claim_queue.add(Key::of(&**claim));
            if let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) {
                binder.volume_queue.add(volume);
            }
            for volume in binder.volumes.by_index(FOR_CLAIM, &Key::of(&**claim).to_string()) {
                binder.volume_queue.add(name(&*volume).to_owned());
            }
        });
        let weak = Arc::downgrade(self);
        self.volumes.on_change(move |change| {
            let Some(binder) = weak.upgrade() else { return };
            let volume = change.latest();
            binder.volume_queue.add(name(&**volume).to_owned());
            let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            match reference.and_then(|to| Some((to.namespace.clone()?, to.name.clone()?))) {
                Some((namespace, name)) => binder.claim_queue.add(Key::new(namespace, name)),
                None => binder.wake_waiting(matching::volume_class(volume)),
            }
        });
    }

    /// Claims of a class that wait for a volume, the oldest first. Claims with delayed binding are left out, since the
    /// scheduler chooses their volume.
    fn wake_waiting(&self, class: &str) {
        let is_delayed = self.classes.get("", class).is_some_and(|class| claim::waits_for_consumer(&class));
        let mut waiting = self.claims.by_index(UNBOUND, class);
        waiting.retain(|claim| !is_delayed || claim::requested_volume(claim).is_some());
        waiting.sort_by_cached_key(|claim| (claim.metadata.creation_timestamp.clone(), Key::of(&**claim)));
        waiting.iter().for_each(|claim| self.claim_queue.add(Key::of(&**claim)));
    }

    async fn reconcile_claim(&self, key: Key) -> Result<()> {
        let _step = journey::sync_span("volume", "persistentvolumeclaims", &key);
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(()) };
        if claim::is_bound(&claim) {
            self.confirmed.lock().remove(uid(&*claim));
        }
        let class = matching::claim_class(&claim).to_owned();
        let mut candidates = self.volumes.by_index(FREE, &class);
        candidates.extend(self.volumes.by_index(FOR_CLAIM, &key.to_string()));
        let requested = match claim::requested_volume(&claim) {
            Some(volume) => self.volume_of(volume, claim::is_bound(&claim)).await?,
            None => None,
        };
        let mut observed = claim::Observed {
            class: self.classes.get("", &class),
            default_class: self.default_class(),
            requested,
            candidates,
            pods: self.pods.by_index(BY_CLAIM, &key.to_string()),
        };
        let mut step = claim::plan(&claim, &observed);
        // A volume created just before the claim may not be in the cache yet, and the event would be wrong.
        if claim::needs_volume(&step) && !self.confirmed.lock().contains(uid(&*claim)) {
            self.add_from_server(&class, &mut observed).await?;
            step = claim::plan(&claim, &observed);
            // A failed bind is retried, and the cache may still be stale then.
            if claim::needs_volume(&step) {
                self.confirmed.lock().insert(uid(&*claim).to_owned());
            }
        }
        self.carry_out_claim(&claim, step).await?;
        if !claim::is_bound(&claim) && self.claims.get(&key.namespace, &key.name).is_some() {
            self.claim_queue.add_after(key, self.context.settings.volume_sync_period);
        }
        Ok(())
    }

    /// The volume that a claim names. A bound claim is lost only when the server has no such volume: it may have been bound to
    /// one that the cache does not hold yet.
    async fn volume_of(&self, volume: &str, is_bound: bool) -> Result<Option<Arc<PersistentVolume>>> {
        if let Some(known) = self.volumes.get("", volume) {
            return Ok(Some(known));
        }
        if !is_bound {
            return Ok(None);
        }
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        Ok(api.get_opt(volume).await?.map(Arc::new))
    }

    /// Completes the cached candidates with those of the server.
    async fn add_from_server(&self, class: &str, observed: &mut claim::Observed) -> Result<()> {
        if observed.class.is_none() && !class.is_empty() {
            let api: Api<StorageClass> = Api::all(self.context.client.clone());
            observed.class = api.get_opt(class).await?.map(Arc::new);
        }
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let known: HashSet<String> = observed.candidates.iter().map(|volume| uid(&**volume).to_owned()).collect();
        for volume in api.list(&ListParams::default()).await?.items {
            if matching::volume_class(&volume) == class && !known.contains(uid(&volume)) {
                observed.candidates.push(Arc::new(volume));
            }
        }
        Ok(())
    }

    /// The newest of the default classes.
    fn default_class(&self) -> Option<String> {
        const MARK: &str = "storageclass.kubernetes.io/is-default-class";
        let is_default = |class: &StorageClass| {
            class.metadata.annotations.as_ref().and_then(|all| all.get(MARK)).is_some_and(|value| value == "true")
        };
        let mut defaults: Vec<_> = self.classes.list().into_iter().filter(|class| is_default(class)).collect();
        defaults.sort_by(|a, b| {
            let key = |class: &StorageClass| class.metadata.creation_timestamp.clone();
            key(b).cmp(&key(a)).then_with(|| name(&**a).cmp(name(&**b)))
        });
        defaults.first().map(|class| name(&**class).to_owned())
    }

    async fn carry_out_claim(&self, claim: &PersistentVolumeClaim, step: ClaimStep) -> Result<()> {
        let client = &self.context.client;
        match step {
            ClaimStep::Bind(volume) => self.bind(&volume, claim).await?,
            ClaimStep::AssignClass(class) => {
                let mut changed = claim.clone();
                changed.spec.get_or_insert_default().storage_class_name = Some(class);
                replace(client, &changed).await?;
            }
            ClaimStep::Wait { event, provisioner } => {
                if let Some((kind, reason, message)) = event {
                    self.recorder.about(knarr_client::events::reference(claim), kind, reason, message);
                }
                if let Some(changed) = provisioner.and_then(|provisioner| claim::with_provisioner(claim, &provisioner))
                {
                    replace(client, &changed).await?;
                } else if let Some(changed) = claim::with_phase(claim, "Pending") {
                    replace_status(client, &changed).await?;
                }
            }
            ClaimStep::Lost(reason, message) => {
                if let Some(changed) = claim::with_phase(claim, "Lost") {
                    replace_status(client, &changed).await?;
                    self.recorder.warning(claim, reason, message);
                }
            }
        }
        Ok(())
    }

    async fn bind(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<()> {
        let client = &self.context.client;
        let api: Api<PersistentVolume> = Api::all(client.clone());
        let mut volume = volume.clone();
        if let Some(changed) = volume::claimed_by(&volume, claim) {
            volume = api.replace(name(&volume), &PostParams::default(), &changed).await?;
        }
        if let Some(changed) = volume::with_phase(&volume, "Bound", None) {
            volume = api.replace_subresource("status", name(&changed), &PostParams::default(), &changed).await?;
        }
        let mut claim = claim.clone();
        if let Some(changed) = claim::bound_to(&claim, &volume) {
            claim = replace(client, &changed).await?;
        }
        if let Some(changed) = claim::with_bound_status(&claim, &volume) {
            replace_status(client, &changed).await?;
        }
        Ok(())
    }

    async fn reconcile_volume(self: &Arc<Self>, key: String) -> Result<()> {
        let _step = journey::sync_span("volume", "persistentvolumes", &Key::new("", &*key));
        let Some(volume) = self.volumes.get("", &key) else { return Ok(()) };
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim = match reference
            .and_then(|to| Some((to.namespace.as_deref()?, to.name.as_deref()?, to.uid.as_deref()?)))
        {
            Some((namespace, name, desired)) => {
                let cached = self.claims.get(namespace, name).filter(|claim| uid(&**claim) == desired);
                match cached {
                    Some(claim) => Some((*claim).clone()),
                    // The cache may be stale; a volume is released only when the server has no such claim.
                    None => {
                        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), namespace);
                        api.get_opt(name).await?.filter(|claim| uid(claim) == desired)
                    }
                }
            }
            None => None,
        };
        let step = volume::plan(&volume, claim.as_ref());
        self.carry_out_volume(&volume, step).await
    }

    async fn carry_out_volume(self: &Arc<Self>, volume: &PersistentVolume, step: VolumeStep) -> Result<()> {
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        match step {
            VolumeStep::Nothing => {}
            VolumeStep::Phase(phase) => {
                if let Some(changed) = volume::with_phase(volume, phase, None) {
                    api.replace_subresource("status", name(volume), &PostParams::default(), &changed).await?;
                }
            }
            VolumeStep::SyncClaim(key) => self.claim_queue.add(key),
            VolumeStep::Unbind(changed) => self.unbind(volume, &changed).await?,
            VolumeStep::Fail { reason, message } => self.fail(volume, reason, message).await?,
            VolumeStep::Recycle => self.clone().recycle(volume).await?,
            VolumeStep::RemoveDirectory(path) => match tokio::fs::remove_dir_all(&path).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    self.fail(volume, "VolumeFailedDelete", error.to_string()).await?;
                }
                _ => {
                    ignore_not_found(api.delete(name(volume), &DeleteParams::default()).await)?;
                }
            },
        }
        Ok(())
    }

    /// Recycles a volume in the background: it may take minutes.
    async fn recycle(self: Arc<Self>, volume: &PersistentVolume) -> Result<()> {
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let Some(volume) = api.get_opt(name(volume)).await?.filter(|now| uid(now) == uid(volume)) else {
            return Ok(());
        };
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let text = |value: Option<&String>| value.cloned().unwrap_or_default();
        let (namespace, claim) =
            reference.map_or_else(Default::default, |to| (text(to.namespace.as_ref()), text(to.name.as_ref())));
        let users = self.pods.by_index(BY_CLAIM, &format!("{namespace}/{claim}"));
        if !users.is_empty() && self.claims.get(&namespace, &claim).is_none() {
            let users: Vec<String> = users.iter().map(|pod| Key::of(&**pod).to_string()).collect();
            let message = format!("Volume is used by pods: {}", users.join(","));
            self.recorder.normal(&volume, "VolumeFailedRecycle", message);
            self.volume_queue.add_after(name(&volume).to_owned(), self.context.settings.volume_sync_period);
            return Ok(());
        }
        if self.recycling.lock().insert(name(&volume).to_owned()) {
            knarr_supervisor::spawn_linked("recycler", async move {
                if let Err(error) = self.recycle_now(&volume).await {
                    tracing::debug!(volume = name(&volume), %error, "cannot update a recycled volume");
                }
                self.recycling.lock().remove(name(&volume));
                self.volume_queue.add_after(name(&volume).to_owned(), self.context.settings.volume_sync_period);
            });
        }
        Ok(())
    }

    async fn recycle_now(&self, volume: &PersistentVolume) -> Result<()> {
        if let Err(error) = recycler::recycle(&self.context.client, volume, &self.recorder).await {
            return self.fail(volume, "VolumeFailedRecycle", format!("Recycle failed: {error}")).await;
        }
        self.recorder.normal(volume, "VolumeRecycled", "Volume recycled");
        self.unbind(volume, &volume::unbound(volume)).await
    }

    async fn unbind(&self, volume: &PersistentVolume, unbound: &PersistentVolume) -> Result<()> {
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let written = api.replace(name(volume), &PostParams::default(), unbound).await?;
        if let Some(changed) = volume::with_phase(&written, "Available", None) {
            api.replace_subresource("status", name(volume), &PostParams::default(), &changed).await?;
        }
        Ok(())
    }

    async fn fail(&self, volume: &PersistentVolume, reason: &str, message: String) -> Result<()> {
        if let Some(changed) = volume::with_phase(volume, "Failed", Some(&message)) {
            let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
            api.replace_subresource("status", name(volume), &PostParams::default(), &changed).await?;
            self.recorder.about(knarr_client::events::reference(volume), EventType::Warning, reason, message);
        }
        Ok(())
    }
}
