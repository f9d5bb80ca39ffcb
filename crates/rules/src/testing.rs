//! What the tests of kinds share.

use jiff::Timestamp;
use serde_json::Value;

use crate::kind::{Context, KindRules};

pub fn context(version: &str) -> Context<'_> {
    Context { version, subresource: "", user: "tester", groups: &[], uid: "", extra: None, now: Timestamp::UNIX_EPOCH }
}

/// All that is wrong with an object, or with its update from `old`, as clients read it.
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

/// The object with its defaults.
pub fn defaulted(rules: &dyn KindRules, mut object: Value) -> Value {
    rules.set_defaults(&mut object, "v1");
    object
}
