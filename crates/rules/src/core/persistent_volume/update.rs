//! Validation of updates: what may change in the spec of a volume.

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value};

use crate::common::checks::IMMUTABLE;
use crate::common::equality::same;
use crate::common::{diff, internal_types};
use crate::core::volume::sources;

pub(super) fn changes(errors: &mut Errors, volume: &Value, old: &Value) {
    let (mut source, before) = (source_of(volume), source_of(old));
    let gains_secret = !before.has(&["csi", "controllerExpandSecretRef"]) && before.has(&["csi"]);
    if gains_secret {
        source.remove(&["csi", "controllerExpandSecretRef"]);
    }
    if !same(&source, &before) {
        let diff = diff::of_volume_sources(&before, &source);
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.forbidden(&Path::root("spec").child("persistentvolumesource"), detail);
    }
    if volume.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
        errors.invalid(&Path::root("volumeMode"), volume.at(&["spec", "volumeMode"]).clone(), IMMUTABLE);
    }
    node_affinity(errors, volume, old);
    if old.has(&["spec", "volumeAttributesClassName"]) && !volume.has(&["spec", "volumeAttributesClassName"]) {
        let path = Path::root("spec");
        errors.forbidden(&path.child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden");
    }
}

fn source_of(volume: &Value) -> Value {
    let mut source = Map::new();
    for known in sources::OF_PERSISTENT_VOLUMES {
        if let Some(value) = volume.at(&["spec"]).get(known.field) {
            source.insert(known.field.to_owned(), value.clone());
        }
    }
    Value::Object(source)
}

/// Requires that the node affinity is unchanged, except for renamed labels.
fn node_affinity(errors: &mut Errors, volume: &Value, old: &Value) {
    const RENAMED: &[(&str, &str)] = &[
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    let new = volume.at(&["spec", "nodeAffinity"]);
    let mut before = old.at(&["spec", "nodeAffinity"]).clone();
    if before.is_null() {
        return;
    }
    let terms = new.items(&["required", "nodeSelectorTerms"]);
    for (i, term) in before.items_mut(&["required", "nodeSelectorTerms"]).iter_mut().enumerate() {
        for list in ["matchExpressions", "matchFields"] {
            for (j, requirement) in term.items_mut(&[list]).iter_mut().enumerate() {
                let now = terms.get(i).and_then(|term| term.items(&[list]).get(j));
                let renamed = now.filter(|now| RENAMED.contains(&(requirement.text(&["key"]), now.text(&["key"]))));
                if let Some(now) = renamed {
                    requirement.set(&["key"], now.text(&["key"]));
                }
            }
        }
    }
    if !same(new, &before) {
        let rendered =
            if new.is_null() { "null".to_owned() } else { internal_types::to_json("VolumeNodeAffinity", new) };
        let detail = format!("{IMMUTABLE}, except for updating from beta label to GA");
        errors.invalid_verbatim(&Path::root("nodeAffinity"), rendered, detail);
    }
}
