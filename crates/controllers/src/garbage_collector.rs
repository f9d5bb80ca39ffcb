//! Deletes objects whose owners are gone, and carries out foreground and orphaning deletions, for all kinds.
//!
//! Identity and owners of every object are followed (kinds come and go with custom resources) and kept in a [`graph`].
//! A reference whose owner is not in the graph is checked against the server before anything is deleted for it, and every
//! deletion names uid and version, so that no stale view can delete what has changed. [`plan`] holds the rules.

mod follow;
mod graph;
mod plan;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_client::{EventRecorder, Metadata, WorkQueue, run_workers};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Context;
use crate::common::pods::each;
use crate::error::{Error, Result, ignore_not_found, is_conflict};

use follow::Kinds;
use graph::{Graph, Object};
use plan::{Action, Standing, plan};

const WORKERS: usize = 20;
const REDISCOVER: Duration = Duration::from_secs(30);

pub async fn run(context: Context) {
    let collector = Arc::new(Collector {
        recorder: context.recorder("garbage-collector-controller"),
        kinds: Kinds::default(),
        graph: Mutex::new(Graph::default()),
        deletions: WorkQueue::new(),
        orphanings: WorkQueue::new(),
        absent: Mutex::new(HashSet::new()),
        context,
    });
    let following = follow::keep_following(collector.clone(), REDISCOVER);
    let deleting = {
        let collector = collector.clone();
        async move {
            follow::settled(&collector).await;
            run_workers(collector.deletions.clone(), WORKERS, move |uid| {
                let collector = collector.clone();
                async move { collector.attempt_delete(uid).await }
            })
            .await;
        }
    };
    let orphaning = {
        let collector = collector.clone();
        run_workers(collector.orphanings.clone(), WORKERS, move |uid| {
            let collector = collector.clone();
            async move { collector.orphan_dependents(uid).await }
        })
    };
    tokio::join!(following, deleting, orphaning);
}

struct Collector {
    context: Context,
    kinds: Kinds,
    graph: Mutex<Graph>,
    /// Uids of objects to look at: their owners, or their end, may have come.
    deletions: Arc<WorkQueue<String>>,
    /// Uids of owners that go without what they own.
    orphanings: Arc<WorkQueue<String>>,
    /// Uids of owners the server does not have; a uid never comes back.
    absent: Mutex<HashSet<String>>,
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
        let mut standings = Vec::with_capacity(object.owners().len());
        for reference in object.owners() {
            standings.push(self.standing(&object, reference).await?);
        }
        let action = plan(object.owners(), &standings, has_dependents, object.finalizers());
        self.carry_out(&object, action).await
    }

    /// Whether the owner is there, gone, or waiting for this object to go first.
    async fn standing(&self, object: &Object, reference: &OwnerReference) -> Result<Standing> {
        let known = self.graph.lock().get(&reference.uid).map(|(owner, _)| owner);
        if let Some(owner) = known.filter(|owner| owner.is_meant_by(reference, object.namespace())) {
            return Ok(standing_of(owner.is_deleting_dependents()));
        }
        if self.absent.lock().contains(&reference.uid) {
            return Ok(Standing::Gone);
        }
        let Some(kind) = self.kinds.of_reference(reference) else {
            // The kind may appear again; nothing is deleted on a guess.
            return Err(Error::Later(format!("no kind {} {} is served", reference.api_version, reference.kind)));
        };
        if kind.namespaced && object.namespace().is_empty() {
            self.tell_invalid(object, reference);
            return Ok(Standing::Present);
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
                Ok(standing_of(waits))
            }
            None => {
                // An owner that exists under another name is only absent for this reference.
                if self.graph.lock().get(&reference.uid).is_none() {
                    self.remember_absent(&reference.uid);
                }
                Ok(Standing::Gone)
            }
        }
    }

    fn remember_absent(&self, uid: &str) {
        const REMEMBERED: usize = 10_000;
        let mut absent = self.absent.lock();
        if absent.len() >= REMEMBERED {
            absent.clear();
        }
        absent.insert(uid.to_owned());
    }

    fn tell_invalid(&self, object: &Object, reference: &OwnerReference) {
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
                    // A circle of owners that all wait for each other would never end.
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
                let answer = ignore_not_found(self.api(object).delete(object.name(), &params).await);
                match answer {
                    // It changed since it was seen; the change will be looked at.
                    Err(error) if is_conflict(&error) => Err(Error::Later("the object has changed".to_owned())),
                    answer => Ok(answer.map(drop)?),
                }
            }
        }
    }

    /// An owner that waits for its dependents goes once none of those that block it is left.
    async fn finish_foreground(&self, owner: &Object) -> Result<()> {
        self.kinds.all_followed()?;
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
        self.kinds.all_followed()?;
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
        let answer = self.api(object).patch(object.name(), &PatchParams::default(), &Patch::Strategic(patch)).await;
        match ignore_not_found(answer) {
            // Custom resources know no strategic merge: the list is written whole, guarded by the version.
            Err(error) if crate::error::has_code(&error, 415) => {
                let kept: Vec<&OwnerReference> =
                    object.owners().iter().filter(|reference| !gone.contains(&reference.uid)).collect();
                self.merge(object, json!({"ownerReferences": kept})).await
            }
            Err(error) if is_conflict(&error) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
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
        let kept: Vec<&String> = object.finalizers().iter().filter(|present| *present != finalizer).collect();
        self.merge(object, json!({"finalizers": kept})).await
    }

    /// Writes parts of the metadata, refused when the object has changed meanwhile.
    async fn merge(&self, object: &Object, mut metadata: Value) -> Result<()> {
        metadata["uid"] = json!(object.uid());
        metadata["resourceVersion"] = json!(object.resource_version());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let answer = self.api(object).patch(object.name(), &PatchParams::default(), &patch).await;
        ignore_not_found(answer)?;
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

fn standing_of(waits: bool) -> Standing {
    if waits { Standing::Waiting } else { Standing::Present }
}
