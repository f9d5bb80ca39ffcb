//! ControllerRevisions: numbered history of a workload's templates.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use knarr_client::{Informer, decode, owner};
use serde_json::{Value, json};

use super::hash;
use super::key::{name, namespace};
use super::pods::{BY_CONTROLLER, ORPHANS};

pub const REVISION_HASH: &str = "controller-revision-hash";

pub fn index(revisions: &Informer<ControllerRevision>) {
    revisions.add_index(BY_CONTROLLER, |revision| {
        owner::controller_uid(&revision.metadata).map(str::to_owned).into_iter().collect()
    });
    revisions.add_index(ORPHANS, |revision| {
        let orphan = owner::controller_of(&revision.metadata).is_none();
        orphan.then(|| namespace(revision).to_owned()).into_iter().collect()
    });
}

/// A template as the patch that restores it.
pub fn patch_of(template: &PodTemplateSpec) -> serde_json::Result<Value> {
    let mut template = serde_json::to_value(template)?;
    template["$patch"] = json!("replace");
    Ok(json!({"spec": {"template": template}}))
}

/// The template that a revision holds.
pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.remove("$patch");
    decode::from_value(&template).ok()
}

/// Whether a revision holds the template of the patch. Older releases of Kubernetes wrote some absent fields as null: that
/// must not look like another template, or all pods would be replaced.
pub fn holds(revision: &ControllerRevision, patch: &Value) -> bool {
    let is_same = revision.data.as_ref().is_some_and(|data| data.0 == *patch);
    is_same || template_of(revision).and_then(|template| patch_of(&template).ok()).as_ref() == Some(patch)
}

/// A new revision of an owner's template. `label` is the key of the label that holds the hash.
pub fn revision_of<K>(
    owner: &K,
    template: &PodTemplateSpec,
    patch: &Value,
    label: &str,
    hash: &str,
    number: i64,
) -> ControllerRevision
where
    K: kube::Resource<DynamicType = ()>,
{
    let mut labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(label.to_owned(), hash.to_owned());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name_of(name(owner), hash)),
            namespace: owner.meta().namespace.clone(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![owner::controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: data(patch),
        revision: number,
    }
}

pub fn data(patch: &Value) -> Option<RawExtension> {
    Some(RawExtension(patch.clone()))
}

/// A short hash of a patch; the collision count changes it when two patches share it.
pub fn hash_of(patch: &Value, collisions: Option<i32>) -> String {
    let bytes = patch.to_string().into_bytes();
    let count = collisions.map(|count| count.to_string().into_bytes()).unwrap_or_default();
    hash::safe(&hash::fnv1(&[&bytes, &count]).to_string())
}

pub fn name_of(owner: &str, hash: &str) -> String {
    const MAX_NAME_LENGTH: usize = 223;
    format!("{}-{hash}", &owner[..owner.len().min(MAX_NAME_LENGTH)])
}

/// Oldest first: by number, then age, then name.
pub fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|a, b| {
        let key = |each: &ControllerRevision| (each.revision, each.metadata.creation_timestamp.clone());
        key(a).cmp(&key(b)).then_with(|| name(&**a).cmp(name(&**b)))
    });
}

pub fn next_number(revisions: &[Arc<ControllerRevision>]) -> i64 {
    revisions.iter().map(|revision| revision.revision).max().unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_survive_a_round_trip() {
        let template: PodTemplateSpec = serde_json::from_value(
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}),
        )
        .unwrap();
        let patch = patch_of(&template).unwrap();
        let revision = ControllerRevision { data: data(&patch), revision: 3, ..ControllerRevision::default() };
        assert_eq!(template_of(&revision), Some(template));
        assert!(holds(&revision, &patch));
        assert_ne!(hash_of(&patch, None), hash_of(&patch, Some(1)));
        assert_eq!(next_number(&[Arc::new(revision)]), 4);
    }

    #[test]
    fn absent_fields_make_no_difference() {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let patch = patch_of(&serde_json::from_value(template).unwrap()).unwrap();
        for (field, value, expected) in [
            ("/spec/template/metadata", json!({"creationTimestamp": null, "labels": {"a": "b"}}), true),
            ("/spec/template/metadata", json!({"labels": {"a": "c"}}), false),
            ("/spec/template/spec/containers/0", json!({"name": "c", "image": "other"}), false),
        ] {
            let mut written = patch.clone();
            *written.pointer_mut(field).unwrap() = value;
            let revision = ControllerRevision { data: data(&written), ..ControllerRevision::default() };
            assert_eq!(holds(&revision, &patch), expected, "{written}");
        }
    }
}
