//! PersistentVolumeClaim, and templates of claims in StatefulSets and ephemeral volumes.

mod spec;
mod status;
mod update;

pub use spec::{Options, access_modes, validate_spec, validate_template};

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::persistent_volume::{CLASS_ANNOTATION, display_phase};
use super::pod::defaults::set_claim_spec_defaults;
use super::pod::warnings::claim_spec;
use crate::common::columns::{self, field, text, wide};
use crate::common::{defaults as set, resources};
use crate::kind::{Column, Context, KindRules, MetadataPasses, keep_field};
use status::status;
use update::changes;

const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";
const STATUS: &str = "io.k8s.api.core.v1.PersistentVolumeClaimStatus";

const COLUMNS: &[Column] = &[
    columns::NAME,
    field("Status", "string", STATUS, "phase"),
    field("Volume", "string", SPEC, "volumeName"),
    field("Capacity", "string", STATUS, "capacity"),
    field("Access Modes", "string", STATUS, "accessModes"),
    text("StorageClass", "string", "StorageClass of the pvc"),
    text("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
    columns::AGE,
    wide(field("VolumeMode", "string", SPEC, "volumeMode")),
];

/// The supported access modes.
pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// The supported volume modes.
pub const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// The rules of PersistentVolumeClaim.
pub struct PersistentVolumeClaim;

impl KindRules for PersistentVolumeClaim {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let Some(claim) = object.as_object_mut() else { return };
        let status = set::object_or_new(claim, "status");
        set::text(status, "phase", "Pending");
        for list in ["capacity", "allocatedResources"] {
            resources::round_to_milli(status.get_mut(list));
        }
        set_claim_spec_defaults(set::object_or_new(claim, "spec"));
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], json!({"phase": "Pending"}));
        sync_data_sources(object, None);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            return keep_field(object, old, "spec");
        }
        keep_field(object, old, "status");
        sync_data_sources(object, Some(old));
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource != "status" {
            validate_spec(&mut errors, object.at(&["spec"]), &Path::root("spec"), Options::of(old));
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            status(&mut errors, object);
        } else {
            changes(&mut errors, object, old);
        }
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if context.subresource == "status" {
            return warnings;
        }
        if object.has(&["metadata", "annotations", CLASS_ANNOTATION]) {
            warnings.push(format!(
                "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        claim_spec(&mut warnings, object.at(&["spec"]), &Path::root("spec"));
        warnings
    }

    fn has_status(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = object.at(&["spec"]);
        let is_bound = !spec.text(&["volumeName"]).is_empty();
        let (mut capacity, mut modes) = ("", String::new());
        if is_bound {
            capacity = object.at(&["status", "capacity", "storage"]).as_str().unwrap_or("0");
            modes = display_access_modes(object.items(&["status", "accessModes"]));
        }
        let class = object.at(&["metadata", "annotations"]).get(CLASS_ANNOTATION).and_then(Value::as_str);
        let or_unset = |field: &str| Value::from(spec.at(&[field]).as_str().unwrap_or("<unset>"));
        vec![
            columns::name(object),
            display_phase(object).into(),
            spec.text(&["volumeName"]).into(),
            capacity.into(),
            modes.into(),
            class.unwrap_or(spec.text(&["storageClassName"])).into(),
            or_unset("volumeAttributesClassName"),
            columns::age(object, now),
            or_unset("volumeMode"),
        ]
    }
}

/// Renders access modes for tables.
pub fn display_access_modes(modes: &[Value]) -> String {
    let has = |mode: &str| modes.iter().any(|other| other.as_str() == Some(mode));
    let short: Vec<&str> =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
            .iter()
            .filter(|(mode, _)| has(mode))
            .map(|(_, short)| *short)
            .collect();
    short.join(",")
}

/// Synchronizes `dataSource` with `dataSourceRef`, because clients may set only one of them.
fn sync_data_sources(claim: &mut Value, old: Option<&Value>) {
    let old_spec = old.map_or(&Value::Null, |old| old.at(&["spec"]));
    let had_source = old_spec.has(&["dataSourceRef"]) || old_spec.has(&["dataSource"]);
    if !had_source && !claim.has(&["spec", "dataSourceRef"]) && !is_claim_or_snapshot(claim.at(&["spec", "dataSource"]))
    {
        claim.remove(&["spec", "dataSource"]);
    }
    let (source, reference) = (claim.at(&["spec", "dataSource"]), claim.at(&["spec", "dataSourceRef"]));
    match (source.is_null(), reference.is_null()) {
        (false, true) => {
            let source = source.clone();
            claim.set(&["spec", "dataSourceRef"], source);
        }
        (true, false) if reference.text(&["namespace"]).is_empty() => {
            let mut reference = reference.clone();
            reference.remove(&["namespace"]);
            claim.set(&["spec", "dataSource"], reference);
        }
        _ => {}
    }
}

fn is_claim_or_snapshot(source: &Value) -> bool {
    matches!(
        (source.text(&["apiGroup"]), source.text(&["kind"])),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages};

    fn claim(spec: Value) -> Value {
        let mut whole = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        defaulted(&PersistentVolumeClaim, json!({"metadata": {"name": "c", "namespace": "n"}, "spec": whole}))
    }

    #[test]
    fn claims_are_checked() {
        for (spec, expected) in [
            (json!({}), vec![]),
            (json!({"accessModes": []}), vec!["spec.accessModes: Required value: at least 1 access mode is required"]),
            (json!({"resources": {}}), vec!["spec.resources[storage]: Required value"]),
            (
                json!({"resources": {"requests": {"storage": "0"}}}),
                vec!["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"],
            ),
            (
                json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
                vec!["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
            ),
            (
                json!({"volumeMode": "Tape"}),
                vec!["spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\""],
            ),
        ] {
            assert_eq!(messages(&PersistentVolumeClaim, &claim(spec.clone()), None), expected, "{spec}");
        }
    }

    #[test]
    fn sources_are_set_in_both_fields() {
        let mut object = claim(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}));
        PersistentVolumeClaim.prepare_create(&mut object, &context("v1"));
        assert_eq!(object["spec"]["dataSourceRef"], json!({"kind": "PersistentVolumeClaim", "name": "a"}));
        let mut object = claim(json!({"dataSource": {"kind": "Ship", "name": "a"}}));
        PersistentVolumeClaim.prepare_create(&mut object, &context("v1"));
        assert_eq!(object["spec"].get("dataSource"), None);
    }

    #[test]
    fn bound_claims_may_grow() {
        let mut old = claim(json!({"volumeName": "v"}));
        old["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        let mut new = old.clone();
        new["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        assert!(messages(&PersistentVolumeClaim, &new, Some(&old)).is_empty());
        new["spec"]["resources"]["requests"]["storage"] = json!("1Mi");
        assert_eq!(
            messages(&PersistentVolumeClaim, &new, Some(&old)),
            ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
        );
        let mut moved = old.clone();
        moved["spec"]["volumeName"] = json!("w");
        assert!(messages(&PersistentVolumeClaim, &moved, Some(&old))[0].starts_with(
            "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for \
             bound claims\n@@ "
        ));
    }
}
