//! Validation and rendering of the metrics of an autoscaler.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks;
use crate::core::pod::validation::resources;

/// The types of metrics and the fields of their sources, in the order of validation.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// How strictly the API version of a reference is validated.
#[derive(Clone, Copy, Default)]
pub struct VersionRules {
    pub may_lack_group: bool,
    pub may_be_invalid: bool,
}

/// Validates the metrics of a spec.
pub fn validate(errors: &mut Errors, path: &Path<'_>, spec: &Value, rules: VersionRules) {
    let metrics = spec.items(&["metrics"]);
    for (index, metric) in metrics.iter().enumerate() {
        validate_metric(errors, &path.index(index), metric, rules);
    }
    let from_outside = metrics.iter().any(|metric| matches!(metric.text(&["type"]), "Object" | "External"));
    if spec.integer(&["minReplicas"]) == Some(0) && !from_outside {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(path, detail);
    }
}

fn validate_metric(errors: &mut Errors, path: &Path<'_>, metric: &Value, rules: VersionRules) {
    let kind = metric.text(&["type"]);
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric source type");
    }
    checks::one_of(errors, &path.child("type"), kind, &TYPES);
    let present: Vec<&str> = SOURCES.iter().map(|(_, field)| *field).filter(|field| metric.has(&[field])).collect();
    if let Some(field) = present.first() {
        validate_source(errors, &path.child(field), field, &metric[*field], rules);
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    match expected {
        Some(field) if !metric.has(&[field]) => {
            errors.required(&path.child(field), "must populate information for the given metric source");
        }
        Some(_) => {}
        None => errors.not_supported(&path.child("type"), kind, &TYPES),
    }
    if present.len() != 1 {
        for field in present.iter().filter(|field| Some(**field) != expected) {
            errors.forbidden(&path.child(field), "must populate the given metric source only");
        }
    }
}

fn validate_source(errors: &mut Errors, path: &Path<'_>, field: &str, source: &Value, rules: VersionRules) {
    let target = &source["target"];
    let at = path.child("target");
    let (value, average) = (target.has(&["value"]), target.has(&["averageValue"]));
    match field {
        "object" => {
            validate_reference(errors, &path.child("describedObject"), &source["describedObject"], rules);
            validate_identifier(errors, &path.child("metric"), &source["metric"]);
            validate_target(errors, &at, target);
            if !value && !average {
                errors.required(&at.child("averageValue"), "must set either a target value or averageValue");
            }
        }
        "external" => {
            validate_identifier(errors, &path.child("metric"), &source["metric"]);
            validate_target(errors, &at, target);
            if !value && !average {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.required(&at.child("averageValue"), detail);
            }
            if value && average {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.forbidden(&at.child("value"), detail);
            }
        }
        "pods" => {
            validate_identifier(errors, &path.child("metric"), &source["metric"]);
            validate_target(errors, &at, target);
            if !average {
                errors.required(&at.child("averageValue"), "must specify a positive target averageValue");
            }
        }
        _ => validate_resource(errors, path, field == "containerResource", source),
    }
}

