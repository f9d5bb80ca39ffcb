//! Deletes objects whose owners are gone, and carries out foreground and orphaning deletions, for all kinds.
//!
//! The metadata of every object is watched (kinds come and go with custom resources) and kept in a [`graph`].
//! A reference whose owner is not in the graph is checked against the server before anything is deleted for it, and every
//! deletion has uid and version preconditions, so that a stale cache never deletes a changed object.
//! [`mod@plan`] holds the rules.

mod absent;
mod graph;
mod kinds;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_client::{EventRecorder, Metadata, WorkQueue, path_name, run_workers};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Context;
use crate::common::pods::each;
use crate::common::requests::is_gone;
use crate::error::{Error, Result, has_code, ignore_not_found, is_conflict};

use absent::Absent;
use graph::{Graph, Object};
use kinds::Kinds;
use plan::{Action, OwnerState, is_name, plan};

const REDISCOVER: Duration = Duration::from_secs(30);

pub async fn run(context: Context) {
    let workers = context.settings.concurrent_syncs.of("concurrent-gc-syncs");
    let collector = Arc::new(Collector {
        recorder: context.recorder("garbage-collector-controller"),
        kinds: Kinds::default(),
        graph: Mutex::new(Graph::default()),
        deletions: WorkQueue::new(),
        orphanings: WorkQueue::new(),
        absent: Absent::default(),
        context,
    });
    let watching = kinds::watch_kinds(collector.clone(), REDISCOVER);
    let deleting = {
        let collector = collector.clone();
        async move {
            kinds::wait_synced(&collector).await;
            run_workers(collector.deletions.clone(), workers, move |uid| {
                let collector = collector.clone();
                async move { collector.attempt_delete(uid).await }
            })
            .await;
        }
    };
    let orphaning = {
        let collector = collector.clone();
        run_workers(collector.orphanings.clone(), workers, move |uid| {
            let collector = collector.clone();
            async move { collector.orphan_dependents(uid).await }
        })
    };
    tokio::join!(watching, deleting, orphaning);
}

struct Collector {
    context: Context,
    kinds: Kinds,
    graph: Mutex<Graph>,
    /// Uids of objects to sync: their owners may be gone, or they are being deleted.
    deletions: Arc<WorkQueue<String>>,
    /// Uids of owners to delete while their dependents stay.
    orphanings: Arc<WorkQueue<String>>,
    absent: Absent,
    recorder: EventRecorder,
}

impl Collector {
    async fn attempt_delete(&self, uid: String) -> Result<()> {
        let Some((object, has_dependents)) = self.graph.lock().get(&uid) else { return Ok(()) };
        if object.is_deleting_dependents() {
            return self.finish_foreground(&object).await;
        }
        if object.is_being_deleted() || object.owners().is_empty() {
            return Ok(());
        }
        let mut states = Vec::with_capacity(object.owners().len());
        for reference in object.owners() {
            states.push(self.owner_state(&object, reference).await?);
        }
        let action = plan(object.owners(), &states, has_dependents, object.finalizers());
        self.carry_out(&object, action).await
    }

    /// Whether the owner exists, is gone, or waits for this object to be deleted first.
    async fn owner_state(&self, object: &Object, reference: &OwnerReference) -> Result<OwnerState> {
        let known = self.graph.lock().get(&reference.uid).map(|(owner, _)| owner);
        if let Some(owner) = known.filter(|owner| owner.is_meant_by(reference, object.namespace())) {
            return Ok(state_of(owner.is_deleting_dependents()));
        }
        if self.absent.has(object.namespace(), reference) {
            return Ok(OwnerState::Gone);
        }
        if !is_name(&reference.name) {
            return Err(Error::Later(format!("invalid resource name {:?}", reference.name)));
        }
        let Some(kind) = self.kinds.of_reference(reference) else {
            // The kind may appear again: nothing is deleted on a guess.
            return Err(Error::Later(format!("no kind {} {} is served", reference.api_version, reference.kind)));
        };
        if kind.namespaced && object.namespace().is_empty() {
            self.record_invalid_reference(object, reference);
            return Ok(OwnerState::Present);
        }
        let api: Api<Metadata> = if kind.namespaced {
            Api::namespaced_with(self.context.client.clone(), object.namespace(), &kind.resource)
        } else {
            Api::all_with(self.context.client.clone(), &kind.resource)
        };
        let found = api.get_opt(&reference.name).await?;
        match found.filter(|owner| owner.metadata.uid.as_deref() == Some(&reference.uid)) {
            Some(owner) => {
                let finalizers = owner.metadata.finalizers.iter().flatten();
                let waits = owner.metadata.deletion_timestamp.is_some()
                    && finalizers.into_iter().any(|f| f == plan::FOREGROUND);
                Ok(state_of(waits))
            }
            None => {
                self.absent.remember(object.namespace(), reference);
                Ok(OwnerState::Gone)
            }
        }
    }

