//! PersistentVolume: a piece of storage in the cluster.

mod spec;
mod update;

pub use spec::validate_spec;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::persistent_volume_claim::display_access_modes;
use super::pod::defaults::set_source_defaults;
use super::pod::validation::scheduling;
use super::pod::warnings::node_term;
use crate::common::columns::{self, field, text, wide};
use crate::common::{defaults as set, resources};
use crate::kind::{Column, Context, KindRules, MetadataPasses, keep_field};
use spec::{MOUNT_ANNOTATION, mount_options};
use update::changes;

const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeSpec";
const STATUS: &str = "io.k8s.api.core.v1.PersistentVolumeStatus";

const COLUMNS: &[Column] = &[
    columns::NAME,
    field("Capacity", "string", SPEC, "capacity"),
    field("Access Modes", "string", SPEC, "accessModes"),
    field("Reclaim Policy", "string", SPEC, "persistentVolumeReclaimPolicy"),
    field("Status", "string", STATUS, "phase"),
    field("Claim", "string", SPEC, "claimRef"),
    text("StorageClass", "string", "StorageClass of the pv"),
    text("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
    field("Reason", "string", STATUS, "reason"),
    columns::AGE,
    wide(field("VolumeMode", "string", SPEC, "volumeMode")),
];

/// The deprecated annotation for the storage class.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The rules of PersistentVolume.
pub struct PersistentVolume;

impl KindRules for PersistentVolume {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let Some(volume) = object.as_object_mut() else { return };
        set::text(set::object_or_new(volume, "status"), "phase", "Pending");
        let spec = set::object_or_new(volume, "spec");
        set::text(spec, "persistentVolumeReclaimPolicy", "Retain");
        set::value(spec, "volumeMode", "Filesystem");
        resources::round_to_milli(spec.get_mut("capacity"));
        set_source_defaults(spec);
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        let now = time::seconds(context.now);
        object.set(&["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource != "status" {
            return keep_field(object, old, "status");
        }
        keep_field(object, old, "spec");
        let same_phase = object.text(&["status", "phase"]) == old.text(&["status", "phase"]);
        let (at, before) =
            (object.at(&["status", "lastPhaseTransitionTime"]), old.at(&["status", "lastPhaseTransitionTime"]));
        if same_phase && at.is_null() && !before.is_null() {
            object.set(&["status", "lastPhaseTransitionTime"], before.clone());
        } else if !same_phase && (at.is_null() || at == before) {
            object.set(&["status", "lastPhaseTransitionTime"], time::seconds(context.now));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            return errors;
        }
        spec(&mut errors, object, old);
        mount_options(&mut errors, object);
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            return errors;
        }
        // Upstream validates the whole volume again here.
        spec(&mut errors, object, Some(old));
        changes(&mut errors, object, old);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        if context.subresource == "status" { Vec::new() } else { warnings(object) }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, now)
    }
}

fn spec(errors: &mut Errors, volume: &Value, old: Option<&Value>) {
    let lax = old.is_some_and(|old| scheduling::has_invalid_node_value(old.at(&["spec", "nodeAffinity", "required"])));
    validate_spec(errors, volume.at(&["spec"]), volume.text(&["metadata", "name"]), &Path::root("spec"), false, lax);
}

fn warnings(volume: &Value) -> Vec<String> {
    const OLD: &[(&str, &str, &str)] = &[
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    let mut warnings = Vec::new();
    for (key, message) in [
        (CLASS_ANNOTATION, "deprecated since v1.8; use \"storageClassName\" attribute instead"),
        (MOUNT_ANNOTATION, "deprecated since v1.31; use \"mountOptions\" attribute instead"),
    ] {
        if volume.has(&["metadata", "annotations", key]) {
            warnings.push(format!("metadata.annotations[{key}]: {message}"));
        }
    }
    if volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
             approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let path = Path::root("spec");
    for (i, term) in volume.items(&["spec", "nodeAffinity", "required", "nodeSelectorTerms"]).iter().enumerate() {
        warnings.extend(node_term(term, false, &path.item("nodeAffinity.required.nodeSelectorTerms", i)));
    }
    for (source, rendered, message) in OLD {
        if volume.has(&["spec", source]) {
            warnings.push(format!("spec.{rendered}: {message}"));
        }
    }
    warnings
}

fn cells(volume: &Value, now: Timestamp) -> Vec<Value> {
    let spec = volume.at(&["spec"]);
    let claim = spec.at(&["claimRef"]);
    let claim = if claim.is_null() {
        String::new()
    } else {
        format!("{}/{}", claim.text(&["namespace"]), claim.text(&["name"]))
    };
    let class = volume.at(&["metadata", "annotations"]).get(CLASS_ANNOTATION).and_then(Value::as_str);
    let or_unset = |field: &str| Value::from(spec.at(&[field]).as_str().unwrap_or("<unset>"));
    vec![
        columns::name(volume),
        spec.at(&["capacity", "storage"]).as_str().unwrap_or("0").into(),
        display_access_modes(spec.items(&["accessModes"])).into(),
        spec.text(&["persistentVolumeReclaimPolicy"]).into(),
        display_phase(volume).into(),
        claim.into(),
        class.unwrap_or(spec.text(&["storageClassName"])).into(),
        or_unset("volumeAttributesClassName"),
        volume.text(&["status", "reason"]).into(),
        columns::age(volume, now),
        or_unset("volumeMode"),
    ]
}

/// Returns the phase of a volume or claim for tables: Terminating if it is being deleted.
pub fn display_phase(object: &Value) -> &str {
    if object.has(&["metadata", "deletionTimestamp"]) { "Terminating" } else { object.text(&["status", "phase"]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    fn volume(spec: Value) -> Value {
        defaulted(&PersistentVolume, json!({"metadata": {"name": "v"}, "spec": spec}))
    }

    #[test]
    fn volumes_are_checked() {
        let good =
            json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
        let with = |field: &str, value: Value| {
            let mut spec = good.clone();
            spec[field] = value;
            spec
        };
        for (spec, expected) in [
            (good.clone(), vec![]),
            (
                json!({}),
                vec![
                    "spec.accessModes: Required value",
                    "spec.capacity: Required value",
                    "spec.capacity: Unsupported value: null: supported values: \"storage\"",
                    "spec: Required value: must specify a volume type",
                ],
            ),
            (
                with("persistentVolumeReclaimPolicy", json!("Burn")),
                vec![
                    "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \
                 \"Recycle\", \"Retain\"",
                ],
            ),
            (
                json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/a"}}),
                vec!["spec.nodeAffinity: Required value: Local volume requires node affinity"],
            ),
            (
                with("nfs", json!({"server": "a", "path": "/b"})),
                vec!["spec.nfs: Forbidden: may not specify more than 1 volume type"],
            ),
        ] {
            assert_eq!(messages(&PersistentVolume, &volume(spec.clone()), None), expected, "{spec}");
        }
    }

    #[test]
    fn sources_stay() {
        let old = volume(
            json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}}),
        );
        let mut new = old.clone();
        new["spec"]["hostPath"]["path"] = json!("/b");
        let found = messages(&PersistentVolume, &new, Some(&old));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0],
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n\
             @@ -2,7 +2,7 @@\n  \"GCEPersistentDisk\": null,\n  \"AWSElasticBlockStore\": null,\n  \"HostPath\": {\n\
             -  \"Path\": \"/a\",\n+  \"Path\": \"/b\",\n   \"Type\": \"\"\n  },\n  \"Glusterfs\": null,\n"
        );
    }
}