fn validate_resource(errors: &mut Errors, path: &Path<'_>, of_container: bool, source: &Value) {
    let name = source.text(&["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "must specify a resource name");
    } else if of_container {
        resources::container_name(errors, name, &path.child("name"));
    }
    if of_container {
        match source.text(&["container"]) {
            "" => errors.required(&path.child("container"), "must specify a container"),
            container => names::check(errors, &path.child("container"), container, names::dns_label),
        }
    }
    let target = &source["target"];
    let at = path.child("target");
    validate_target(errors, &at, target);
    match (target.has(&["averageUtilization"]), target.has(&["averageValue"])) {
        (false, false) => {
            let detail = "must set either a target raw value or a target utilization";
            errors.required(&at.child("averageUtilization"), detail);
        }
        (true, true) => {
            let detail = "may not set both a target raw value and a target utilization";
            errors.forbidden(&at.child("averageValue"), detail);
        }
        _ => {}
    }
}

fn validate_target(errors: &mut Errors, path: &Path<'_>, target: &Value) {
    let kind = target.text(&["type"]);
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        errors.invalid(&path.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        if let Some(text) = target[field].as_str()
            && Quantity::parse(text).is_ok_and(|quantity| quantity.signum() != 1)
        {
            errors.invalid(&path.child(field), text, "must be positive");
        }
    }
    if let Some(percent) = target.integer(&["averageUtilization"]).filter(|percent| *percent < 1) {
        errors.invalid(&path.child("averageUtilization"), percent, checks::NOT_POSITIVE);
    }
}

fn validate_identifier(errors: &mut Errors, path: &Path<'_>, metric: &Value) {
    match metric.text(&["name"]) {
        "" => errors.required(&path.child("name"), "must specify a metric name"),
        name => names::check(errors, &path.child("name"), name, names::path_segment),
    }
}

/// Validates a reference to a scale target or an object.
pub fn validate_reference(errors: &mut Errors, path: &Path<'_>, reference: &Value, rules: VersionRules) {
    for field in ["kind", "name"] {
        checks::required_name(errors, &path.child(field), reference.text(&[field]), names::path_segment);
    }
    if let Some(wrong) = version_error(reference, rules) {
        errors.invalid(&path.child("apiVersion"), reference.text(&["apiVersion"]), wrong);
    }
}

/// Returns the error of a reference's API version.
pub fn version_error(reference: &Value, rules: VersionRules) -> Option<String> {
    let version = reference.text(&["apiVersion"]);
    if rules.may_be_invalid {
        return None;
    }
    let has_group = match version.matches('/').count() {
        0 => false,
        1 => !version.starts_with('/'),
        _ => return Some(format!("unexpected GroupVersion string: {version}")),
    };
    (!rules.may_lack_group && !has_group).then(|| "apiVersion must specify API group".to_owned())
}

/// Renders metrics for tables: the current value and the target of the first two.
pub fn display(specs: &[Value], statuses: &[Value]) -> String {
    const MAX_DISPLAYED: usize = 2;
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let none = Value::Null;
    let list: Vec<String> = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| display_metric(spec, statuses.get(index).unwrap_or(&none)))
        .collect();
    let text = list[..list.len().min(MAX_DISPLAYED)].join(", ");
    if list.len() > MAX_DISPLAYED { format!("{text} + {} more...", list.len() - MAX_DISPLAYED) } else { text }
}

fn display_metric(spec: &Value, status: &Value) -> String {
    let Some((kind, field)) = SOURCES.iter().find(|(kind, _)| *kind == spec.text(&["type"])) else {
        return "<unknown type>".to_owned();
    };
    let target = spec.at(&[field, "target"]);
    let current = &status[*field]["current"];
    let measured = status.has(&[field]);
    // A status without the value of the target's type is rendered as unknown, or as zero where the field is mandatory.
    let amount = |value: &str, zero: bool| match current[value].as_str() {
        Some(text) => text.to_owned(),
        None if measured && zero => "0".to_owned(),
        None => "<unknown>".to_owned(),
    };
    let average = target["averageValue"].as_str();
    match *kind {
        "External" | "Object" => match average {
            Some(average) => format!("{}/{average} (avg)", amount("averageValue", false)),
            None => format!("{}/{}", amount("value", true), target["value"].as_str().unwrap_or("0")),
        },
        "Pods" => format!("{}/{}", amount("averageValue", true), average.unwrap_or("0")),
        _ => {
            let name = spec.text(&[field, "name"]);
            match average {
                Some(average) => format!("{name}: {}/{average}", amount("averageValue", true)),
                None => {
                    let percent = |value: &Value, none: &str| match value.integer(&["averageUtilization"]) {
                        Some(number) => format!("{number}%"),
                        None => none.to_owned(),
                    };
                    format!("{name}: {}/{}", percent(current, "<unknown>"), percent(target, "<auto>"))
                }
            }
        }
    }
}
