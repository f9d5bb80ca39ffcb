//! ResourceClaim: the devices that a pod requests, and the allocated ones.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::{allocation, claim_spec, v1beta1};
use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, text};
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};

/// The rules of ResourceClaim.
pub struct ResourceClaim;

impl KindRules for ResourceClaim {
    fn convert(&self, object: &mut Value, from: &str, to: &str) {
        if let Some(spec) = object.find(&["spec"]) {
            match (from, to) {
                (v1beta1::VERSION, _) => v1beta1::claim_to_v1(spec),
                (_, v1beta1::VERSION) => v1beta1::claim_from_v1(spec),
                _ => {}
            }
        }
    }

    fn set_defaults(&self, object: &mut Value, version: &str) {
        if object.has(&["spec"])
            && let Some(spec) = object.find(&["spec"])
        {
            claim_spec::set_defaults(spec, version);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
            kind::keep_metadata(object, old);
            allocation::drop_deallocated(object, old);
        } else {
            kind::keep_field(object, old, "status");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        match old {
            Some(old) if context.subresource == "status" => allocation::validate(&mut errors, object, old),
            Some(old) => {
                checks::immutable_structure(&mut errors, &path, "ResourceClaimSpec", &object["spec"], &old["spec"])
            }
            None => claim_spec::validate(&mut errors, &path, &object["spec"]),
        }
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const STATE: &str = "A summary of the current state (allocated, pending, reserved, etc.).";
        const { &[NAME, text("State", "string", STATE), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), state(object).into(), columns::age(object, now)]
    }
}

fn state(claim: &Value) -> String {
    let deleted = claim.has(&["metadata", "deletionTimestamp"]);
    let mut states = Vec::new();
    if deleted {
        states.push("deleted");
    }
    if claim.has(&["status", "allocation"]) {
        states.push("allocated");
        if !claim.items(&["status", "reservedFor"]).is_empty() {
            states.push("reserved");
        }
    } else if !deleted {
        states.push("pending");
    }
    states.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages, messages_of};
    use serde_json::json;

    fn claim(requests: Value) -> Value {
        defaulted(&ResourceClaim, json!({"spec": {"devices": {"requests": requests}}}))
    }

    #[test]
    fn requests_are_defaulted_and_checked() {
        let good = claim(json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}]));
        let exactly = &good["spec"]["devices"]["requests"][0]["exactly"];
        assert_eq!(*exactly, json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}));
        assert!(messages(&ResourceClaim, &good, None).is_empty());
        let wrong = claim(
            json!([{"name": "r"}, {"name": "r", "exactly": {"allocationMode": "All", "count": 2, "deviceClassName": "c"}}]),
        );
        assert_eq!(
            messages(&ResourceClaim, &wrong, None),
            [
                "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                "spec.devices.requests[1].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
                "spec.devices.requests[1]: Duplicate value: \"r\"",
            ]
        );
    }

    #[test]
    fn statuses_are_checked() {
        let old = claim(json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}]));
        let mut new = old.clone();
        new["status"] = json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]});
        assert_eq!(
            messages_of(&ResourceClaim, &new, Some(&old), "status"),
            ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
        );
        let result = json!({"request": "x", "driver": "d.example.com", "pool": "p", "device": "gpu-0"});
        new["status"] = json!({"allocation": {"devices": {"results": [result]}}});
        assert_eq!(
            messages_of(&ResourceClaim, &new, Some(&old), "status"),
            [
                "status.allocation.devices.results[0].request: Invalid value: \"x\": must be the name of a request in the claim or \
              the name of a request and a subrequest separated by '/'"
            ]
        );
        assert_eq!(state(&new), "allocated");
    }
}
