//! PersistentVolumes.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value, json};

use super::persistent_volume_claim::{VOLUME_MODES, access_modes, display_access_modes};
use super::pod::defaults::set_source_defaults;
use super::pod::validation::scheduling;
use super::pod::warnings::node_term;
use super::volume::{self, Surroundings, sources};
use crate::common::checks::{IMMUTABLE, one_of};
use crate::common::columns::{self, field, text, wide};
use crate::common::equality::same;
use crate::common::{defaults as set, diff, internal_types, resources};
use crate::kind::{Column, Context, KindRules, MetadataPasses, keep_field};

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
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

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
        // Kubernetes judges the whole volume once more here.
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

/// A volume's spec; `inline` is one that a VolumeAttachment carries itself.
pub fn validate_spec(
    errors: &mut Errors,
    spec: &Value,
    name: &str,
    path: &Path<'_>,
    inline: bool,
    lax_node_affinity: bool,
) {
    const NOT_INLINE: &str = "may not be specified in the context of inline volumes";
    if inline {
        for field in ["claimRef", "capacity"] {
            if spec.has(&[field]) {
                errors.forbidden(&path.child(field), NOT_INLINE);
            }
        }
        if !spec.has(&["csi"]) {
            errors.required(&path.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    let modes = spec.items(&["accessModes"]);
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    access_modes(errors, modes, &path.child("accessModes"));
    if !inline {
        capacity(errors, spec, path);
    }
    reclaim_policy(errors, spec, path, inline);
    let affinity = spec.at(&["nodeAffinity"]);
    if !affinity.is_null() {
        let path = path.child("nodeAffinity");
        if inline {
            errors.forbidden(&path, NOT_INLINE);
        } else if affinity.has(&["required"]) {
            scheduling::node_selector(errors, affinity.at(&["required"]), lax_node_affinity, &path.child("required"));
        } else {
            errors.required(&path.child("required"), "must specify required node constraints");
        }
    }
    let surroundings =
        Surroundings { pod_name: name, has_node_affinity: !affinity.is_null() && !inline, ..Surroundings::default() };
    volume::validate_source(errors, spec, sources::OF_PERSISTENT_VOLUMES, path, &surroundings);
    let recycles = spec.text(&["persistentVolumeReclaimPolicy"]) == "Recycle";
    if recycles && is_root(spec.text(&["hostPath", "path"])) {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&path.child("persistentVolumeReclaimPolicy"), detail);
    }
    let class = spec.text(&["storageClassName"]);
    if !class.is_empty() {
        if inline {
            errors.forbidden(&path.child("storageClassName"), NOT_INLINE);
        } else {
            names::check(errors, &path.child("storageClassName"), class, names::dns_subdomain);
        }
    }
    match spec.at(&["volumeMode"]).as_str() {
        None => {}
        Some(mode) if inline && mode != "Filesystem" => {
            let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            errors.forbidden(&path.child("volumeMode"), detail);
        }
        Some(_) if inline => {}
        Some(mode) => one_of(errors, &path.child("volumeMode"), mode, VOLUME_MODES),
    }
    if let Some(class) = spec.at(&["volumeAttributesClassName"]).as_str() {
        let class_path = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.required(&class_path, "an empty string is disallowed");
        } else {
            names::check(errors, &class_path, class, names::dns_subdomain);
        }
        if !spec.has(&["csi"]) {
            errors.required(&path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

/// Whether a path is the root once it is tidied.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
}

fn capacity(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let path = path.child("capacity");
    let empty = Map::new();
    let capacity = spec.fields(&["capacity"]).unwrap_or(&empty);
    if capacity.is_empty() {
        errors.required(&path, "");
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        let rendered = if capacity.is_empty() { Value::Null } else { Value::Object(capacity.clone()) };
        errors.not_supported(&path, rendered, &["storage"]);
    }
    for (name, amount) in capacity {
        let amount = resources::quantity(amount);
        let path = path.key(name);
        if amount.value() < 0 {
            errors.invalid(&path, amount.value(), "must be a valid resource quantity");
        }
        if amount.signum() <= 0 {
            errors.invalid(&path, amount.to_string(), "must be greater than zero");
        }
    }
}

fn reclaim_policy(errors: &mut Errors, spec: &Value, path: &Path<'_>, inline: bool) {
    let policy = spec.text(&["persistentVolumeReclaimPolicy"]);
    let path = path.child("persistentVolumeReclaimPolicy");
    match (policy, inline) {
        ("", _) | ("Retain", true) => {}
        (_, true) => errors.forbidden(&path, "may only be Retain in the context of inline volumes"),
        (_, false) => one_of(errors, &path, policy, &["Delete", "Recycle", "Retain"]),
    }
}

/// Options in an annotation go with those sources only that are mounted by a program.
fn mount_options(errors: &mut Errors, volume: &Value) {
    const MOUNTED: &[&str] = &[
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    let is_mounted = MOUNTED.iter().any(|source| volume.has(&["spec", source]));
    if !is_mounted && volume.has(&["metadata", "annotations", MOUNT_ANNOTATION]) {
        let metadata = Path::root("metadata");
        let annotations = metadata.child("annotations");
        errors.forbidden(&annotations.child(MOUNT_ANNOTATION), "may not specify mount options for this volume type");
    }
}

fn changes(errors: &mut Errors, volume: &Value, old: &Value) {
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

/// Node affinity stays, but for labels that got new names.
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

/// The phase of a volume or a claim, unless it is being deleted.
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
