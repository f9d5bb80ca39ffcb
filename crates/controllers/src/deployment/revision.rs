//! Revisions: which ReplicaSet has which template, how they are numbered, and rollback to one.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::owner;

use super::plan::{Rollback, max_surge, replicas};
use crate::common::hash;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const TEMPLATE_HASH: &str = "pod-template-hash";
const HISTORY_LENGTH: usize = 2000;

/// Annotations that belong to one object and are not copied.
const KEPT: [&str; 6] = [LAST_APPLIED, REVISION, HISTORY, DESIRED, MAX, ROLLBACK_TO];

type Labels = BTreeMap<String, String>;

/// Whether the ReplicaSet's template equals the deployment's, except for the hash label.
pub(super) fn same_template(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let ours = deployment.spec.as_ref().map(|spec| &spec.template);
    let theirs = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => ours.spec == theirs.spec && without_hash(ours) == without_hash(theirs),
        _ => false,
    }
}

fn without_hash(template: &PodTemplateSpec) -> ObjectMeta {
    let mut meta = template.metadata.clone().unwrap_or_default();
    if let Some(labels) = &mut meta.labels {
        labels.remove(TEMPLATE_HASH);
    }
    meta.labels = meta.labels.filter(|labels| !labels.is_empty());
    meta.annotations = meta.annotations.filter(|annotations| !annotations.is_empty());
    meta
}

pub(super) fn of(set: &ReplicaSet) -> Option<i64> {
    annotation(set, REVISION).map_or(Some(0), |text| text.parse().ok())
}

pub(super) fn next<'a>(old: impl Iterator<Item = &'a ReplicaSet>) -> i64 {
    old.filter_map(of).max().unwrap_or(0).max(0) + 1
}

fn annotation<'a>(set: &'a ReplicaSet, key: &str) -> Option<&'a str> {
    set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn size_annotation(set: &ReplicaSet, key: &str) -> Option<i32> {
    annotation(set, key)?.parse().ok().filter(|size| *size >= 0)
}

/// The deployment's size when this set was last sized.
pub(super) fn desired_size(set: &ReplicaSet) -> Option<i32> {
    size_annotation(set, DESIRED)
}

pub(super) fn max_size(set: &ReplicaSet) -> Option<i32> {
    size_annotation(set, MAX)
}

pub(super) fn annotate_size(set: &mut ReplicaSet, desired: i32, max: i32) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), desired.to_string());
    annotations.insert(MAX.to_owned(), max.to_string());
}

/// Copies the deployment's annotations and raises the revision; the former one goes into the history annotation.
pub(super) fn annotate(deployment: &Deployment, set: &mut ReplicaSet, revision: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !KEPT.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let former = annotations.get(REVISION).cloned();
    let Ok(former_number) = former.as_deref().unwrap_or("0").parse::<i64>() else { return };
    if former_number >= revision {
        return;
    }
    annotations.insert(REVISION.to_owned(), revision.to_string());
    if let Some(former) = former {
        let history = longer_history(annotations.get(HISTORY).map_or("", String::as_str), &former);
        if let Some(history) = history {
            annotations.insert(HISTORY.to_owned(), history);
        }
    }
}

/// Drops the oldest entries when the list becomes too long; `None` when even that does not help.
fn longer_history(history: &str, revision: &str) -> Option<String> {
    if history.is_empty() {
        return Some(revision.to_owned());
    }
    let mut remaining = history;
    while remaining.len() + revision.len() + 1 > HISTORY_LENGTH {
        match remaining.split_once(',') {
            Some((_, rest)) => remaining = rest,
            None => return (revision.len() <= HISTORY_LENGTH).then(|| revision.to_owned()),
        }
    }
    Some(format!("{remaining},{revision}"))
}

