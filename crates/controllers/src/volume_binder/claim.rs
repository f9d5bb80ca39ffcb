//! Decides what happens to a claim.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_client::csi_migration::driver_of_provisioner;
use knarr_client::events::EventType;
use knarr_client::pod;

use super::matching::{best, claim_class, is_for, mismatch};
use crate::common::key::{name, uid};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";

const WAITS_FOR_CONSUMER: &str = "WaitForFirstConsumer";
const WAITS_FOR_POD: &str = "WaitForPodScheduled";

pub(super) struct Observed {
    pub class: Option<Arc<StorageClass>>,
    pub default_class: Option<String>,
    /// The volume the claim names.
    pub requested: Option<Arc<PersistentVolume>>,
    /// Free volumes of the claim's class, and those for the claim.
    pub candidates: Vec<Arc<PersistentVolume>>,
    /// Pods that use the claim.
    pub pods: Vec<Arc<Pod>>,
}

#[derive(Debug)]
pub(super) enum ClaimStep {
    Bind(Arc<PersistentVolume>),
    /// It names no class, and there is a default one now.
    AssignClass(String),
    Wait {
        event: Option<(EventType, &'static str, String)>,
        provisioner: Option<String>,
    },
    Lost(&'static str, &'static str),
}

/// Whether a claim waits for nothing but a volume that somebody creates by hand. Those that wait for a pod or a provisioner
/// are many, and their volume does not exist yet.
pub(super) fn needs_volume(step: &ClaimStep) -> bool {
    let ClaimStep::Wait { event: Some((_, reason, _)), provisioner: None } = step else { return false };
    !matches!(*reason, WAITS_FOR_CONSUMER | WAITS_FOR_POD)
}

pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(BIND_COMPLETED))
}

/// The volume that a claim names.
pub(super) fn requested_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

pub(super) fn plan(claim: &PersistentVolumeClaim, observed: &Observed) -> ClaimStep {
    match (is_bound(claim), requested_volume(claim)) {
        (true, None) => ClaimStep::Lost(
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        (true, Some(_)) => plan_bound(claim, observed),
        (false, Some(_)) => plan_requested(claim, observed),
        (false, None) => plan_unbound(claim, observed),
    }
}

fn plan_bound(claim: &PersistentVolumeClaim, observed: &Observed) -> ClaimStep {
    let Some(volume) = &observed.requested else {
        return ClaimStep::Lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    match reference {
        None => ClaimStep::Bind(volume.clone()),
        Some(reference) if reference.uid.as_deref() == Some(uid(claim)) => ClaimStep::Bind(volume.clone()),
        Some(_) => {
            ClaimStep::Lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
        }
    }
}

fn plan_requested(claim: &PersistentVolumeClaim, observed: &Observed) -> ClaimStep {
    let wait = |event| ClaimStep::Wait { event, provisioner: None };
    let Some(volume) = &observed.requested else { return wait(None) };
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    match reference {
        Some(reference) if is_for(reference, claim) => ClaimStep::Bind(volume.clone()),
        Some(_) => {
            let message = format!("volume \"{}\" already bound to a different claim.", name(&**volume));
            wait(Some((EventType::Warning, "FailedBinding", message)))
        }
        None => match mismatch(volume, claim) {
            None => ClaimStep::Bind(volume.clone()),
            Some(reason) => {
                let message = format!("Cannot bind to requested volume \"{}\": {reason}", name(&**volume));
                wait(Some((EventType::Warning, "VolumeMismatch", message)))
            }
        },
    }
}

fn plan_unbound(claim: &PersistentVolumeClaim, observed: &Observed) -> ClaimStep {
    let delayed = observed.class.as_ref().is_some_and(|class| waits_for_consumer(class));
    if let Some(volume) = best(claim, &observed.candidates, delayed) {
        return ClaimStep::Bind(volume);
    }
    let names_class = claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.is_some());
    if !names_class
        && claim_class(claim).is_empty()
        && let Some(class) = &observed.default_class
    {
        return ClaimStep::AssignClass(class.clone());
    }
    let event = |kind, reason, message| ClaimStep::Wait { event: Some((kind, reason, message)), provisioner: None };
    let selected = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(SELECTED_NODE));
    if delayed && !selected {
        let (reason, message) = waiting_for_consumer(&observed.pods);
        return event(EventType::Normal, reason, message);
    }
    let class = claim_class(claim);
    if class.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set".to_owned();
        return event(EventType::Normal, "FailedBinding", message);
    }
    match &observed.class {
        None => {
            let message = format!("storageclass.storage.k8s.io \"{class}\" not found");
            event(EventType::Warning, "ProvisioningFailed", message)
        }
        Some(class) => provisioning(class),
    }
}

