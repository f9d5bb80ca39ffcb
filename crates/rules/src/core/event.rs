//! Event, in the core group and in events.k8s.io. Both are views of the same stored objects.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::Read;
use serde_json::{Map, Value, json};

use crate::common::checks::IMMUTABLE;
use crate::common::columns::{self, field, wide};
use crate::common::equality::same;
use crate::common::internal_types;
use crate::kind::{Column, Context, KindRules, MetadataPasses, OBJECT_META};

const EVENT: &str = "io.k8s.api.core.v1.Event";
const REFERENCE: &str = "io.k8s.api.core.v1.ObjectReference";
const COLUMNS: &[Column] = &[
    field("Last Seen", "string", EVENT, "lastTimestamp"),
    field("Type", "string", EVENT, "type"),
    field("Reason", "string", EVENT, "reason"),
    field("Object", "string", EVENT, "involvedObject"),
    wide(field("Subobject", "string", REFERENCE, "fieldPath")),
    wide(field("Source", "string", EVENT, "source")),
    field("Message", "string", EVENT, "message"),
    wide(field("First Seen", "string", EVENT, "firstTimestamp")),
    wide(field("Count", "string", EVENT, "count")),
    wide(Column { format: "name", ..field("Name", "string", OBJECT_META, "name") }),
];

/// The rules of events in the core group.
pub struct Event;

impl KindRules for Event {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 0 }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        legacy(&mut errors, object, "reportingComponent");
        errors
    }

    fn name_check(&self) -> Check {
        names::path_segment
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, now)
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) {
        convert(object, from, to);
    }
}

/// The rules of events in events.k8s.io.
pub struct GroupedEvent;

impl KindRules for GroupedEvent {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let mut event = object.clone();
        to_core(&mut event);
        legacy(&mut errors, &event, "reportingController");
        if old.is_none() {
            new_event(&mut errors, &event);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let (mut event, mut before) = (object.clone(), old.clone());
        to_core(&mut event);
        to_core(&mut before);
        changes(&mut errors, &event, &before);
        errors
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut event = object.clone();
        to_core(&mut event);
        cells(&event, now)
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) {
        convert(object, from, to);
    }
}

/// The fields that differ in name: in core, in events.k8s.io.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn convert(object: &mut Value, from: &str, to: &str) {
    match (from.starts_with("events.k8s.io/"), to.starts_with("events.k8s.io/")) {
        (true, false) => to_core(object),
        (false, true) => to_grouped(object),
        _ => {}
    }
}

/// Converts to the core group, where some fields are never omitted.
pub fn to_core(event: &mut Value) {
    let Some(fields) = event.as_object_mut() else { return };
    for (core, grouped) in RENAMED {
        rename(fields, grouped, core);
    }
    for (name, empty) in [
        ("involvedObject", json!({})),
        ("source", json!({})),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
        ("eventTime", Value::Null),
        ("reportingComponent", json!("")),
        ("reportingInstance", json!("")),
    ] {
        fields.entry(name).or_insert(empty);
    }
}

/// Converts to events.k8s.io.
pub fn to_grouped(event: &mut Value) {
    let Some(fields) = event.as_object_mut() else { return };
    for (core, grouped) in RENAMED {
        rename(fields, core, grouped);
    }
    for name in ["reportingController", "reportingInstance"] {
        if fields.get(name).and_then(Value::as_str) == Some("") {
            fields.remove(name);
        }
    }
    for (name, empty) in [
        ("regarding", json!({})),
        ("deprecatedSource", json!({})),
        ("deprecatedFirstTimestamp", Value::Null),
        ("deprecatedLastTimestamp", Value::Null),
        ("eventTime", Value::Null),
    ] {
        fields.entry(name).or_insert(empty);
    }
}

