//! IngressClass: the controller that implements the Ingresses of a class.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{checks, domain_path};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const MAX_CONTROLLER_LENGTH: usize = 250;

/// The rules of IngressClass.
pub struct IngressClass;

impl KindRules for IngressClass {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        if object.has(&["spec", "parameters"]) {
            object.set_default(&["spec", "parameters", "scope"], "Cluster");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        let at = path.child("controller");
        let spec = &object["spec"];
        let controller = spec.text(&["controller"]);
        if let Some(old) = old.filter(|old| old.text(&["spec", "controller"]) != controller) {
            checks::immutable(&mut errors, &at, &controller.into(), old.at(&["spec", "controller"]));
        }
        if controller.len() > MAX_CONTROLLER_LENGTH {
            errors.too_long(&at, MAX_CONTROLLER_LENGTH);
        }
        domain_path::validate(&mut errors, &at, controller);
        if spec.has(&["parameters"]) {
            validate_parameters(&mut errors, &path.child("parameters"), &spec["parameters"]);
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
        const {
            &[
                NAME,
                text("Controller", "string", "Controller that is responsible for handling this class"),
                text("Parameters", "string", "A reference to a resource with additional parameters"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let annotation = ["metadata", "annotations", "ingressclass.kubernetes.io/is-default-class"];
        let mark = if object.text(&annotation) == "true" { " (default)" } else { "" };
        let reference = object.at(&["spec", "parameters"]);
        let parameters = if reference.is_null() {
            "<none>".to_owned()
        } else {
            let group = reference["apiGroup"].as_str().map(|group| format!(".{group}")).unwrap_or_default();
            format!("{}{group}/{}", reference.text(&["kind"]), reference.text(&["name"]))
        };
        vec![
            format!("{}{mark}", object.text(&["metadata", "name"])).into(),
            object.text(&["spec", "controller"]).into(),
            parameters.into(),
            columns::age(object, now),
        ]
    }
}

fn validate_parameters(errors: &mut Errors, path: &Path<'_>, reference: &Value) {
    if let Some(group) = reference["apiGroup"].as_str() {
        names::check(errors, &path.child("apiGroup"), group, names::dns_subdomain);
    }
    for field in ["kind", "name"] {
        checks::required_name(errors, &path.child(field), reference.text(&[field]), names::path_segment);
    }
    let namespace = path.child("namespace");
    match (reference["scope"].as_str(), reference["namespace"].as_str()) {
        (None, _) => errors.required(&path.child("scope"), ""),
        (Some("Namespace"), None) => errors.required(&namespace, "`parameters.scope` is set to 'Namespace'"),
        (Some("Namespace"), Some(name)) => names::check(errors, &namespace, name, names::dns_label),
        (Some("Cluster"), Some(_)) => errors.forbidden(&namespace, "`parameters.scope` is set to 'Cluster'"),
        (Some("Cluster"), None) => {}
        (Some(scope), _) => errors.not_supported(&path.child("scope"), scope, &["Cluster", "Namespace"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn classes_are_checked() {
        let class = |controller: &str, parameters: Value| {
            defaulted(&IngressClass, json!({"spec": {"controller": controller, "parameters": parameters}}))
        };
        let good = class("example.com/c", json!({"kind": "K", "name": "n"}));
        assert_eq!(good["spec"]["parameters"]["scope"], "Cluster");
        assert!(messages(&IngressClass, &good, None).is_empty());
        assert_eq!(
            messages(&IngressClass, &class("other.com/c", json!({"scope": "Namespace"})), Some(&good)),
            [
                "spec.controller: Invalid value: \"other.com/c\": field is immutable",
                "spec.parameters.kind: Required value",
                "spec.parameters.name: Required value",
                "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'",
            ]
        );
    }
}
