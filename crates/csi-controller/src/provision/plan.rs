//! Decides what is to be done for a claim.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_csi::messages::StringMap;

use crate::meta::{annotation, has_finalizer, is_deleted};

pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On claims for which a volume may exist although no PersistentVolume does: a claim that is deleted while its volume is
/// created, or while the node is down, stays until the volume is deleted too.
pub(crate) const FINALIZER: &str = "csi.knarr.io/provisioning";
/// The node that has what the claim's data source names; the scheduler places the claim's first pod there.
pub(crate) const SOURCE_NODE: &str = "csi.knarr.io/source-node";

/// Who decides.
pub(super) struct Provisioner<'a> {
    pub driver: &'a str,
    /// The node, if volumes belong to nodes.
    pub node: Option<&'a str>,
    /// The topology of this node.
    pub segments: &'a StringMap,
}

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Ignore,
    /// A PersistentVolume exists: the finalizer is not needed any more.
    RemoveFinalizer,
    /// The claim is deleted: so must be the volume that may exist for it.
    CleanUp,
    /// No node is selected and none will be: this node may select itself.
    SelectSelf,
    Provision,
}

/// `has_volume` is whether a PersistentVolume for the claim exists.
pub(super) fn plan(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    has_volume: bool,
    by: &Provisioner<'_>,
) -> Step {
    let provisioner = annotation(claim, PROVISIONER).or_else(|| annotation(claim, BETA_PROVISIONER));
    let selected = annotation(claim, SELECTED_NODE);
    let is_elsewhere = by.node.is_some() && selected.is_some() && selected != by.node;
    if provisioner != Some(by.driver) || is_elsewhere {
        return Step::Ignore;
    }
    let is_pending = has_finalizer(claim, FINALIZER);
    let names_volume =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| !name.is_empty());
    if names_volume || has_volume {
        return if is_pending { Step::RemoveFinalizer } else { Step::Ignore };
    }
    if is_deleted(claim) {
        return if is_pending { Step::CleanUp } else { Step::Ignore };
    }
    let Some(class) = class.filter(|class| class.provisioner == by.driver) else { return Step::Ignore };
    match (selected, by.node) {
        (None, _) if class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") => Step::Ignore,
        (None, Some(node)) => match annotation(claim, SOURCE_NODE) {
            Some(source) if source != node => Step::Ignore,
            _ if !is_allowed(class, by.segments) => Step::Ignore,
            _ => Step::SelectSelf,
        },
        _ => Step::Provision,
    }
}

/// Whether the class allows volumes in a place. One of its terms must match, with all of its labels.
fn is_allowed(class: &StorageClass, segments: &StringMap) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut labels = term.match_label_expressions.iter().flatten();
            labels.all(|label| segments.get(&label.key).is_some_and(|value| label.values.contains(value)))
        })
}

