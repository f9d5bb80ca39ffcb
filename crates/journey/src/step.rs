//! One recorded step.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A step that a component executed for an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When it started, in microseconds since 1970.
    #[serde(rename = "began")]
    pub started: u64,
    /// How long it took, in microseconds; 0 for instantaneous steps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub took: u64,
    /// The name of the step.
    pub step: Cow<'static, str>,
    /// The object: `pods/default/web`, `nodes/a`.
    pub object: String,
    /// The process that recorded it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// All other fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", flatten)]
    pub fields: BTreeMap<Cow<'static, str>, String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Step {
    /// A field; empty when it is not set.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map(String::as_str).unwrap_or_default()
    }

    /// A numeric field.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name).parse().ok()
    }

    /// When it ended, in microseconds since 1970.
    pub fn end(&self) -> u64 {
        self.started.saturating_add(self.took)
    }

    /// Whether it is a request with this verb on the object itself.
    pub(crate) fn is_request(&self, verb: &str) -> bool {
        self.step == "request" && self.field("verb") == verb && self.field("subresource").is_empty()
    }

    /// Whether it is the kubelet's delete request, by which it removes a terminated pod for good.
    pub(crate) fn is_final_delete(&self) -> bool {
        self.is_request("delete") && self.field("agent") == "kubelet"
    }
}
