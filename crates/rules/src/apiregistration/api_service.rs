//! APIService: the server of a group version.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{checks, formats};
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};

/// The rules of ApiService.
pub struct ApiService;

impl KindRules for ApiService {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        if object.has(&["spec", "service"]) {
            object.set_default(&["spec", "service", "port"], 443);
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        let status = if object.has(&["spec", "service"]) {
            json!({})
        } else {
            json!({"conditions": [{"type": "Available", "status": "True", "reason": "Local",
                "message": "Local APIServices are always available", "lastTransitionTime": time::seconds(context.now)}]})
        };
        object.set(&["status"], status);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource != "status" {
            kind::keep_field(object, old, "status");
            return;
        }
        kind::keep_all_but_status(object, old);
        if let Some(metadata) = object.get_mut("metadata") {
            for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
                kind::keep_field(metadata, &old["metadata"], field);
            }
        }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            let path = Path::root("status");
            for (index, condition) in object.items(&["status", "conditions"]).iter().enumerate() {
                let item = path.item("conditions", index);
                let status = condition.text(&["status"]);
                checks::one_of(&mut errors, &item.child("status"), status, &["True", "False", "Unknown"]);
            }
        } else {
            validate_spec(&mut errors, object);
        }
        errors
    }

    fn name_check(&self) -> Check {
        names::path_segment
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                text("Service", "string", "The reference to the service that hosts this API endpoint."),
                text("Available", "string", "Whether this service is available."),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let service = object.at(&["spec", "service"]);
        let service = if service.is_null() {
            "Local".to_owned()
        } else {
            format!("{}/{}", service.text(&["namespace"]), service.text(&["name"]))
        };
        vec![columns::name(object), service.into(), available(object).into(), columns::age(object, now)]
    }
}

fn validate_spec(errors: &mut Errors, object: &Value) {
    let path = Path::root("spec");
    let spec = &object["spec"];
    let (group, version) = (spec.text(&["group"]), spec.text(&["version"]));
    let required = format!("{version}.{group}");
    let name = object.text(&["metadata", "name"]);
    if name != required && names::path_segment(name).is_empty() && !name.is_empty() {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {required:?}");
        errors.invalid(&Path::root("metadata.name"), name, detail);
    }
    if group.is_empty() && version != "v1" {
        errors.required(&path.child("group"), "only v1 may have an empty group and it better be legacy kube");
    }
    if !group.is_empty() {
        names::check(errors, &path.child("group"), group, names::dns_subdomain);
    }
    names::check(errors, &path.child("version"), version, names::dns_1035_label);
    for (field, max) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let number = spec.integer(&[field]).unwrap_or(0);
        if !(1..=max).contains(&number) {
            errors.invalid(&path.child(field), number, format!("must be positive and less than {max}"));
        }
    }
    let bundle = spec.text(&["caBundle"]);
    let insecure = spec.flag(&["insecureSkipTLSVerify"]) == Some(true);
    let insecure_at = path.child("insecureSkipTLSVerify");
    let service = &spec["service"];
    if service.is_null() {
        if !bundle.is_empty() {
            let rendered = format!("{} bytes", decoded_length(bundle));
            errors.invalid(&path.child("caBundle"), rendered, "local APIServices may not have a caBundle");
        }
        if insecure {
            errors.invalid(&insecure_at, true, "local APIServices may not have insecureSkipTLSVerify");
        }
        return;
    }
    let at = path.child("service");
    for field in ["namespace", "name"] {
        if service.text(&[field]).is_empty() {
            errors.required(&at.child(field), "");
        }
    }
    let port = service.integer(&["port"]).unwrap_or(0);
    if !formats::is_port(port) {
        errors.invalid(&at.child("port"), port, format!("port is not valid: {}", checks::between(1, 65535)));
    }
    if insecure && !bundle.is_empty() {
        errors.invalid(&insecure_at, true, "may not be true if caBundle is present");
    }
}

fn decoded_length(base64: &str) -> usize {
    base64.len() / 4 * 3 - base64.bytes().rev().take_while(|byte| *byte == b'=').count()
}

fn available(object: &Value) -> String {
    let mut conditions = object.items(&["status", "conditions"]).iter();
    let Some(condition) = conditions.find(|condition| condition.text(&["type"]) == "Available") else {
        return "Unknown".to_owned();
    };
    match (condition.text(&["status"]), condition.text(&["reason"])) {
        (status @ "True", _) | (status, "") => status.to_owned(),
        (status, reason) => format!("{status} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages};

    #[test]
    fn services_are_checked() {
        let service =
            |name: &str, spec: Value| defaulted(&ApiService, json!({"metadata": {"name": name}, "spec": spec}));
        let spec = json!({"group": "a.b", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "service": {"name": "s", "namespace": "ns"}});
        assert_eq!(service("x", spec.clone())["spec"]["service"]["port"], 443);
        assert!(messages(&ApiService, &service("v1.a.b", spec.clone()), None).is_empty());
        assert_eq!(
            messages(&ApiService, &service("v2.a.b", spec), None),
            ["metadata.name: Invalid value: \"v2.a.b\": must be `spec.version+\".\"+spec.group`: \"v1.a.b\""]
        );
        assert_eq!(
            messages(&ApiService, &service("v1.", json!({"version": "v1", "caBundle": "aGFsbG8="})), None),
            [
                "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
                "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
                "spec.caBundle: Invalid value: \"5 bytes\": local APIServices may not have a caBundle",
            ]
        );
    }

    #[test]
    fn local_services_are_available() {
        let mut object = json!({"metadata": {"name": "v1."}, "spec": {"version": "v1"}});
        ApiService.prepare_create(&mut object, &context("v1"));
        assert_eq!(ApiService.cells(&object, Timestamp::UNIX_EPOCH)[1..3], [json!("Local"), json!("True")]);
    }
}
