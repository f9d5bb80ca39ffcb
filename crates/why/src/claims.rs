//! Claims a pod needs before it can have a node.

use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use crate::Finding;
use crate::evidence::{Evidence, quote};

pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let volumes = pod.items(&["spec", "volumes"]).iter();
    let names =
        volumes.map(|volume| volume.text(&["persistentVolumeClaim", "claimName"])).filter(|name| !name.is_empty());
    names.filter_map(|name| claim(evidence, namespace, name)).collect()
}

fn claim(evidence: &Evidence, namespace: &str, name: &str) -> Option<Finding> {
    if evidence.lacks("persistentvolumeclaims", namespace, name) {
        let existing = nearest(name, evidence.within("persistentvolumeclaims", namespace));
        let hint = existing.map(|near| format!(", or use {near}, which exists")).unwrap_or_default();
        return Some(Finding::new(
            format!("it uses the claim {name}, which does not exist"),
            vec![format!("no PersistentVolumeClaim {namespace}/{name}")],
            format!("make the claim{hint}"),
        ));
    }
    let claim = evidence.find("persistentvolumeclaims", namespace, name)?;
    match claim.text(&["status", "phase"]) {
        "Bound" => None,
        "Lost" => Some(Finding::new(
            format!("the volume behind the claim {name} is gone"),
            vec![format!("the claim is Lost; its volume was {}", claim.text(&["spec", "volumeName"]))],
            "bring the PersistentVolume back, or make the claim again; what was on the volume is not there",
        )),
        _ => unbound(evidence, claim, name),
    }
}

fn unbound(evidence: &Evidence, claim: &Value, name: &str) -> Option<Finding> {
    let class = claim.text(&["spec", "storageClassName"]);
    let known = evidence.all("storageclasses");
    let found = known.iter().find(|object| object.text(&["metadata", "name"]) == class);
    if !class.is_empty() && found.is_none() && evidence.lists.contains_key("storageclasses") {
        let near = nearest(class, known.iter()).map(|near| format!(" (there is {near})")).unwrap_or_default();
        // A class that exists only by name still binds volumes that carry it.
        if fitting(evidence, claim).is_some() {
            return Some(Finding::new(
                format!("the claim {name} asks for the storage class {class}, which does not exist"),
                vec![format!("no StorageClass {class}{near}")],
                format!("make the claim again with a storage class that exists{near}, or make the class"),
            ));
        }
    }
    let waits = found.is_some_and(|class| class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer");
    let provisioner = found.map(|class| class.text(&["provisioner"])).unwrap_or_default();
    if let Some(event) = evidence.event(claim, &["ProvisioningFailed"]) {
        return Some(Finding::new(
            format!("no volume could be made for the claim {name}"),
            vec![quote(event)],
            format!("see what {provisioner} says in its logs"),
        ));
    }
    if !provisioner.is_empty() && provisioner != "kubernetes.io/no-provisioner" {
        // A claim that waits for its pod is looked at together with the pod's nodes.
        return (!waits).then(|| {
            Finding::new(
                format!("the claim {name} waits for {provisioner} to make a volume"),
                vec![format!("the claim is {}, its class is {class}", claim.text(&["status", "phase"]))],
                format!("see whether {provisioner} runs; if nothing provides it here, make a PersistentVolume by hand"),
            )
        });
    }
    let reasons = fitting(evidence, claim)?;
    Some(Finding::new(
        format!("no PersistentVolume fits the claim {name}"),
        if reasons.is_empty() { vec!["there is no free PersistentVolume".to_owned()] } else { reasons },
        "make a PersistentVolume that fits, or ask for less",
    ))
}

/// Why each free volume does not fit; `None` if one does.
fn fitting(evidence: &Evidence, claim: &Value) -> Option<Vec<String>> {
    let free = evidence.all("persistentvolumes").iter().filter(|volume| {
        let owner = volume.at(&["spec", "claimRef"]);
        owner.is_null()
            || owner.text(&["name"]) == claim.text(&["metadata", "name"])
                && owner.text(&["namespace"]) == claim.text(&["metadata", "namespace"])
    });
    let mut reasons = Vec::new();
    for volume in free {
        reasons.push(format!("PersistentVolume {}: {}", volume.text(&["metadata", "name"]), misfit(volume, claim)?));
    }
    Some(reasons)
}

/// Why a volume does not fit a claim.
fn misfit(volume: &Value, claim: &Value) -> Option<String> {
    let (has, wants) = (volume.text(&["spec", "storageClassName"]), claim.text(&["spec", "storageClassName"]));
    if has != wants {
        return Some(format!("its class is {has:?}, the claim asks for {wants:?}"));
    }
    let amount = |object: &Value, path: &[&str]| Quantity::parse(object.text(path)).ok();
    let size = amount(volume, &["spec", "capacity", "storage"])?;
    let asked = amount(claim, &["spec", "resources", "requests", "storage"])?;
    if size < asked {
        return Some(format!(
            "it holds {}, the claim asks for {}",
            volume.text(&["spec", "capacity", "storage"]),
            claim.text(&["spec", "resources", "requests", "storage"])
        ));
    }
    let offered = volume.items(&["spec", "accessModes"]);
    let missing = claim.items(&["spec", "accessModes"]).iter().find(|mode| !offered.contains(mode));
    missing.and_then(Value::as_str).map(|mode| format!("it does not offer {mode}"))
}

/// The name of the object whose name is most like the given one, if one is.
pub fn nearest<'a>(name: &str, objects: impl Iterator<Item = &'a Value>) -> Option<&'a str> {
    let names = objects.map(|object| object.text(&["metadata", "name"]));
    let (distance, best) = names.map(|other| (distance(name, other), other)).min()?;
    (distance <= name.len().max(4) / 2).then_some(best)
}

/// How many letters must be added, removed or changed to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, own) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *own);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}
