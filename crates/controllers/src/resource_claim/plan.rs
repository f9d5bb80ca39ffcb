//! Decisions about pods and their resource claims.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_client::pod;

use crate::common::key::{name, namespace, uid};

const ENTRY: &str = "resource.kubernetes.io/pod-claim-name";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Generated names have room for this and five random letters.
const MAX_BASE_LENGTH: usize = 57;
const MAX_CONSUMERS: usize = 256;

/// Which claim an entry of a pod refers to.
#[derive(Debug, PartialEq)]
pub(super) enum ClaimReference<'a> {
    As(&'a str),
    /// From a template, and not created yet.
    NotYet,
    /// None is needed.
    NotNeeded,
}

pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten())
}

pub(super) fn named<'a>(pod: &'a Pod, entry: &'a PodResourceClaim) -> ClaimReference<'a> {
    if let Some(claim) = &entry.resource_claim_name {
        return ClaimReference::As(claim);
    }
    let mut statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.find(|status| status.name == entry.name) {
        Some(status) => status.resource_claim_name.as_deref().map_or(ClaimReference::NotNeeded, ClaimReference::As),
        None => ClaimReference::NotYet,
    }
}

/// The pod has finished or will never run.
pub(super) fn is_done(pod: &Pod) -> bool {
    pod::is_terminal(pod) || pod::is_terminating(pod) && pod::node_name(pod).is_none()
}

/// The pod's entry that a claim was created for.
pub(super) fn entry_of(claim: &ResourceClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(ENTRY).map(String::as_str)
}

pub(super) fn is_for_entry(claim: &ResourceClaim, entry: &str) -> bool {
    entry_of(claim) == Some(entry)
}

pub(super) fn new_claim(pod: &Pod, entry: &PodResourceClaim, template: &ResourceClaimTemplate) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(ENTRY.to_owned(), entry.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(base_name(name(pod), &entry.name)),
            namespace: Some(namespace(pod).to_owned()),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: name(pod).to_owned(),
                uid: uid(pod).to_owned(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// Both names, each truncated proportionally when they are too long together.
fn base_name(pod: &str, entry: &str) -> String {
    let whole = format!("{pod}-{entry}-");
    if whole.len() <= MAX_BASE_LENGTH {
        return whole;
    }
    let share = |part: &str| part.len() * MAX_BASE_LENGTH / whole.len();
    format!("{}-{}", &pod[..share(pod)], &entry[..share(entry)])
}

pub(super) fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

/// Whether the pod runs with the claim's devices without having reserved them yet.
pub(super) fn may_be_reserved(claim: &ResourceClaim, pod: &Pod) -> bool {
    let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    let all = consumers(claim);
    allocated && all.len() < MAX_CONSUMERS && !all.iter().any(|consumer| consumer.uid == uid(pod))
}

fn has_finalizer(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|present| present == FINALIZER)
}

/// The claim reserved for the remaining consumers only; deallocated when there are none.
pub(super) fn without_consumers(
    claim: &ResourceClaim,
    remaining: &[ResourceClaimConsumerReference],
) -> Option<ResourceClaim> {
    let lost = remaining.len() < consumers(claim).len();
    let unused = remaining.is_empty() && has_finalizer(claim) && (lost || claim.metadata.deletion_timestamp.is_some());
    let mut changed = claim.clone();
    let status = changed.status.get_or_insert_default();
    if lost {
        status.reserved_for = (!remaining.is_empty()).then(|| remaining.to_vec());
    }
    if unused {
        status.allocation = None;
    }
    (changed.status != claim.status && claim.status.is_some()).then_some(changed)
}

/// The claim without its finalizer, when it is neither allocated nor reserved.
pub(super) fn without_finalizer(
    claim: &ResourceClaim,
    remaining: &[ResourceClaimConsumerReference],
) -> Option<ResourceClaim> {
    let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    if allocated || !remaining.is_empty() || !has_finalizer(claim) {
        return None;
    }
    let mut changed = claim.clone();
    let finalizers = changed.metadata.finalizers.get_or_insert_default();
    finalizers.retain(|present| present != FINALIZER);
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [],
            "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "x"}]},
            "status": status}))
        .unwrap()
    }

    fn claim(meta: Value, status: Value) -> ResourceClaim {
        serde_json::from_value(json!({"metadata": meta, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn entries_name_claims() {
        let names =
            |pod: &Pod| -> Vec<String> { claims_of(pod).map(|entry| format!("{:?}", named(pod, entry))).collect() };
        assert_eq!(names(&pod(json!({}))), ["NotYet", "As(\"x\")"]);
        let made = json!({"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a-1"}]});
        assert_eq!(names(&pod(made)), ["As(\"p-a-1\")", "As(\"x\")"]);
        let skipped = json!({"resourceClaimStatuses": [{"name": "a"}]});
        assert_eq!(names(&pod(skipped)), ["NotNeeded", "As(\"x\")"]);
    }

    #[test]
    fn new_claims_are_copied_from_the_template() {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({"spec": {
            "metadata": {"labels": {"l": "1"}, "annotations": {"n": "2"}}, "spec": {}}}))
        .unwrap();
        let pod = pod(json!({}));
        let made = new_claim(&pod, claims_of(&pod).next().unwrap(), &template);
        assert_eq!(made.metadata.generate_name.as_deref(), Some("p-a-"));
        assert!(is_for_entry(&made, "a") && made.metadata.labels.unwrap()["l"] == "1");
        assert_eq!(base_name(&"p".repeat(60), &"c".repeat(30)), format!("{}-{}", "p".repeat(37), "c".repeat(18)));
    }

    #[test]
    fn claims_are_freed_with_their_last_consumer() {
        let user = json!({"resource": "pods", "name": "p", "uid": "u"});
        let meta = json!({"finalizers": [FINALIZER]});
        let used = claim(meta.clone(), json!({"reservedFor": [user], "allocation": {}}));
        assert!(without_consumers(&used, consumers(&used)).is_none());
        let freed = without_consumers(&used, &[]).unwrap();
        assert!(freed.status.as_ref().unwrap().allocation.is_none());
        assert!(without_finalizer(&used, &[]).is_none(), "still allocated");
        assert!(without_finalizer(&freed, &[]).unwrap().metadata.finalizers.unwrap().is_empty());
        assert!(may_be_reserved(&claim(json!({}), json!({"allocation": {}})), &pod(json!({}))));
        assert!(!may_be_reserved(&used, &pod(json!({}))), "it has it already");
    }
}
