//! The revisions of a stateful set's template: current and update.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use super::identity::revision_of;
use crate::common::history;
use crate::common::key::{name, namespace};
use crate::common::requests::{delete, replace};
use crate::error::{Result, is_already_there};

const HASH: &str = "controller.kubernetes.io/hash";

pub(super) struct Revisions {
    pub current: Arc<ControllerRevision>,
    pub update: Arc<ControllerRevision>,
    pub collisions: i32,
    /// All existing revisions, oldest first.
    pub all: Vec<Arc<ControllerRevision>>,
}

impl Revisions {
    pub fn current_template(&self) -> Option<PodTemplateSpec> {
        history::template_of(&self.current)
    }

    pub fn update_template(&self) -> Option<PodTemplateSpec> {
        history::template_of(&self.update)
    }
}

pub(super) async fn find(
    client: &Client,
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    mut all: Vec<Arc<ControllerRevision>>,
) -> Result<Revisions> {
    history::sort(&mut all);
    let status = set.status.clone().unwrap_or_default();
    let mut collisions = status.collision_count.unwrap_or(0);
    let patch = history::patch_of(&spec.template)?;
    let equal = all.iter().rev().find(|revision| history::holds(revision, &patch)).cloned();
    let update = match (equal, all.last()) {
        (Some(equal), Some(last)) if name(&*equal) == name(&**last) => equal,
        (Some(equal), _) => {
            // A former template was restored: its revision becomes the newest.
            let renumbered = ControllerRevision { revision: history::next_number(&all), ..(*equal).clone() };
            Arc::new(replace(client, &renumbered).await?)
        }
        (None, _) => Arc::new(create(client, set, spec, &patch, history::next_number(&all), &mut collisions).await?),
    };
    let current = status.current_revision.as_deref();
    let current = all.iter().find(|revision| Some(name(&***revision)) == current).cloned();
    Ok(Revisions { current: current.unwrap_or_else(|| update.clone()), update, collisions, all })
}

async fn create(
    client: &Client,
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    patch: &serde_json::Value,
    number: i64,
    collisions: &mut i32,
) -> Result<ControllerRevision> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace(set));
    loop {
        let hash = history::hash_of(patch, Some(*collisions));
        let revision = history::revision_of(set, &spec.template, patch, HASH, &hash, number);
        match api.create(&PostParams::default(), &revision).await {
            Err(error) if is_already_there(&error) => {
                let there = api.get_opt(name(&revision)).await?;
                if let Some(there) = there.filter(|there| history::holds(there, patch)) {
                    return Ok(there);
                }
                *collisions += 1;
            }
            result => return Ok(result?),
        }
    }
}

/// Deletes the oldest revisions beyond the limit that neither pods nor the set use.
pub(super) async fn clean_up(
    client: &Client,
    spec: &StatefulSetSpec,
    revisions: &Revisions,
    pods: &[Arc<Pod>],
) -> Result<()> {
    let mut live: HashSet<&str> = pods.iter().map(|pod| revision_of(pod)).collect();
    live.extend([name(&*revisions.current), name(&*revisions.update)]);
    let idle: Vec<_> = revisions.all.iter().filter(|revision| !live.contains(name(&***revision))).collect();
    let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(usize::MAX);
    for revision in idle.iter().take(idle.len().saturating_sub(limit)) {
        delete(client, &***revision, None).await?;
    }
    Ok(())
}
