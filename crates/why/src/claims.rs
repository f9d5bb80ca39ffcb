//! PersistentVolumeClaims that are not bound, and pods that wait for them.

use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use crate::evidence::{Evidence, quote};
use crate::{Finding, attachments, near_name};

/// How many claims of a pod are examined.
const MAX_CLAIMS: usize = 20;

/// Diagnoses the claims of a pod that is not scheduled.
pub fn explain(evidence: &Evidence, pod: &Value) -> Vec<Finding> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let volumes = pod.items(&["spec", "volumes"]).iter();
    let names =
        volumes.map(|volume| volume.text(&["persistentVolumeClaim", "claimName"])).filter(|name| !name.is_empty());
    names.take(MAX_CLAIMS).filter_map(|name| claim(evidence, namespace, name)).collect()
}

/// Diagnoses a claim.
pub fn of_claim(evidence: &Evidence) -> Vec<Finding> {
    let object = &evidence.object;
    let (namespace, name) = (object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]));
    let users = users(evidence, namespace, name);
    if object.text(&["status", "phase"]) == "Bound" {
        return Vec::new();
    }
    let found = claim(evidence, namespace, name).or_else(|| {
        users.is_empty().then(|| {
            Finding::new(
                "it waits for a pod: its storage class creates a volume only when a pod uses the claim",
                vec![format!("no pod of {namespace} uses the claim {name}")],
                "nothing is wrong; create the pod that uses it",
            )
        })
    });
    found.into_iter().collect()
}

/// The pods that use a claim.
pub fn users<'a>(evidence: &'a Evidence, namespace: &'a str, claim: &'a str) -> Vec<&'a str> {
    let uses = |pod: &&Value| {
        let mut volumes = pod.items(&["spec", "volumes"]).iter();
        volumes.any(|volume| volume.text(&["persistentVolumeClaim", "claimName"]) == claim)
    };
    let pods = evidence.within("pods", namespace).filter(uses);
    pods.map(|pod| pod.text(&["metadata", "name"])).collect()
}

fn claim(evidence: &Evidence, namespace: &str, name: &str) -> Option<Finding> {
    if evidence.lacks("persistentvolumeclaims", namespace, name) {
        let existing = near_name(name, evidence.within("persistentvolumeclaims", namespace));
        let hint = existing.map(|near| format!(", or use {near}, which exists")).unwrap_or_default();
        return Some(Finding::new(
            format!("it uses the claim {name}, which does not exist"),
            vec![format!("no PersistentVolumeClaim {namespace}/{name}")],
            format!("create the claim{hint}"),
        ));
    }
    let claim = evidence.find("persistentvolumeclaims", namespace, name)?;
    match claim.text(&["status", "phase"]) {
        "Bound" => None,
        "Lost" => Some(Finding::new(
            format!("the volume behind the claim {name} is gone"),
            vec![format!("the claim is Lost; its volume was {}", claim.text(&["spec", "volumeName"]))],
            "restore the PersistentVolume if its data is needed; otherwise delete the claim and create it again: the new volume is empty",
        )),
        _ => unbound(evidence, claim, name),
    }
}

