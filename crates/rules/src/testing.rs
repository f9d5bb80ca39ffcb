//! Helpers for the unit tests of kinds.

use jiff::Timestamp;
use serde_json::Value;

use crate::features::Features;
use crate::kind::{Context, KindRules};

/// Returns the context of a request to the object itself, in `version`.
pub fn context(version: &str) -> Context<'_> {
    Context {
        version,
        subresource: "",
        user: "tester",
        groups: &[],
        uid: "",
        extra: None,
        now: Timestamp::UNIX_EPOCH,
        features: Features::defaults(),
    }
}

/// Returns the messages of all errors of an object, or of its update from `old`.
pub fn messages(rules: &dyn KindRules, object: &Value, old: Option<&Value>) -> Vec<String> {
    messages_of(rules, object, old, "")
}

/// The same for a write to a subresource.
pub fn messages_of(rules: &dyn KindRules, object: &Value, old: Option<&Value>, subresource: &str) -> Vec<String> {
    let context = Context { subresource, ..context("v1") };
    let mut errors = rules.validate(object, old, &context);
    if let Some(old) = old {
        errors.extend(rules.validate_update(object, old, &context));
    }
    errors.0.iter().map(ToString::to_string).collect()
}

/// Returns the object with its defaults set.
pub fn defaulted(rules: &dyn KindRules, mut object: Value) -> Value {
    rules.set_defaults(&mut object, "v1");
    object
}
