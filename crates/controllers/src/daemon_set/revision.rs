//! The revisions of a daemon set's template.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::common::history::{self, REVISION_HASH};
use crate::common::key::{name, namespace};
use crate::common::requests::{delete, replace, replace_status};
use crate::error::{Error, Result, is_already_there};

/// The revision of the current template (created or renumbered if needed) and all others.
pub(super) async fn current(
    client: &Client,
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    revisions: Vec<Arc<ControllerRevision>>,
) -> Result<(ControllerRevision, Vec<Arc<ControllerRevision>>)> {
    let patch = history::patch_of(&spec.template)?;
    let (mut same, old): (Vec<_>, Vec<_>) =
        revisions.into_iter().partition(|revision| history::holds(revision, &patch));
    history::sort(&mut same);
    let next = history::next_number(&old);
    let Some(newest) = same.pop() else {
        let hash = history::hash_of(&patch, set.status.as_ref().and_then(|status| status.collision_count));
        return Ok((create(client, set, spec, &patch, hash, next).await?, old));
    };
    for double in same {
        delete(client, &*double, None).await?;
    }
    if newest.revision < next {
        let renumbered = ControllerRevision { revision: next, ..(*newest).clone() };
        return Ok((replace(client, &renumbered).await?, old));
    }
    Ok(((*newest).clone(), old))
}

async fn create(
    client: &Client,
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    patch: &serde_json::Value,
    hash: String,
    number: i64,
) -> Result<ControllerRevision> {
    let revision = history::revision_of(set, &spec.template, patch, REVISION_HASH, &hash, number);
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace(set));
    match api.create(&PostParams::default(), &revision).await {
        Err(error) if is_already_there(&error) => {
            let there = api.get_opt(name(&revision)).await?;
            if let Some(there) = there.filter(|there| history::holds(there, patch)) {
                return Ok(there);
            }
            let mut changed = set.clone();
            let status = changed.status.get_or_insert_default();
            status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
            replace_status(client, &changed).await?;
            Err(Error::Later("another revision has the same hash".to_owned()))
        }
        result => Ok(result?),
    }
}

/// Deletes the oldest revisions beyond the limit that no pod uses.
pub(super) async fn clean_up(
    client: &Client,
    spec: &DaemonSetSpec,
    mut old: Vec<Arc<ControllerRevision>>,
    pods: &[Arc<Pod>],
) -> Result<()> {
    let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
    let mut surplus = old.len().saturating_sub(limit);
    if surplus == 0 {
        return Ok(());
    }
    let hash = |meta: &ObjectMeta| meta.labels.as_ref().and_then(|labels| labels.get(REVISION_HASH)).cloned();
    let live: HashSet<String> = pods.iter().filter_map(|pod| hash(&pod.metadata)).collect();
    history::sort(&mut old);
    for revision in old {
        if surplus == 0 {
            break;
        }
        if hash(&revision.metadata).is_none_or(|hash| !live.contains(&hash)) {
            delete(client, &*revision, None).await?;
            surplus -= 1;
        }
    }
    Ok(())
}
