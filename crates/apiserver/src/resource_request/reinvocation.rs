//! Reinvocation: runs mutating policies and webhooks a second time if others changed the object after them.

use std::collections::HashSet;

use serde_json::Value;

/// State of a write across both rounds of mutating admission.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Whether this is the second round.
    pub is_second_round: bool,
    /// Whether a change requires the second round.
    pub is_required: bool,
    pub policies: Invocations,
    pub webhooks: Invocations,
}

/// Which policies or webhooks were invoked, and which must be invoked again.
#[derive(Debug, Default)]
pub struct Invocations {
    last: Option<Value>,
    invoked: HashSet<String>,
    to_reinvoke: HashSet<String>,
}

impl Invocations {
    /// Starts a round. If others changed the object since the last one, all that were invoked must be invoked again.
    pub fn start_round(&mut self, is_second_round: bool, object: &Value) {
        if is_second_round && self.last.as_ref() != Some(object) {
            self.require_all();
        }
    }

    /// Requires reinvocation of all that were invoked so far.
    pub fn require_all(&mut self) {
        self.to_reinvoke.extend(self.invoked.drain());
    }

    pub fn should_invoke(&self, is_second_round: bool, key: &str) -> bool {
        !is_second_round || self.to_reinvoke.contains(key)
    }

    pub fn record_invocation(&mut self, key: &str) {
        self.invoked.insert(key.to_owned());
    }

    pub fn end_round(&mut self, object: &Value) {
        self.last = Some(object.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plugins_invoked_before_a_change_are_reinvoked() {
        let mut invocations = Invocations::default();
        invocations.start_round(false, &json!(1));
        invocations.record_invocation("a");
        invocations.require_all();
        invocations.record_invocation("b");
        invocations.end_round(&json!(2));
        invocations.start_round(true, &json!(2));
        assert!(invocations.should_invoke(true, "a") && !invocations.should_invoke(true, "b"));
        invocations.start_round(true, &json!(3));
        assert!(invocations.should_invoke(true, "b"));
    }
}