/// Whether the class delays binding until a pod that uses the claim is scheduled.
pub(super) fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

fn provisioning(class: &StorageClass) -> ClaimStep {
    // In-tree provisioners have left their work to CSI drivers.
    let provisioner = driver_of_provisioner(&class.provisioner).unwrap_or(&class.provisioner);
    if provisioner.starts_with("kubernetes.io/") {
        let message = format!("no volume plugin matched name: {provisioner}");
        return ClaimStep::Wait { event: Some((EventType::Warning, "ProvisioningFailed", message)), provisioner: None };
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system \
         administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    ClaimStep::Wait {
        event: Some((EventType::Normal, "ExternalProvisioning", message)),
        provisioner: Some(provisioner.to_owned()),
    }
}

fn waiting_for_consumer(pods: &[Arc<Pod>]) -> (&'static str, String) {
    let mut unscheduled: Vec<&str> = pods
        .iter()
        .filter(|pod| pod::is_active(pod) && pod::node_name(pod).is_none())
        .map(|pod| name(&**pod))
        .collect();
    unscheduled.sort_unstable();
    match unscheduled.as_slice() {
        [] => (WAITS_FOR_CONSUMER, "waiting for first consumer to be created before binding".to_owned()),
        [one] => (WAITS_FOR_POD, format!("waiting for pod {one} to be scheduled")),
        several => (WAITS_FOR_POD, format!("waiting for pods {} to be scheduled", several.join(","))),
    }
}

/// The claim with the annotations for its provisioner; `None` when it has them.
pub(super) fn with_provisioner(claim: &PersistentVolumeClaim, provisioner: &str) -> Option<PersistentVolumeClaim> {
    let mut changed = claim.clone();
    let annotations = changed.metadata.annotations.get_or_insert_default();
    annotations.insert(BETA_PROVISIONER.to_owned(), provisioner.to_owned());
    annotations.insert(PROVISIONER.to_owned(), provisioner.to_owned());
    (changed.metadata != claim.metadata).then_some(changed)
}

/// The claim with the volume's name; `None` when it has it.
pub(super) fn bound_to(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<PersistentVolumeClaim> {
    let mut changed = claim.clone();
    let spec = changed.spec.get_or_insert_default();
    let annotations = changed.metadata.annotations.get_or_insert_default();
    if spec.volume_name.as_deref() != Some(name(volume)) {
        spec.volume_name = Some(name(volume).to_owned());
        annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    annotations.entry(BIND_COMPLETED.to_owned()).or_insert_with(|| "yes".to_owned());
    (changed.spec != claim.spec || changed.metadata != claim.metadata).then_some(changed)
}

pub(super) fn with_bound_status(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<PersistentVolumeClaim> {
    let mut changed = claim.clone();
    let status = changed.status.get_or_insert_default();
    let spec = volume.spec.as_ref()?;
    let was_bound = status.phase.as_deref() == Some("Bound");
    status.phase = Some("Bound".to_owned());
    status.access_modes = spec.access_modes.clone();
    // A resize updates the capacity of a bound claim by itself.
    if !was_bound || status.capacity.is_none() {
        let storage = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage").cloned());
        status.capacity = storage.map(|storage| [("storage".to_owned(), storage)].into());
    }
    (changed.status != claim.status).then_some(changed)
}

pub(super) fn with_phase(claim: &PersistentVolumeClaim, phase: &str) -> Option<PersistentVolumeClaim> {
    let mut changed = claim.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.access_modes = None;
    status.capacity = None;
    (changed.status != claim.status).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(annotations: Value, spec: Value) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u", "annotations": annotations}, "spec": spec}),
        )
        .unwrap()
    }

    fn observed() -> Observed {
        Observed { class: None, default_class: None, requested: None, candidates: Vec::new(), pods: Vec::new() }
    }

    fn class(provisioner: &str, mode: &str) -> Option<Arc<StorageClass>> {
        Some(Arc::new(serde_json::from_value(json!({"provisioner": provisioner, "volumeBindingMode": mode})).unwrap()))
    }

    fn volume(claim_ref: Value) -> Option<Arc<PersistentVolume>> {
        let value = json!({"metadata": {"name": "v"}, "spec": {"claimRef": claim_ref, "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "2Gi"}}});
        Some(Arc::new(serde_json::from_value(value).unwrap()))
    }

    fn rendered(step: &ClaimStep) -> String {
        match step {
            ClaimStep::Bind(volume) => format!("bind {}", name(&**volume)),
            ClaimStep::AssignClass(class) => format!("class {class}"),
            ClaimStep::Wait { event: Some((_, reason, _)), .. } => format!("wait {reason}"),
            ClaimStep::Wait { event: None, .. } => "wait".into(),
            ClaimStep::Lost(reason, _) => format!("lost {reason}"),
        }
    }

    #[test]
    fn claims_are_planned_by_their_state() {
        let done = json!({"pv.kubernetes.io/bind-completed": "yes"});
        let asks = json!({"volumeName": "v"});
        for (claim, observed, expected) in [
            (claim(json!({}), json!({"storageClassName": "x"})), observed(), "wait ProvisioningFailed"),
            (claim(json!({}), json!({"storageClassName": ""})), observed(), "wait FailedBinding"),
            (claim(json!({}), json!({})), Observed { default_class: Some("d".into()), ..observed() }, "class d"),
            (
                claim(json!({}), json!({"storageClassName": "x"})),
                Observed { class: class("a.b/c", "Immediate"), ..observed() },
                "wait ExternalProvisioning",
            ),
            (
                claim(json!({}), json!({"storageClassName": "x"})),
                Observed { class: class("a.b/c", "WaitForFirstConsumer"), ..observed() },
                "wait WaitForFirstConsumer",
            ),
            (claim(json!({}), asks.clone()), observed(), "wait"),
            (claim(json!({}), asks.clone()), Observed { requested: volume(Value::Null), ..observed() }, "bind v"),
            (
                claim(json!({}), asks.clone()),
                Observed { requested: volume(json!({"namespace": "ns", "name": "other"})), ..observed() },
                "wait FailedBinding",
            ),
            (
                claim(json!({}), json!({"volumeName": "v", "accessModes": ["ReadWriteMany"]})),
                Observed { requested: volume(Value::Null), ..observed() },
                "wait VolumeMismatch",
            ),
            (claim(done.clone(), asks.clone()), observed(), "lost ClaimLost"),
            (claim(done.clone(), json!({})), observed(), "lost ClaimLost"),
            (
                claim(done.clone(), asks.clone()),
                Observed { requested: volume(json!({"namespace": "ns", "name": "c", "uid": "u"})), ..observed() },
                "bind v",
            ),
            (
                claim(done, asks),
                Observed { requested: volume(json!({"namespace": "ns", "name": "c", "uid": "x"})), ..observed() },
                "lost ClaimMisbound",
            ),
        ] {
            let step = plan(&claim, &observed);
            assert_eq!(rendered(&step), expected);
            let waits_for_others =
                ["wait", "wait ExternalProvisioning", "wait WaitForFirstConsumer"].contains(&expected);
            assert_eq!(needs_volume(&step), expected.starts_with("wait") && !waits_for_others, "{expected}");
        }
    }

    #[test]
    fn binding_is_written_once() {
        let volume = volume(Value::Null).unwrap();
        let bound = bound_to(&claim(json!({}), json!({})), &volume).unwrap();
        let annotations = bound.metadata.annotations.clone().unwrap();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), [BIND_COMPLETED, BOUND_BY_CONTROLLER]);
        assert!(bound_to(&bound, &volume).is_none());
        let done = with_bound_status(&bound, &volume).unwrap();
        assert_eq!(done.status.as_ref().unwrap().capacity.as_ref().unwrap()["storage"].0, "2Gi");
        assert!(with_bound_status(&done, &volume).is_none());
    }
}
