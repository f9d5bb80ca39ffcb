//! VolumeAttributesClass: mutable attributes of volumes.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::provisioner;
use crate::common::columns::{self, AGE, NAME, field};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of VolumeAttributesClass.
pub struct VolumeAttributesClass;

impl KindRules for VolumeAttributesClass {
    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if let Some(old) = old {
            for (field, detail) in [
                ("driverName", "updates to driverName are forbidden."),
                ("parameters", "updates to parameters are forbidden."),
            ] {
                if object[field] != old[field] {
                    errors.forbidden(&Path::root(field), detail);
                }
            }
        }
        provisioner::validate_name(&mut errors, &Path::root("driverName"), object.text(&["driverName"]));
        provisioner::validate_parameters(&mut errors, object.fields(&["parameters"]), false);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, field("DriverName", "string", "io.k8s.api.storage.v1.VolumeAttributesClass", "driverName"), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), object.text(&["driverName"]).into(), columns::age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn classes_need_a_driver_and_stay() {
        assert_eq!(
            messages(&VolumeAttributesClass, &json!({}), None),
            ["driverName: Required value", "parameters: Required value: must contain at least one key/value pair"]
        );
        let class = |driver: &str| json!({"driverName": driver, "parameters": {"iops": "1"}});
        assert_eq!(
            messages(&VolumeAttributesClass, &class("a"), Some(&class("b"))),
            ["driverName: Forbidden: updates to driverName are forbidden."]
        );
    }
}
