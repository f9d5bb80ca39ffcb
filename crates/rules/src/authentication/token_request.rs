//! TokenRequest: a request for a token of a service account.

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::kind::{Context, KindRules};

const HOUR: i64 = 3600;
const MIN_EXPIRATION_SECONDS: i64 = 600;
const MAX_EXPIRATION_SECONDS: i64 = 1 << 32;

/// The rules of TokenRequest.
pub struct TokenRequest;

impl KindRules for TokenRequest {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        object.set_default(&["spec", "expirationSeconds"], HOUR);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec.expirationSeconds");
        let seconds = object.integer(&["spec", "expirationSeconds"]).unwrap_or(0);
        if seconds < MIN_EXPIRATION_SECONDS {
            errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > MAX_EXPIRATION_SECONDS {
            errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn tokens_live_between_minutes_and_a_century() {
        assert_eq!(defaulted(&TokenRequest, json!({"spec": {}})), json!({"spec": {"expirationSeconds": 3600}}));
        assert_eq!(
            messages(&TokenRequest, &json!({"spec": {"expirationSeconds": 599}}), None),
            ["spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"]
        );
    }
}
