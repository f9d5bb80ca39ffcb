//! Asking again: who changed an object early may want to see what others made of it later.

use std::collections::HashSet;

use serde_json::Value;

/// What is remembered of a write between the two rounds.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Whether this is the second round.
    pub again: bool,
    /// Whether somebody changed the object in a way that others should see.
    pub wanted: bool,
    pub policies: Seen,
    pub webhooks: Seen,
}

/// Who was asked already, and who is to be asked again.
#[derive(Debug, Default)]
pub struct Seen {
    last: Option<Value>,
    asked: HashSet<String>,
    again: HashSet<String>,
}

impl Seen {
    /// Begins a round: when somebody else changed the object since the last one, all who were asked are asked again.
    pub fn begin(&mut self, again: bool, object: &Value) {
        if again && self.last.as_ref() != Some(object) {
            self.require();
        }
    }

    /// All who were asked so far are to be asked again.
    pub fn require(&mut self) {
        self.again.extend(self.asked.drain());
    }

    pub fn should_ask(&self, again: bool, key: &str) -> bool {
        !again || self.again.contains(key)
    }

    pub fn asked(&mut self, key: &str) {
        self.asked.insert(key.to_owned());
    }

    pub fn end(&mut self, object: &Value) {
        self.last = Some(object.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_was_asked_before_a_change_is_asked_again() {
        let mut seen = Seen::default();
        seen.begin(false, &json!(1));
        seen.asked("a");
        seen.require();
        seen.asked("b");
        seen.end(&json!(2));
        seen.begin(true, &json!(2));
        assert!(seen.should_ask(true, "a") && !seen.should_ask(true, "b"));
        seen.begin(true, &json!(3));
        assert!(seen.should_ask(true, "b"));
    }
}
