//! ComponentStatus: the health of a control plane component. Read-only and deprecated.

use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::columns::{self, text};
use crate::kind::{Column, KindRules};

const COLUMNS: &[Column] = &[
    columns::NAME,
    text("Status", "string", "Status of the component conditions"),
    text("Message", "string", "Message of the component conditions"),
    text("Error", "string", "Error of the component conditions"),
];

/// The rules of ComponentStatus.
pub struct ComponentStatus;

impl KindRules for ComponentStatus {
    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let health = object.items(&["conditions"]).iter().find(|condition| condition.text(&["type"]) == "Healthy");
        let (status, message, error) = match health {
            Some(condition) => {
                let status = if condition.text(&["status"]) == "True" { "Healthy" } else { "Unhealthy" };
                (status, condition.text(&["message"]), condition.text(&["error"]))
            }
            None => ("Unknown", "", ""),
        };
        vec![columns::name(object), status.into(), message.into(), error.into()]
    }
}
