//! PriorityLevelConfiguration: the concurrency and the queues of a priority level.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::conditions;
use crate::common::checks::between;
use crate::common::columns::{self, AGE, NAME, field};
use crate::common::go_json;
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};

const SPEC: &str = "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec";
const LIMITED: &str = "io.k8s.api.flowcontrol.v1.LimitedPriorityLevelConfiguration";
const QUEUING: &str = "io.k8s.api.flowcontrol.v1.QueuingConfiguration";
const MAX_QUEUES: i64 = 10_000_000;
const HASH_BITS: i64 = 60;
const ZERO_SHARES: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

/// The rules of PriorityLevelConfiguration.
pub struct PriorityLevelConfiguration;

impl KindRules for PriorityLevelConfiguration {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        for (part, shares) in [("exempt", 0), ("limited", 30)] {
            if object.has(&["spec", part]) {
                object.set_default(&["spec", part, "nominalConcurrencyShares"], shares);
                object.set_default(&["spec", part, "lendablePercent"], 0);
            }
        }
        if let Some(queuing) = object.find(&["spec", "limited", "limitResponse", "queuing"]).filter(|q| q.is_object()) {
            for (setting, default) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                if queuing.integer(&[setting]).unwrap_or(0) == 0 {
                    queuing.set(&[setting], default);
                }
            }
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        match context.subresource {
            "status" => conditions::keep_all_but_status(object, old),
            _ => kind::keep_field(object, old, "status"),
        }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource != "status" {
            if object.has(&["metadata", "annotations", ZERO_SHARES]) {
                let detail = format!("annotation '{ZERO_SHARES}' is forbidden");
                errors.forbidden(&Path::root("metadata.annotations"), detail);
            }
            let name = object.text(&["metadata", "name"]);
            validate_spec(&mut errors, name, &object["spec"]);
            validate_fixed(&mut errors, name, &object["spec"]);
        }
        conditions::validate(&mut errors, object);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 1 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Type", "string", SPEC, "type"),
                field("NominalConcurrencyShares", "string", LIMITED, "nominalConcurrencyShares"),
                field("Queues", "string", QUEUING, "queues"),
                field("HandSize", "string", QUEUING, "handSize"),
                field("QueueLengthLimit", "string", QUEUING, "queueLengthLimit"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let limited = object.at(&["spec", "limited"]);
        let queuing = limited.at(&["limitResponse", "queuing"]);
        let cell = |part: &Value, setting: &str| match part.integer(&[setting]) {
            Some(number) => Value::from(number),
            None if part.is_null() => "<none>".into(),
            None => 0.into(),
        };
        vec![
            columns::name(object),
            object.text(&["spec", "type"]).into(),
            cell(limited, "nominalConcurrencyShares"),
            cell(queuing, "queues"),
            cell(queuing, "handSize"),
            cell(queuing, "queueLengthLimit"),
            columns::age(object, now),
        ]
    }
}

fn validate_spec(errors: &mut Errors, name: &str, spec: &Value) {
    let path = Path::root("spec");
    let kind = spec.text(&["type"]);
    if (name == "exempt") != (kind == "Exempt") {
        errors.invalid(&path.child("type"), kind, "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    let (exempt, limited) = (&spec["exempt"], &spec["limited"]);
    match kind {
        "Exempt" => {
            if !limited.is_null() {
                errors.forbidden(&path.child("limited"), "must be nil if the type is not Limited");
            }
            validate_shares(errors, &path.child("exempt"), exempt);
            validate_lendable(errors, &path.child("exempt"), exempt);
        }
        "Limited" => {
            if !exempt.is_null() {
                errors.forbidden(&path.child("exempt"), "must be nil if the type is Limited");
            }
            if limited.is_null() {
                errors.required(&path.child("limited"), "must not be empty when type is Limited");
            } else {
                validate_limited(errors, &path.child("limited"), limited);
            }
        }
        "" => errors.required(&path.child("type"), ""),
        kind => errors.not_supported(&path.child("type"), kind, &["Exempt", "Limited"]),
    }
}

fn validate_shares(errors: &mut Errors, path: &Path<'_>, level: &Value) {
    if let Some(shares) = level.integer(&["nominalConcurrencyShares"]).filter(|shares| *shares < 0) {
        errors.invalid(&path.child("nominalConcurrencyShares"), shares, "must be a non-negative integer");
    }
}

fn validate_lendable(errors: &mut Errors, path: &Path<'_>, level: &Value) {
    if let Some(percent) = level.integer(&["lendablePercent"]).filter(|percent| !(0..=100).contains(percent)) {
        errors.invalid(&path.child("lendablePercent"), percent, between(0, 100));
    }
}

fn validate_limited(errors: &mut Errors, path: &Path<'_>, limited: &Value) {
    validate_shares(errors, path, limited);
    let at = path.child("limitResponse");
    let response = &limited["limitResponse"];
    let queuing = &response["queuing"];
    match response.text(&["type"]) {
        "Reject" => {
            if !queuing.is_null() {
                errors.forbidden(&at.child("queuing"), "must be nil if limited.limitResponse.type is not Limited");
            }
        }
        "Queue" if queuing.is_null() => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.required(&at.child("queuing"), detail);
        }
        "Queue" => validate_queuing(errors, &at.child("queuing"), queuing),
        "" => errors.required(&at.child("type"), ""),
        kind => errors.not_supported(&at.child("type"), kind, &["Queue", "Reject"]),
    }
    validate_lendable(errors, path, limited);
    if let Some(percent) = limited.integer(&["borrowingLimitPercent"]).filter(|percent| *percent < 0) {
        let detail = "if specified, must be a non-negative integer";
        errors.invalid(&path.child("borrowingLimitPercent"), percent, detail);
    }
}

fn validate_queuing(errors: &mut Errors, path: &Path<'_>, queuing: &Value) {
    let number = |setting: &str| queuing.integer(&[setting]).unwrap_or(0);
    let (length, queues, hand) = (number("queueLengthLimit"), number("queues"), number("handSize"));
    if length <= 0 {
        errors.invalid(&path.child("queueLengthLimit"), length, "must be positive");
    }
    if queues <= 0 {
        errors.invalid(&path.child("queues"), queues, "must be positive");
    } else if queues > MAX_QUEUES {
        errors.invalid(&path.child("queues"), queues, format!("must not be greater than {MAX_QUEUES}"));
    }
    let at = path.child("handSize");
    if hand <= 0 {
        errors.invalid(&at, hand, "must be positive");
    } else if hand > queues {
        errors.invalid(&at, hand, format!("should not be greater than queues ({queues})"));
    } else if ((queues as f64).log2() * hand as f64).ceil() as i64 > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.invalid(&at, hand, detail);
    }
}