    fn record_invalid_reference(&self, object: &Object, reference: &OwnerReference) {
        let message = format!(
            "ownerRef [{}/{}, namespace: , name: {}, uid: {}] does not exist in namespace \"\"",
            reference.api_version, reference.kind, reference.name, reference.uid
        );
        self.recorder.about(
            object.reference(),
            knarr_client::events::EventType::Warning,
            "OwnerRefInvalidNamespace",
            message,
        );
    }

    async fn carry_out(&self, object: &Object, action: Action) -> Result<()> {
        match action {
            Action::Nothing => Ok(()),
            Action::DropReferences(gone) => self.drop_references(object, &gone).await,
            Action::Delete { policy, unblock } => {
                if unblock && self.graph.lock().has_deleting_dependent(object.uid()) {
                    // A cycle of owners that all wait for each other would never be deleted.
                    self.unblock_owners(object).await?;
                }
                let params = DeleteParams {
                    propagation_policy: Some(policy),
                    preconditions: Some(Preconditions {
                        uid: Some(object.uid().to_owned()),
                        resource_version: object.resource_version(),
                    }),
                    ..DeleteParams::default()
                };
                let result = ignore_not_found(self.api(object).delete(&path_name(object.name()), &params).await);
                match result {
                    // It changed since it was observed; the change queues it again.
                    Err(error) if is_conflict(&error) => Err(Error::Later("the object has changed".to_owned())),
                    result => Ok(result.map(drop)?),
                }
            }
        }
    }

    /// An owner in foreground deletion is deleted once no blocking dependent is left.
    async fn finish_foreground(&self, owner: &Object) -> Result<()> {
        self.kinds.check_synced()?;
        let blocking = self.graph.lock().blocking_dependents(owner.uid());
        if blocking.is_empty() {
            return self.remove_finalizer(owner, plan::FOREGROUND).await;
        }
        for dependent in blocking {
            self.deletions.add(dependent);
        }
        Ok(())
    }

    async fn orphan_dependents(&self, uid: String) -> Result<()> {
        let Some((owner, _)) = self.graph.lock().get(&uid) else { return Ok(()) };
        if !owner.is_orphaning() {
            return Ok(());
        }
        self.kinds.check_synced()?;
        let dependents = self.graph.lock().dependents(&uid);
        let gone = [uid];
        each(dependents, |dependent| {
            let gone = &gone;
            async move { self.drop_references(&dependent, gone).await }
        })
        .await?;
        self.remove_finalizer(&owner, plan::ORPHAN).await
    }

    async fn drop_references(&self, object: &Object, gone: &[String]) -> Result<()> {
        let deleted: Vec<Value> = gone.iter().map(|uid| json!({"$patch": "delete", "uid": uid})).collect();
        let patch = json!({"metadata": {"uid": object.uid(), "ownerReferences": deleted}});
        let api = self.api(object);
        let result = api.patch(&path_name(object.name()), &PatchParams::default(), &Patch::Strategic(patch)).await;
        let Err(error) = result else { return Ok(()) };
        if has_code(&error, 415) {
            // Custom resources have no strategic merge patch: the whole list is written, guarded by the version.
            let remaining: Vec<&OwnerReference> =
                object.owners().iter().filter(|reference| !gone.contains(&reference.uid)).collect();
            return self.merge(object, json!({"ownerReferences": remaining})).await;
        }
        // An owner's dependents that still refer to it would be deleted after it.
        if is_gone(&api, &path_name(object.name()), object.uid(), &error).await? { Ok(()) } else { Err(error.into()) }
    }

    async fn unblock_owners(&self, object: &Object) -> Result<()> {
        let unblocked: Vec<OwnerReference> = object
            .owners()
            .iter()
            .map(|reference| OwnerReference { block_owner_deletion: Some(false), ..reference.clone() })
            .collect();
        self.merge(object, json!({"ownerReferences": unblocked})).await
    }

    async fn remove_finalizer(&self, object: &Object, finalizer: &str) -> Result<()> {
        let remaining: Vec<&String> = object.finalizers().iter().filter(|present| *present != finalizer).collect();
        self.merge(object, json!({"finalizers": remaining})).await
    }

    /// Patches metadata; the server rejects the patch when the object has changed meanwhile.
    async fn merge(&self, object: &Object, mut metadata: Value) -> Result<()> {
        metadata["uid"] = json!(object.uid());
        metadata["resourceVersion"] = json!(object.resource_version());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let result = self.api(object).patch(&path_name(object.name()), &PatchParams::default(), &patch).await;
        ignore_not_found(result)?;
        Ok(())
    }

    fn api(&self, object: &Object) -> Api<Metadata> {
        let client = self.context.client.clone();
        if object.namespace().is_empty() {
            Api::all_with(client, &object.kind.resource)
        } else {
            Api::namespaced_with(client, object.namespace(), &object.kind.resource)
        }
    }
}

fn state_of(waits: bool) -> OwnerState {
    if waits { OwnerState::Waiting } else { OwnerState::Present }
}
