//! Lease: a lock with a holder and a duration.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks::{NEGATIVE, NOT_POSITIVE};
use crate::common::columns::{self, AGE, NAME, field};
use crate::kind::{Column, Context, KindRules};

/// The rules of Lease.
pub struct Lease;

impl KindRules for Lease {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let spec = Path::root("spec");
        if let Some(duration) = object.integer(&["spec", "leaseDurationSeconds"]).filter(|duration| *duration <= 0) {
            errors.invalid(&spec.child("leaseDurationSeconds"), duration, NOT_POSITIVE);
        }
        if let Some(transitions) = object.integer(&["spec", "leaseTransitions"]).filter(|number| *number < 0) {
            errors.invalid(&spec.child("leaseTransitions"), transitions, NEGATIVE);
        }
        errors
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, field("Holder", "string", "io.k8s.api.coordination.v1.LeaseSpec", "holderIdentity"), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), object.text(&["spec", "holderIdentity"]).into(), columns::age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(
            messages(&Lease, &json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}}), None),
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }
}