/// The order in which nodes may select themselves for a claim: the same on all nodes, different for each claim.
pub(super) fn rank(claim_uid: &str, node: &str, nodes: &[String]) -> usize {
    use sha2::{Digest, Sha256};
    let weight = |node: &str| Sha256::digest(format!("{claim_uid}/{node}").as_bytes());
    let own = weight(node);
    nodes.iter().filter(|other| *other != node && weight(other) < own).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn claims_are_provisioned_where_they_are_wanted() {
        let here = Some("n");
        let ours = |extra: Value| {
            let mut annotations = json!({PROVISIONER: "d"});
            annotations.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({"annotations": annotations})
        };
        let with = |mut metadata: Value, key: &str, value: Value| {
            metadata[key] = value;
            metadata
        };
        let pending = json!([FINALIZER]);
        let selected = ours(json!({SELECTED_NODE: "n"}));
        let deleted = |metadata| with(metadata, "deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        for (about, metadata, volume_name, has_volume, mode, node, expected) in [
            (
                "another driver's",
                json!({"annotations": {PROVISIONER: "e"}}),
                "",
                false,
                "Immediate",
                here,
                Step::Ignore,
            ),
            ("no provisioner yet", json!({}), "", false, "Immediate", here, Step::Ignore),
            (
                "beta annotation",
                json!({"annotations": {BETA_PROVISIONER: "d"}}),
                "",
                false,
                "Immediate",
                None,
                Step::Provision,
            ),
            ("immediate", ours(json!({})), "", false, "Immediate", None, Step::Provision),
            ("immediate, local", ours(json!({})), "", false, "Immediate", here, Step::SelectSelf),
            ("source here", ours(json!({SOURCE_NODE: "n"})), "", false, "Immediate", here, Step::SelectSelf),
            ("source elsewhere", ours(json!({SOURCE_NODE: "m"})), "", false, "Immediate", here, Step::Ignore),
            ("waits for a pod", ours(json!({})), "", false, "WaitForFirstConsumer", here, Step::Ignore),
            ("selected", selected.clone(), "", false, "WaitForFirstConsumer", here, Step::Provision),
            (
                "selected elsewhere",
                ours(json!({SELECTED_NODE: "m"})),
                "",
                false,
                "WaitForFirstConsumer",
                here,
                Step::Ignore,
            ),
            (
                "selected, not local",
                ours(json!({SELECTED_NODE: "m"})),
                "",
                false,
                "WaitForFirstConsumer",
                None,
                Step::Provision,
            ),
            ("bound", selected.clone(), "pv", false, "Immediate", here, Step::Ignore),
            ("has a volume", selected.clone(), "", true, "Immediate", here, Step::Ignore),
            (
                "killed after the PersistentVolume",
                with(selected.clone(), "finalizers", pending.clone()),
                "",
                true,
                "Immediate",
                here,
                Step::RemoveFinalizer,
            ),
            (
                "killed before the PersistentVolume",
                with(selected.clone(), "finalizers", pending.clone()),
                "",
                false,
                "Immediate",
                here,
                Step::Provision,
            ),
            (
                "deleted meanwhile",
                deleted(with(selected.clone(), "finalizers", pending)),
                "",
                false,
                "Immediate",
                here,
                Step::CleanUp,
            ),
            ("deleted", deleted(selected), "", false, "Immediate", here, Step::Ignore),
        ] {
            let claim: PersistentVolumeClaim =
                serde_json::from_value(json!({"metadata": metadata, "spec": {"volumeName": volume_name}})).unwrap();
            let class: StorageClass =
                serde_json::from_value(json!({"provisioner": "d", "volumeBindingMode": mode})).unwrap();
            let step =
                plan(&claim, Some(&class), has_volume, &Provisioner { driver: "d", node, segments: &StringMap::new() });
            assert_eq!(step, expected, "{about}");
        }
    }

    #[test]
    fn the_class_may_allow_some_places_only() {
        let place = StringMap::from([("zone".into(), "a".into()), ("node".into(), "n".into())]);
        let term = |labels: &[(&str, &[&str])]| {
            let labels: Vec<Value> = labels.iter().map(|(key, values)| json!({"key": key, "values": values})).collect();
            json!({"matchLabelExpressions": labels})
        };
        for (terms, expected) in [
            (json!(null), true),
            (json!([]), true),
            (json!([term(&[("zone", &["a", "b"])])]), true),
            (json!([term(&[("zone", &["b"])])]), false),
            (json!([term(&[("zone", &["b"])]), term(&[("node", &["n"])])]), true),
            (json!([term(&[("zone", &["a"]), ("node", &["m"])])]), false),
            (json!([term(&[("rack", &["a"])])]), false),
        ] {
            let class = json!({"provisioner": "d", "allowedTopologies": terms});
            let class: StorageClass = serde_json::from_value(class).unwrap();
            assert_eq!(is_allowed(&class, &place), expected, "{terms}");
        }
    }

    #[test]
    fn nodes_agree_on_their_order() {
        let nodes: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut ranks: Vec<usize> = nodes.iter().map(|node| rank("uid", node, &nodes)).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2]);
    }
}
