//! VolumeAttachment: the intent to attach a volume to a node.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::{Map, Value, json};

use super::provisioner;
use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, field};
use crate::core::persistent_volume;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const SPEC: &str = "io.k8s.api.storage.v1.VolumeAttachmentSpec";
const SOURCE: &str = "io.k8s.api.storage.v1.VolumeAttachmentSource";
const STATUS: &str = "io.k8s.api.storage.v1.VolumeAttachmentStatus";
const MAX_METADATA: usize = 256 << 10;
const MAX_MESSAGE_LENGTH: usize = 1024;

/// The rules of VolumeAttachment.
pub struct VolumeAttachment;

impl KindRules for VolumeAttachment {
    fn status_update_keeps_metadata(&self) -> bool {
        true
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        provisioner::validate_driver_name(&mut errors, &path.child("attacher"), object.text(&["spec", "attacher"]));
        validate_source(&mut errors, &path.child("source"), &object["spec"]["source"]);
        let node = object.text(&["spec", "nodeName"]);
        names::check(&mut errors, &path.child("nodeName"), node, names::dns_subdomain);
        validate_status(&mut errors, &object["status"]);
        if let Some(volume) = object.at(&["spec", "source", "persistentVolumeName"]).as_str() {
            let path = path.child("source.persistentVolumeName");
            names::check(&mut errors, &path, volume, names::dns_subdomain);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        checks::immutable_structure(&mut errors, &path, "VolumeAttachmentSpec", &object["spec"], &old["spec"]);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"attached": false})
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                Column { format: "name", ..field("Attacher", "string", SPEC, "attacher") },
                field("PV", "string", SOURCE, "persistentVolumeName"),
                field("Node", "string", SPEC, "nodeName"),
                field("Attached", "boolean", STATUS, "attached"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            object.text(&["spec", "attacher"]).into(),
            object.text(&["spec", "source", "persistentVolumeName"]).into(),
            object.text(&["spec", "nodeName"]).into(),
            object.flag(&["status", "attached"]).unwrap_or(false).into(),
            columns::age(object, now),
        ]
    }
}

fn validate_source(errors: &mut Errors, path: &Path, source: &Value) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source.has(&["inlineVolumeSpec"]), source["persistentVolumeName"].as_str()) {
        (false, None) => errors.required(path, ONE),
        (true, Some(_)) => errors.forbidden(path, ONE),
        (false, Some("")) => {
            errors.required(&path.child("persistentVolumeName"), "must specify non empty persistentVolumeName");
        }
        (true, None) => {
            let volume = &source["inlineVolumeSpec"];
            persistent_volume::validate_spec(errors, volume, "", &path.child("inlineVolumeSpec"), true, false);
        }
        (false, Some(_)) => {}
    }
}

fn validate_status(errors: &mut Errors, status: &Value) {
    let path = Path::root("status");
    let metadata: Option<&Map<String, Value>> = status.fields(&["attachmentMetadata"]);
    let size: usize = metadata.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_METADATA {
        errors.too_long(&path.child("attachmentMetadata"), MAX_METADATA);
    }
    for field in ["attachError", "detachError"] {
        let path = path.child(field);
        if status.text(&[field, "message"]).len() > MAX_MESSAGE_LENGTH {
            errors.too_long(&path.child("message"), MAX_METADATA);
        }
        if let Some(code) = status.integer(&[field, "errorCode"]).filter(|code| *code < 0) {
            errors.invalid(&path.child("errorCode"), code, checks::between(0, i64::from(i32::MAX)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;

    fn attachment(node: &str) -> Value {
        json!({"spec": {"attacher": "a.b", "nodeName": node, "source": {"persistentVolumeName": "pv"}}})
    }

    #[test]
    fn attachments_are_checked_and_stay() {
        assert!(messages(&VolumeAttachment, &attachment("n"), None).is_empty());
        assert_eq!(
            messages(&VolumeAttachment, &json!({"spec": {"nodeName": "n", "source": {}}}), None),
            [
                "spec.attacher: Required value",
                "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ]
        );
        assert_eq!(
            messages(&VolumeAttachment, &attachment("m"), Some(&attachment("n"))),
            ["spec: Invalid value: {\"Attacher\":\"a.b\",\"Source\":{\"PersistentVolumeName\":\"pv\",\
              \"InlineVolumeSpec\":null},\"NodeName\":\"m\"}: field is immutable"]
        );
    }
}
