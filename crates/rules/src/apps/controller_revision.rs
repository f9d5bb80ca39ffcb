//! ControllerRevision: an immutable snapshot of a template, for rollbacks.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, field, text};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of ControllerRevision.
pub struct ControllerRevision;

impl KindRules for ControllerRevision {
    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        checks::non_negative(&mut errors, &Path::root("revision"), object.integer(&["revision"]));
        let data = Path::root("data");
        match (&object["data"], old) {
            (new, Some(old)) => checks::immutable(&mut errors, &data, new, &old["data"]),
            (Value::Null, None) => errors.required(&data, "data is mandatory"),
            (Value::Object(_), None) => {}
            _ => errors.required(&data, "data must be a valid JSON object"),
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                text("Controller", "string", "Controller of the object"),
                field("Revision", "string", "io.k8s.api.apps.v1.ControllerRevision", "revision"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            controller(object).into(),
            columns::count(object, &["revision"]),
            columns::age(object, now),
        ]
    }
}

fn controller(object: &Value) -> String {
    let owners = object.items(&["metadata", "ownerReferences"]);
    let Some(owner) = owners.iter().find(|owner| owner.flag(&["controller"]) == Some(true)) else {
        return "<none>".to_owned();
    };
    let kind = owner.text(&["kind"]).to_lowercase();
    let kind = match owner.text(&["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}"),
        None => kind,
    };
    format!("{kind}/{}", owner.text(&["name"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn data_is_an_object_and_stays() {
        assert_eq!(
            messages(&ControllerRevision, &json!({"revision": -1}), None),
            [
                "revision: Invalid value: -1: must be greater than or equal to 0",
                "data: Required value: data is mandatory"
            ]
        );
        assert_eq!(
            messages(&ControllerRevision, &json!({"data": {"a": 1}}), Some(&json!({"data": {"a": 2}}))),
            ["data: Invalid value: {\"a\":1}: field is immutable"]
        );
    }

    #[test]
    fn the_controller_is_shown_with_its_group() {
        let owned = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": true}]}});
        assert_eq!(controller(&owned), "statefulset.apps/web");
        assert_eq!(controller(&json!({})), "<none>");
    }
}
