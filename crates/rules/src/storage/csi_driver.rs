//! CSIDriver: the capabilities and requirements of a CSI driver.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, field};
use crate::kind::{Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.storage.v1.CSIDriverSpec";
const TOKENS_BELONG_IN_SECRETS: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set \
                                        to true to prevent possible logging of tokens in volume attributes";

/// The rules of CsiDriver.
pub struct CsiDriver;

impl KindRules for CsiDriver {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        object.set_default(&["spec", "attachRequired"], true);
        object.set_default(&["spec", "podInfoOnMount"], false);
        object.set_default(&["spec", "storageCapacity"], false);
        object.set_default(&["spec", "fsGroupPolicy"], "ReadWriteOnceWithFSType");
        if object.items(&["spec", "volumeLifecycleModes"]).is_empty() {
            object.set(&["spec", "volumeLifecycleModes"], json!(["Persistent"]));
        }
        object.set_default(&["spec", "requiresRepublish"], false);
        object.set_default(&["spec", "seLinuxMount"], false);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        let spec = &object["spec"];
        for (field, detail) in [
            ("attachRequired", "attachedRequired"),
            ("podInfoOnMount", "podInfoOnMount"),
            ("storageCapacity", "storageCapacity"),
        ] {
            if !spec.has(&[field]) {
                errors.required(&path.child(detail), "");
            }
        }
        if let Some(policy) = spec["fsGroupPolicy"].as_str() {
            let known = ["File", "None", "ReadWriteOnceWithFSType"];
            checks::one_of(&mut errors, &path.child("fsGroupPolicy"), policy, &known);
        }
        validate_token_requests(&mut errors, &path.child("tokenRequests"), spec.items(&["tokenRequests"]));
        for mode in spec.items(&["volumeLifecycleModes"]) {
            let modes = ["Persistent", "Ephemeral"];
            checks::one_of(&mut errors, &path.child("volumeLifecycleModes"), mode.as_str().unwrap_or_default(), &modes);
        }
        if !spec.has(&["seLinuxMount"]) {
            errors.required(&path.child("seLinuxMount"), "");
        }
        if let Some(period) = spec.integer(&["nodeAllocatableUpdatePeriodSeconds"]).filter(|period| *period < 10) {
            let path = path.child("nodeAllocatableUpdatePeriodSeconds");
            errors.invalid(&path, period, "must be greater than or equal to 10 seconds");
        }
        let in_secrets = "serviceAccountTokenInSecrets";
        if spec.has(&[in_secrets]) && spec.items(&["tokenRequests"]).is_empty() {
            let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            errors.invalid(&path.child(in_secrets), spec[in_secrets].clone(), detail);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        for (field, detail) in
            [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
        {
            checks::immutable(&mut errors, &path.child(detail), &object["spec"][field], &old["spec"][field]);
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let requests = object.items(&["spec", "tokenRequests"]);
        let changed = old.is_none_or(|old| old.items(&["spec", "tokenRequests"]) != requests);
        if changed && !requests.is_empty() && !object.has(&["spec", "serviceAccountTokenInSecrets"]) {
            vec![TOKENS_BELONG_IN_SECRETS.to_owned()]
        } else {
            Vec::new()
        }
    }

    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        object["spec"] != old["spec"]
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("AttachRequired", "boolean", SPEC, "attachRequired"),
                field("PodInfoOnMount", "boolean", SPEC, "podInfoOnMount"),
                field("StorageCapacity", "boolean", SPEC, "storageCapacity"),
                field("TokenRequests", "string", SPEC, "tokenRequests"),
                field("RequiresRepublish", "boolean", SPEC, "requiresRepublish"),
                field("Modes", "string", SPEC, "volumeLifecycleModes"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let flag = |field: &str, default: bool| Value::from(spec.flag(&[field]).unwrap_or(default));
        let modes: Vec<&str> = spec.items(&["volumeLifecycleModes"]).iter().filter_map(Value::as_str).collect();
        let tokens = if spec.has(&["tokenRequests"]) {
            let audiences: Vec<&str> = spec.items(&["tokenRequests"]).iter().map(|r| r.text(&["audience"])).collect();
            audiences.join(",")
        } else {
            "<unset>".to_owned()
        };
        vec![
            columns::name(object),
            flag("attachRequired", true),
            flag("podInfoOnMount", false),
            flag("storageCapacity", false),
            tokens.into(),
            flag("requiresRepublish", false),
            if modes.is_empty() { "<none>".into() } else { modes.join(",").into() },
            columns::age(object, now),
        ]
    }
}

fn validate_token_requests(errors: &mut Errors, path: &Path, requests: &[Value]) {
    let mut audiences = BTreeSet::new();
    for (index, request) in requests.iter().enumerate() {
        let path = path.index(index);
        let audience = request.text(&["audience"]);
        if !audiences.insert(audience) {
            errors.duplicate(&path.child("audience"), audience);
            continue;
        }
        let Some(seconds) = request.integer(&["expirationSeconds"]) else { continue };
        let path = path.child("expirationSeconds");
        if seconds < 600 {
            errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > 1 << 32 {
            errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    #[test]
    fn drivers_are_defaulted_and_checked() {
        let object = defaulted(&CsiDriver, json!({"spec": {}}));
        assert_eq!(
            object,
            json!({"spec": {"attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"],
                "storageCapacity": false, "fsGroupPolicy": "ReadWriteOnceWithFSType", "requiresRepublish": false,
                "seLinuxMount": false}})
        );
        assert!(messages(&CsiDriver, &object, None).is_empty());
        let wrong = defaulted(
            &CsiDriver,
            json!({"spec": {"fsGroupPolicy": "x", "volumeLifecycleModes": ["y"],
            "tokenRequests": [{"audience": "a", "expirationSeconds": 1}, {"audience": "a"}],
            "nodeAllocatableUpdatePeriodSeconds": 9}}),
        );
        assert_eq!(
            messages(&CsiDriver, &wrong, None),
            [
                "spec.fsGroupPolicy: Unsupported value: \"x\": supported values: \"File\", \"None\", \
                 \"ReadWriteOnceWithFSType\"",
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
                "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
                "spec.volumeLifecycleModes: Unsupported value: \"y\": supported values: \"Persistent\", \"Ephemeral\"",
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
            ]
        );
        let detached = defaulted(&CsiDriver, json!({"spec": {"attachRequired": false}}));
        assert_eq!(
            messages(&CsiDriver, &detached, Some(&object)),
            ["spec.attachedRequired: Invalid value: false: field is immutable"]
        );
    }
}