fn rename(fields: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

/// Validates events of both groups; `event` is in the core form.
fn legacy(errors: &mut Errors, event: &Value, controller_field: &str) {
    const LIMIT: usize = 128;
    const MESSAGE_LIMIT: usize = 1024;
    let root = Path::default();
    let namespace = event.text(&["metadata", "namespace"]);
    let of = event.text(&["involvedObject", "namespace"]);
    let is_first_form = event.text(&["eventTime"]).is_empty();
    let differs = match (is_first_form, of.is_empty()) {
        (true, true) => !matches!(namespace, "" | "default"),
        (true, false) => namespace != of,
        (false, true) => !matches!(namespace, "default" | "kube-system"),
        (false, false) => false,
    };
    if differs {
        errors.invalid(&root.child("involvedObject.namespace"), of, "does not match event.namespace");
    }
    if !is_first_form {
        let too_long = |limit: usize| format!("can have at most {limit} characters");
        let controller = event.text(&["reportingComponent"]);
        if controller.is_empty() {
            errors.required(&root.child(controller_field), "");
        }
        names::check(errors, &root.child(controller_field), controller, names::qualified_name);
        for field in ["reportingInstance", "action", "reason"] {
            let text = event.text(&[field]);
            if text.is_empty() {
                errors.required(&root.child(field), "");
            }
            if text.len() > LIMIT {
                errors.invalid(&root.child(field), "", too_long(LIMIT));
            }
        }
        if event.text(&["message"]).len() > MESSAGE_LIMIT {
            errors.invalid(&root.child("message"), "", too_long(MESSAGE_LIMIT));
        }
    }
    names::check(errors, &root.child("namespace"), namespace, names::dns_subdomain);
}

fn new_event(errors: &mut Errors, event: &Value) {
    let root = Path::default();
    series(errors, event);
    if event.text(&["eventTime"]).is_empty() {
        errors.required(&root.child("eventTime"), "");
    }
    let kind = event.text(&["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(&root.child("type"), "", format!("has invalid value: {kind}"));
    }
    let source = event.at(&["source"]);
    for (is_set, field) in [
        (event.has(&["firstTimestamp"]), "firstTimestamp"),
        (event.has(&["lastTimestamp"]), "lastTimestamp"),
        (event.integer(&["count"]).unwrap_or_default() != 0, "count"),
        (!source.text(&["component"]).is_empty() || !source.text(&["host"]).is_empty(), "source"),
    ] {
        if is_set {
            errors.invalid(&root.child(field), "", "needs to be unset");
        }
    }
}

fn series(errors: &mut Errors, event: &Value) {
    let series = event.at(&["series"]);
    if series.is_null() {
        return;
    }
    let root = Path::default();
    if series.integer(&["count"]).unwrap_or_default() < 2 {
        errors.invalid(&root.child("series.count"), "", "should be at least 2");
    }
    if series.text(&["lastObservedTime"]).is_empty() {
        errors.required(&root.child("series.lastObservedTime"), "");
    }
}

/// Requires that only the series of an event changes.
fn changes(errors: &mut Errors, event: &Value, old: &Value) {
    if !same(event.at(&["series"]), old.at(&["series"])) {
        series(errors, event);
    }
    let root = Path::default();
    for (field, rendered) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        let (new, before) = (event.at(&[field]), old.at(&[field]));
        if same(new, before) {
            continue;
        }
        let path = root.child(rendered);
        match field {
            "involvedObject" | "related" if !new.is_null() => {
                errors.invalid_verbatim(&path, internal_types::to_json("ObjectReference", new), IMMUTABLE);
            }
            "source" => errors.invalid_verbatim(&path, internal_types::to_json("EventSource", new), IMMUTABLE),
            "count" => errors.invalid(&path, new.as_i64().unwrap_or_default(), IMMUTABLE),
            "reason" | "message" | "type" | "action" | "reportingComponent" | "reportingInstance" => {
                errors.invalid(&path, new.as_str().unwrap_or_default(), IMMUTABLE);
            }
            _ => errors.invalid(&path, new.clone(), IMMUTABLE),
        }
    }
}

fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let since = |text: &str| columns::since(text, now);
    let first = match event.text(&["firstTimestamp"]) {
        "" => since(event.text(&["eventTime"])),
        at => since(at),
    };
    let mut last = match event.text(&["lastTimestamp"]) {
        "" => first.clone(),
        at => since(at),
    };
    let mut count = event.integer(&["count"]).unwrap_or_default().max(1);
    if event.has(&["series"]) {
        last = since(event.text(&["series", "lastObservedTime"]));
        count = event.integer(&["series", "count"]).unwrap_or_default();
    }
    let kind = event.text(&["involvedObject", "kind"]).to_lowercase();
    let target = match event.text(&["involvedObject", "name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let either = |first: &str, second: &str| if first.is_empty() { second.to_owned() } else { first.to_owned() };
    let component = either(event.text(&["source", "component"]), event.text(&["reportingComponent"]));
    let instance = either(event.text(&["source", "host"]), event.text(&["reportingInstance"]));
    let source = if instance.is_empty() { component } else { format!("{component}, {instance}") };
    vec![
        last.into(),
        event.text(&["type"]).into(),
        event.text(&["reason"]).into(),
        target.into(),
        event.text(&["involvedObject", "fieldPath"]).into(),
        source.into(),
        event.text(&["message"]).trim().into(),
        first.into(),
        count.into(),
        columns::name(event),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;

    #[test]
    fn both_forms_become_each_other() {
        let core = json!({
            "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod"}, "message": "m", "source": {"component": "c"},
            "count": 2, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": null, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "",
        });
        let mut event = core.clone();
        Event.convert(&mut event, "v1", "events.k8s.io/v1");
        assert_eq!(event["regarding"], json!({"kind": "Pod"}));
        assert_eq!(event["note"], "m");
        assert_eq!(event.get("reportingController"), None);
        GroupedEvent.convert(&mut event, "events.k8s.io/v1", "v1");
        assert_eq!(event, core);
    }

    #[test]
    fn events_are_checked() {
        let event = json!({"metadata": {"name": "e", "namespace": "n"}, "involvedObject": {"kind": "Pod"}});
        assert_eq!(
            messages(&Event, &event, None),
            ["involvedObject.namespace: Invalid value: \"\": does not match event.namespace"]
        );
        let grouped = json!({
            "metadata": {"name": "e", "namespace": "n"}, "regarding": {"kind": "Pod", "namespace": "n"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Odd", "reason": "r", "action": "a",
            "reportingController": "c", "reportingInstance": "i",
        });
        assert_eq!(messages(&GroupedEvent, &grouped, None), ["type: Invalid value: \"\": has invalid value: Odd"]);
    }

    #[test]
    fn rows_show_what_happened() {
        let event = json!({
            "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"}, "message": " m\n", "type": "Normal",
            "reason": "r", "source": {"component": "c", "host": "h"},
        });
        let cells = cells(&event, Timestamp::UNIX_EPOCH);
        assert_eq!(cells[0], "<unknown>");
        assert_eq!(cells[3..7], [json!("pod/p"), json!(""), json!("c, h"), json!("m")]);
        assert_eq!(cells[8], 1);
    }
}