pub(super) fn new_replica_set(deployment: &Deployment, spec: &DeploymentSpec, revision: i64) -> ReplicaSet {
    let hash = template_hash(&spec.template, deployment.status.as_ref().and_then(|status| status.collision_count));
    let with_hash = |labels: Option<&Labels>| {
        let mut labels = labels.cloned().unwrap_or_default();
        labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
        labels
    };
    let mut template = spec.template.clone();
    let labels = with_hash(template.metadata.as_ref().and_then(|meta| meta.labels.as_ref()));
    template.metadata.get_or_insert_default().labels = Some(labels.clone());
    let mut selector = spec.selector.clone();
    selector.match_labels = Some(with_hash(selector.match_labels.as_ref()));
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(set_name(super::name(deployment), &hash)),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![owner::controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    annotate(deployment, &mut set, revision);
    annotate_size(&mut set, replicas(spec), replicas(spec) + max_surge(spec));
    set
}

/// A short hash of a template; the collision count changes it when two templates share it.
fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    // A typed template always serializes; its maps are sorted, so equal templates become equal bytes.
    let bytes = serde_json::to_vec(template).unwrap_or_default();
    let count = collisions.map(|count| (count as u32).to_le_bytes().to_vec()).unwrap_or_default();
    hash::safe(&hash::fnv1a(&[&bytes, &count]).to_string())
}

/// Names of ReplicaSets become labels and prefixes of pod names, so their length is limited.
fn set_name(deployment: &str, hash: &str) -> String {
    const MAX_NAME_LENGTH: usize = 63;
    let room = MAX_NAME_LENGTH.saturating_sub(hash.len() + 1);
    let end = deployment.len().min(room);
    format!("{}-{hash}", &deployment[..end])
}

/// The revision that a rollback requests; zero means the one before the current.
pub(super) fn rollback_target(deployment: &Deployment) -> Option<i64> {
    deployment.metadata.annotations.as_ref()?.get(ROLLBACK_TO)?.parse().ok()
}

pub(super) fn rollback(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Rollback {
    let mut changed = deployment.clone();
    if let Some(annotations) = &mut changed.metadata.annotations {
        annotations.remove(ROLLBACK_TO);
    }
    let refused =
        |warning: (&'static str, String)| Rollback { deployment: changed.clone(), done: None, warning: Some(warning) };
    let mut target = rollback_target(deployment).unwrap_or(0);
    if target == 0 {
        let mut revisions: Vec<i64> = sets.iter().filter_map(|set| of(set)).collect();
        revisions.sort_unstable();
        target = revisions.iter().rev().nth(1).copied().unwrap_or(0);
        if target == 0 {
            return refused(("DeploymentRollbackRevisionNotFound", "Unable to find last revision.".to_owned()));
        }
    }
    let Some(set) = sets.iter().find(|set| of(set) == Some(target)) else {
        let message = "Unable to find the revision to rollback to.".to_owned();
        return refused(("DeploymentRollbackRevisionNotFound", message));
    };
    let name = super::name(deployment);
    if same_template(deployment, set) {
        let message = format!("The rollback revision contains the same template as current deployment \"{name}\"");
        return refused(("DeploymentRollbackTemplateUnchanged", message));
    }
    if let (Some(spec), Some(template)) = (&mut changed.spec, set.spec.as_ref().and_then(|spec| spec.template.clone()))
    {
        spec.template = template;
        if let Some(labels) = spec.template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
            labels.remove(TEMPLATE_HASH);
        }
    }
    let mut annotations: Labels = changed.metadata.annotations.take().unwrap_or_default();
    annotations.retain(|key, _| KEPT.contains(&key.as_str()));
    let restored = set.metadata.annotations.iter().flatten().filter(|(key, _)| !KEPT.contains(&key.as_str()));
    annotations.extend(restored.map(|(key, value)| (key.clone(), value.clone())));
    changed.metadata.annotations = Some(annotations);
    let done = format!("Rolled back deployment \"{name}\" to revision {target}");
    Rollback { deployment: changed, done: Some(done), warning: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_within_its_length() {
        assert_eq!(longer_history("", "1").as_deref(), Some("1"));
        assert_eq!(longer_history("1,2", "3").as_deref(), Some("1,2,3"));
        let long = vec!["12345"; 333].join(",");
        let longer = longer_history(&long, "12346").unwrap();
        assert!(longer.len() <= HISTORY_LENGTH && longer.ends_with(",12346"));
    }

    #[test]
    fn names_stay_within_a_label() {
        assert_eq!(set_name("web", "abc"), "web-abc");
        assert_eq!(set_name(&"x".repeat(100), "abc").len(), 63);
    }
}