fn unbound(evidence: &Evidence, claim: &Value, name: &str) -> Option<Finding> {
    let class = claim.text(&["spec", "storageClassName"]);
    let known = evidence.all("storageclasses");
    let found = known.iter().find(|object| object.text(&["metadata", "name"]) == class);
    if !class.is_empty() && found.is_none() && evidence.lists.contains_key("storageclasses") {
        let near = near_name(class, known.iter()).map(|near| format!(" (there is {near})")).unwrap_or_default();
        // A class that exists only by name still binds volumes that carry it.
        if misfits(evidence, claim).is_some() {
            return Some(Finding::new(
                format!("the claim {name} requests the storage class {class}, which does not exist"),
                vec![format!("no StorageClass {class}{near}")],
                format!(
                    "create the class, or delete the claim, which has no volume and so no data yet, and create it with a class that exists{near}"
                ),
            ));
        }
    }
    let waits = found.is_some_and(|class| class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer");
    let provisioner = found.map(|class| class.text(&["provisioner"])).unwrap_or_default();
    if let Some(finding) = no_room(evidence, claim, name, class, provisioner) {
        return Some(finding);
    }
    if let Some(event) = evidence.event(claim, &["ProvisioningFailed"]) {
        return Some(Finding::new(
            format!("no volume could be provisioned for the claim {name}"),
            vec![quote(event)],
            format!("see the logs of {provisioner}"),
        ));
    }
    if let Some(finding) = no_driver(evidence, name, provisioner) {
        return Some(finding);
    }
    if !provisioner.is_empty() && provisioner != "kubernetes.io/no-provisioner" {
        // A claim that waits for its first consumer is checked together with the pod's nodes.
        return (!waits).then(|| {
            Finding::new(
                format!("the claim {name} waits for {provisioner} to provision a volume"),
                vec![format!("the claim is {}, its class is {class}", claim.text(&["status", "phase"]))],
                format!("check that {provisioner} runs; if it is not installed, create a PersistentVolume by hand"),
            )
        });
    }
    let reasons = misfits(evidence, claim)?;
    let default = known.iter().any(is_default);
    if class.is_empty() && !claim.has(&["spec", "storageClassName"]) && !default && !known.is_empty() {
        return Some(Finding::new(
            format!("the claim {name} names no storage class, and none is the default"),
            vec![format!("there are {}; none has the annotation {DEFAULT_CLASS}", names(known))],
            "make one of them the default; or delete the claim, which has no volume and so no data yet, and create it with storageClassName set to one of them",
        ));
    }
    Some(Finding::new(
        format!("no PersistentVolume fits the claim {name}"),
        if reasons.is_empty() { vec!["there is no free PersistentVolume".to_owned()] } else { reasons },
        "create a PersistentVolume that fits; or delete the claim, which has no volume and so no data yet, and create it with a smaller request",
    ))
}

/// The driver of local volumes, which has no pods.
const LOCAL_DRIVER: &str = "local.knarr.io";

/// A CSI driver that no node runs. Other provisioners do not register on nodes.
fn no_driver(evidence: &Evidence, name: &str, provisioner: &str) -> Option<Finding> {
    let is_driver = evidence.all("csidrivers").iter().any(|driver| driver.text(&["metadata", "name"]) == provisioner);
    let is_listed = evidence.lists.contains_key("csinodes");
    (is_driver && is_listed && attachments::nodes_with(evidence, provisioner).is_empty()).then(|| {
        Finding::new(
            format!("the claim {name} waits for the CSI driver {provisioner}, which runs on no node"),
            vec![format!("there is a CSIDriver {provisioner}, but no CSINode lists it")],
            match provisioner {
                LOCAL_DRIVER => {
                    "it is built into `knarr server` and `knarr agent`: start one of them on a node, without disabling local storage"
                        .to_owned()
                }
                _ => format!("check that the pods of {provisioner} run on the nodes"),
            },
        )
    })
}

/// A driver that reports its capacity, and has too little of it everywhere.
fn no_room(evidence: &Evidence, claim: &Value, name: &str, class: &str, provisioner: &str) -> Option<Finding> {
    let driver = evidence.all("csidrivers").iter().find(|driver| driver.text(&["metadata", "name"]) == provisioner)?;
    if driver.flag(&["spec", "storageCapacity"]) != Some(true) {
        return None;
    }
    let asked = claim.text(&["spec", "resources", "requests", "storage"]);
    let wanted = Quantity::parse(asked).ok()?;
    let of_class = evidence.all("csistoragecapacities").iter().filter(|own| own.text(&["storageClassName"]) == class);
    let mut observed = Vec::new();
    for own in of_class {
        let limit = ["maximumVolumeSize", "capacity"]
            .map(|field| own.text(&[field]))
            .into_iter()
            .find(|text| !text.is_empty())?;
        if Quantity::parse(limit).ok()? >= wanted {
            return None;
        }
        let places = own.at(&["nodeTopology", "matchLabels"]).as_object().into_iter().flatten();
        let places: Vec<&str> = places.filter_map(|(_, value)| value.as_str()).collect();
        observed.push(format!(
            "{} has room for {limit}",
            if places.is_empty() { "the cluster".to_owned() } else { places.join(", ") }
        ));
    }
    (!observed.is_empty()).then(|| {
        Finding::new(
            format!("no disk has room for the claim {name}, which requests {asked}"),
            observed,
            "make a disk larger, or delete claims whose data is no longer needed; or delete this claim, which has no data yet, and create it with a smaller request",
        )
    })
}

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

fn is_default(class: &Value) -> bool {
    class.text(&["metadata", "annotations", DEFAULT_CLASS]) == "true"
}

fn names(objects: &[Value]) -> String {
    let names: Vec<&str> = objects.iter().map(|object| object.text(&["metadata", "name"])).collect();
    names.join(", ")
}

/// Why each free volume does not fit; `None` if one does.
fn misfits(evidence: &Evidence, claim: &Value) -> Option<Vec<String>> {
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
    let (offered, requested) = (volume.text(&["spec", "storageClassName"]), claim.text(&["spec", "storageClassName"]));
    if offered != requested {
        return Some(format!("its class is {offered:?}, the claim requests {requested:?}"));
    }
    let amount = |object: &Value, path: &[&str]| Quantity::parse(object.text(path)).ok();
    let size = amount(volume, &["spec", "capacity", "storage"])?;
    let requested = amount(claim, &["spec", "resources", "requests", "storage"])?;
    if size < requested {
        return Some(format!(
            "its capacity is {}, the claim requests {}",
            volume.text(&["spec", "capacity", "storage"]),
            claim.text(&["spec", "resources", "requests", "storage"])
        ));
    }
    let modes = volume.items(&["spec", "accessModes"]);
    let missing = claim.items(&["spec", "accessModes"]).iter().find(|mode| !modes.contains(mode));
    missing.and_then(Value::as_str).map(|mode| format!("it does not offer {mode}"))
}
