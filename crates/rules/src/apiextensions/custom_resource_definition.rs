//! CustomResourceDefinition: a user-defined kind.

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::approval::validate_approval;
use super::formats::unknown_formats;
use super::names;
use super::spec::validate_spec;
use super::versions::validate_stored_versions;
use crate::common::conditions::set_condition;
use crate::kind::{self, Context, KindRules};

/// Delays the deletion of a definition until its objects are deleted.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The rules of CustomResourceDefinition.
pub struct CustomResourceDefinition;

impl KindRules for CustomResourceDefinition {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let kind = object.text(&["spec", "names", "kind"]).to_owned();
        if object.text(&["spec", "names", "singular"]).is_empty() {
            object.set(&["spec", "names", "singular"], kind.to_lowercase());
        }
        if object.text(&["spec", "names", "listKind"]).is_empty() && !kind.is_empty() {
            object.set(&["spec", "names", "listKind"], format!("{kind}List"));
        }
        object.set_default(&["spec", "conversion"], json!({"strategy": "None"}));
        let service = ["spec", "conversion", "webhook", "clientConfig", "service"];
        if object.has(&service)
            && let Some(service) = object.find(&service)
        {
            service.set_default(&["port"], 443);
        }
        if object.items(&["status", "storedVersions"]).is_empty() {
            add_stored_version(object);
        }
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], self.empty_status());
        add_stored_version(object);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
        } else {
            kind::keep_field(object, old, "status");
            add_stored_version(object);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            names::validate(&mut errors, &Path::root("status.acceptedNames"), &object["status"]["acceptedNames"]);
            return errors;
        }
        if old.is_none() {
            let spec = &object["spec"];
            let required = format!("{}.{}", spec.text(&["names", "plural"]), spec.text(&["group"]));
            let name = object.text(&["metadata", "name"]);
            if name != required && !name.is_empty() {
                let detail = "must be spec.names.plural+\".\"+spec.group";
                errors.invalid(&Path::root("metadata.name"), name, detail);
            }
        }
        validate_spec(&mut errors, &object["spec"], old);
        names::validate(&mut errors, &Path::root("status.acceptedNames"), &object["status"]["acceptedNames"]);
        validate_stored_versions(&mut errors, object);
        validate_approval(&mut errors, object, old);
        let keeps = |object: &Value| object.at(&["spec", "preserveUnknownFields"]) == &Value::Bool(true);
        if keeps(object) && !old.is_some_and(keeps) {
            let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
            errors.invalid(&Path::root("spec.preserveUnknownFields"), true, detail);
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        if context.subresource == "status" {
            return Vec::new();
        }
        let before = old.map(|old| unknown_formats(&old["spec"])).unwrap_or_default();
        let formats = unknown_formats(&object["spec"]);
        let new = formats.into_iter().filter(|format| !before.contains(format));
        new.map(|format| format!("unrecognized format {format:?}")).collect()
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }
}

/// Marks a definition as terminating when it is deleted.
pub fn terminate(object: &mut Value) {
    let mut finalizers = object.items(&["metadata", "finalizers"]).to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    object.set(&["metadata", "finalizers"], finalizers);
    object.remove(&["metadata", "deletionGracePeriodSeconds"]);
    let now = object.text(&["metadata", "deletionTimestamp"]).to_owned();
    let condition = json!({
        "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    });
    set_condition(object, condition, &now);
}

/// Adds the storage version to `status.storedVersions`.
fn add_stored_version(object: &mut Value) {
    let versions = object.items(&["spec", "versions"]);
    let Some(stored) = versions.iter().find(|version| version["storage"] == true) else { return };
    let name = stored["name"].clone();
    let mut all: Vec<Value> = object.items(&["status", "storedVersions"]).to_vec();
    if !all.contains(&name) {
        all.push(name);
        object.set(&["status", "storedVersions"], all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages};

    fn definition(versions: Value) -> Value {
        let names = json!({"plural": "ships", "kind": "Ship"});
        let object = json!({"metadata": {"name": "ships.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": names, "versions": versions}});
        let mut object = defaulted(&CustomResourceDefinition, object);
        CustomResourceDefinition.prepare_create(&mut object, &context("v1"));
        object
    }

    fn version(name: &str, storage: bool) -> Value {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}})
    }

    #[test]
    fn defaults_are_set() {
        let object = definition(json!([version("v1", true)]));
        assert_eq!(
            object["spec"]["names"],
            json!({"plural": "ships", "kind": "Ship", "singular": "ship", "listKind": "ShipList"})
        );
        assert_eq!(object["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(object["status"]["storedVersions"], json!(["v1"]));
        assert!(messages(&CustomResourceDefinition, &object, None).is_empty());
    }

    #[test]
    fn wrong_definitions_are_reported() {
        let mut elsewhere = definition(json!([version("v1", true)]));
        elsewhere["metadata"]["name"] = json!("boats.example.com");
        let mut approved = definition(json!([version("v1", true)]));
        approved["spec"]["group"] = json!("x.k8s.io");
        approved["metadata"]["name"] = json!("ships.x.k8s.io");
        for (object, wrong) in [
            (
                elsewhere,
                vec!["metadata.name: Invalid value: \"boats.example.com\": must be spec.names.plural+\".\"+spec.group"],
            ),
            (
                approved,
                vec![
                    "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval \
                     annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
                ],
            ),
            (
                definition(json!([{"name": "v1", "served": true, "storage": true}])),
                vec!["spec.versions[0].schema.openAPIV3Schema: Required value"],
            ),
            (
                definition(json!([version("v1", true), version("v2", true)])),
                vec![
                    "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":true,\"Deprecated\":false,\
                     \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\
                     \"SelectableFields\":null},{\"Name\":\"v2\",\"Served\":true,\"Storage\":true,\"Deprecated\":false,\
                     \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\
                     \"SelectableFields\":null}]: must have exactly one version marked as storage version",
                    "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2",
                ],
            ),
            (
                definition(json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {}}}])),
                vec!["spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root"],
            ),
        ] {
            assert_eq!(messages(&CustomResourceDefinition, &object, None), wrong);
        }
    }

    #[test]
    fn names_stay_once_established() {
        let mut old = definition(json!([version("v1", true)]));
        old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        let mut new = old.clone();
        new["spec"]["scope"] = json!("Cluster");
        assert_eq!(
            messages(&CustomResourceDefinition, &new, Some(&old)),
            ["spec.scope: Invalid value: \"Cluster\": field is immutable"]
        );
    }

    #[test]
    fn odd_formats_are_warned_of() {
        let mut object = definition(json!([version("v1", true)]));
        let properties =
            json!({"a": {"type": "string", "format": "date-time"}, "b": {"type": "string", "format": "odd"}});
        object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = properties;
        let warnings = CustomResourceDefinition.warnings(&object, None, &context("v1"));
        assert_eq!(warnings, ["unrecognized format \"odd\""]);
    }
}
