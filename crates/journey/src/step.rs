//! One thing that happened.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A step of an object's way, as it was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When it began, in microseconds since 1970.
    pub began: u64,
    /// How long it took, in microseconds; 0 for what happens in a moment.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub took: u64,
    /// What was done, by the name its part gave it.
    pub step: Cow<'static, str>,
    /// What it was done to: `pods/default/web`, `nodes/a`.
    pub object: String,
    /// Which process saw it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", flatten)]
    pub fields: BTreeMap<Cow<'static, str>, String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Step {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map(String::as_str).unwrap_or_default()
    }

    /// A field that holds a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name).parse().ok()
    }

    pub fn ended(&self) -> u64 {
        self.began.saturating_add(self.took)
    }
}