/// Validates the two mandatory levels, which must keep their predefined spec.
fn validate_fixed(errors: &mut Errors, name: &str, spec: &Value) {
    let path = Path::root("spec");
    match name {
        "exempt" => {
            let fields = spec.as_object().into_iter().flatten();
            let others = fields
                .into_iter()
                .any(|(field, value)| !matches!(field.as_str(), "type" | "exempt") && !value.is_null());
            if spec["type"] != "Exempt" || others {
                let detail = "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value";
                errors.invalid_verbatim(&path, spec_json(spec), detail);
            }
        }
        "catch-all" => {
            let fixed = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
                "limitResponse": {"type": "Reject"}}});
            if *spec != fixed {
                errors.invalid_verbatim(&path, spec_json(spec), "spec of 'catch-all' must equal the fixed value");
            }
        }
        _ => {}
    }
}

/// Renders a spec with the field names of the internal type.
fn spec_json(spec: &Value) -> String {
    let limited = &spec["limited"];
    let queuing = limited.at(&["limitResponse", "queuing"]);
    let queuing = section_json(
        queuing,
        &[("Queues", "queues"), ("HandSize", "handSize"), ("QueueLengthLimit", "queueLengthLimit")],
    );
    let limited = if limited.is_null() {
        "null".to_owned()
    } else {
        format!(
            "{{\"NominalConcurrencyShares\":{},\"LimitResponse\":{{\"Type\":{},\"Queuing\":{queuing}}},\"LendablePercent\":{},\
             \"BorrowingLimitPercent\":{}}}",
            limited["nominalConcurrencyShares"],
            Value::from(limited.text(&["limitResponse", "type"])),
            limited["lendablePercent"],
            limited["borrowingLimitPercent"]
        )
    };
    let exempt = [("NominalConcurrencyShares", "nominalConcurrencyShares"), ("LendablePercent", "lendablePercent")];
    let exempt = section_json(&spec["exempt"], &exempt);
    format!("{{\"Type\":{},\"Limited\":{limited},\"Exempt\":{exempt}}}", Value::from(spec.text(&["type"])))
}

fn section_json(part: &Value, fields: &[(&str, &str)]) -> String {
    if part.is_null() {
        return "null".to_owned();
    }
    let fields: Vec<(&str, Value)> = fields.iter().map(|(rendered, name)| (*rendered, part[*name].clone())).collect();
    go_json::struct_json(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    fn level(name: &str, spec: Value) -> Value {
        defaulted(&PriorityLevelConfiguration, json!({"metadata": {"name": name}, "spec": spec}))
    }

    #[test]
    fn levels_are_defaulted_and_checked() {
        let queue = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}});
        let object = level("a", queue);
        assert_eq!(
            object["spec"]["limited"],
            json!({"nominalConcurrencyShares": 30, "lendablePercent": 0, "limitResponse": {"type": "Queue",
                "queuing": {"handSize": 8, "queues": 64, "queueLengthLimit": 50}}})
        );
        for (object, wrong) in [
            (object, vec![]),
            (
                level(
                    "catch-all",
                    json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "limitResponse": {"type": "Reject"}}}),
                ),
                vec![],
            ),
            (
                level("a", json!({"type": "Exempt"})),
                vec!["spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'"],
            ),
            (
                level("a", json!({"type": "Limited"})),
                vec!["spec.limited: Required value: must not be empty when type is Limited"],
            ),
            (
                level(
                    "a",
                    json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"handSize": 30, "queues": 512}}}}),
                ),
                vec![
                    "spec.limited.limitResponse.queuing.handSize: Invalid value: 30: required entropy bits of deckSize 512 and \
                     handSize 30 should not be greater than 60",
                ],
            ),
        ] {
            assert_eq!(messages(&PriorityLevelConfiguration, &object, None), wrong);
        }
    }
}
