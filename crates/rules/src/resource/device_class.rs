//! DeviceClass: a category of devices that claims may request.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::Read;
use serde_json::Value;

use super::{configuration, naming};
use crate::common::columns::{self, AGE, NAME};
use crate::common::resources;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const MAX_CONFIGURATIONS: usize = 32;

/// The rules of DeviceClass.
pub struct DeviceClass;

impl KindRules for DeviceClass {
    fn name_check(&self) -> Check {
        names::long_name
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        let spec = &object["spec"];
        configuration::validate_selectors(&mut errors, &path.child("selectors"), spec.items(&["selectors"]));
        let configurations = spec.items(&["config"]);
        let stored = old.is_some_and(|old| old["spec"]["config"] == spec["config"]);
        if naming::within(&mut errors, &path.child("config"), configurations.len(), MAX_CONFIGURATIONS) {
            for (index, config) in configurations.iter().enumerate() {
                configuration::validate(&mut errors, &path.item("config", index), config, stored);
            }
        }
        if let Some(name) = spec["extendedResourceName"].as_str().filter(|name| !resources::is_extended(name)) {
            let at = path.child("extendedResourceName");
            errors.invalid(&at, name, "must be a valid extended resource name");
        }
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), columns::age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn classes_are_checked() {
        let class = json!({"spec": {"selectors": [{}], "config": [{"opaque": {"parameters": {}}}], "extendedResourceName": "cpu"}});
        assert_eq!(
            messages(&DeviceClass, &class, None),
            [
                "spec.selectors[0].cel: Required value",
                "spec.config[0].opaque.driver: Required value",
                "spec.extendedResourceName: Invalid value: \"cpu\": must be a valid extended resource name",
            ]
        );
    }
}
