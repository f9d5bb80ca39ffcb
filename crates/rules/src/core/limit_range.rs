//! LimitRange: default, minimum and maximum resources in a namespace.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::quantity::{Format, Quantity};
use knarr_api::value::Read;
use serde_json::Value;

use super::pod::validation::resources::{any_name, container_name};
use crate::common::{defaults as set, resources};
use crate::kind::{Context, KindRules, MetadataPasses};

/// The rules of LimitRange.
pub struct LimitRange;

impl KindRules for LimitRange {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
        for limit in set::objects(spec, "limits") {
            if limit.get("type").and_then(Value::as_str) == Some("Container") {
                fill_in(limit, "default", "max");
                fill_in(limit, "defaultRequest", "default");
                fill_in(limit, "defaultRequest", "min");
            }
            for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
                resources::round_to_milli(limit.get_mut(list));
            }
        }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let spec = Path::root("spec");
        let mut seen = BTreeSet::new();
        for (i, limit) in object.items(&["spec", "limits"]).iter().enumerate() {
            let path = spec.item("limits", i);
            let kind = limit.text(&["type"]);
            limit_type(&mut errors, kind, &path.child("type"));
            if !seen.insert(kind) {
                errors.duplicate(&path.child("type"), kind);
            }
            self::limit(&mut errors, limit, &path);
        }
        errors
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 1 }
    }
}

/// Copies the entries of one list that the other lacks.
fn fill_in(limit: &mut set::Fields, target: &str, from: &str) {
    let Some(Value::Object(source)) = limit.get(from).filter(|list| list.as_object().is_some_and(|l| !l.is_empty()))
    else {
        return;
    };
    let source = source.clone();
    resources::fill_in(set::object_or_new(limit, target), &source);
}

fn limit_type(errors: &mut Errors, kind: &str, path: &Path<'_>) {
    let wrong = names::qualified_name(kind);
    if wrong.is_empty() {
        if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
            errors.invalid(path, kind, "must be a standard limit type or fully qualified");
        }
        return;
    }
    for text in wrong {
        errors.invalid(path, kind, text);
    }
}

fn limit(errors: &mut Errors, limit: &Value, path: &Path<'_>) {
    let kind = limit.text(&["type"]);
    let names_of = |errors: &mut Errors, list: &str| {
        let path = path.child(list);
        for (name, _) in limit.fields(&[list]).into_iter().flatten() {
            if matches!(kind, "Pod" | "Container") {
                container_name(errors, name, &path.key(name));
            } else {
                any_name(errors, name, &path.key(name));
            }
        }
    };
    names_of(errors, "max");
    names_of(errors, "min");
    for list in ["default", "defaultRequest"] {
        if kind != "Pod" {
            names_of(errors, list);
        } else if limit.fields(&[list]).is_some_and(|list| !list.is_empty()) {
            errors.forbidden(&path.child(list), "may not be specified when `type` is 'Pod'");
        }
    }
    let has_storage = |list: &str| limit.at(&[list]).get("storage").is_some();
    if kind == "PersistentVolumeClaim" && !has_storage("min") && !has_storage("max") {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(&path.child("limits"), detail);
    }
    names_of(errors, "maxLimitRequestRatio");
    let lists: &[&str] = if kind == "Pod" {
        &["max", "min", "maxLimitRequestRatio"]
    } else {
        &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"]
    };
    let keys: BTreeSet<&str> = lists
        .iter()
        .flat_map(|list| limit.fields(&[list]).into_iter().flat_map(|list| list.keys().map(String::as_str)))
        .collect();
    for key in keys {
        let amount =
            |list: &str| lists.contains(&list).then(|| limit.at(&[list]).get(key)).flatten().map(resources::quantity);
        amounts(errors, key, amount, path);
    }
}

/// Validates the limits of one resource against each other.
fn amounts(errors: &mut Errors, key: &str, amount: impl Fn(&str) -> Option<Quantity>, path: &Path<'_>) {
    let (min, max, ratio) = (amount("min"), amount("max"), amount("maxLimitRequestRatio"));
    let (limit, request) = (amount("default"), amount("defaultRequest"));
    let mut refuse = |list: &str, rendered: &Quantity, detail: String| {
        errors.invalid(&path.child(list).key(key), rendered.to_string(), detail);
    };
    if let (Some(min), Some(max)) = (&min, &max)
        && min > max
    {
        refuse("min", min, format!("min value {min} is greater than max value {max}"));
    }
    if let (Some(request), Some(min)) = (&request, &min)
        && min > request
    {
        refuse("defaultRequest", request, format!("min value {min} is greater than default request value {request}"));
    }
    if let (Some(request), Some(max)) = (&request, &max)
        && request > max
    {
        refuse("defaultRequest", request, format!("default request value {request} is greater than max value {max}"));
    }
    if let (Some(request), Some(limit)) = (&request, &limit)
        && request > limit
    {
        let detail = format!("default request value {request} is greater than default limit value {limit}");
        refuse("defaultRequest", request, detail);
    }
    if let (Some(limit), Some(min)) = (&limit, &min)
        && min > limit
    {
        refuse("default", min, format!("min value {min} is greater than default value {limit}"));
    }
    if let (Some(limit), Some(max)) = (&limit, &max)
        && limit > max
    {
        refuse("default", max, format!("default value {limit} is greater than max value {max}"));
    }
    if let Some(ratio) = &ratio {
        if *ratio < Quantity::new(1, Format::DecimalSi) {
            refuse("maxLimitRequestRatio", ratio, format!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (&min, &max) {
            let (value, widest) = ratios(ratio, min, max);
            if value > widest {
                let detail = format!("ratio {ratio} is greater than max/min = {widest:.6}");
                refuse("maxLimitRequestRatio", ratio, detail);
            }
        }
    }
    if let (Some(limit), Some(request)) = (&limit, &request)
        && !resources::allows_overcommit(key)
        && limit != request
    {
        let detail = format!("default value {limit} must equal to defaultRequest value {request} in {key}");
        refuse("defaultRequest", request, detail);
    }
}

/// Returns the requested ratio and the maximum that the limits allow, in thousandths if those fit.
fn ratios(ratio: &Quantity, min: &Quantity, max: &Quantity) -> (f64, f64) {
    const LARGEST: i64 = i64::MAX / 1000;
    if [ratio, min, max].iter().all(|quantity| quantity.value() < LARGEST) {
        (ratio.milli_value() as f64 / 1000.0, max.milli_value() as f64 / min.milli_value() as f64)
    } else {
        (ratio.value() as f64, max.value() as f64 / min.value() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn container_limits_are_filled_in() {
        let range = defaulted(
            &LimitRange,
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}}),
        );
        assert_eq!(
            range["spec"]["limits"][0],
            json!({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}, "default": {"cpu": "2"},
                   "defaultRequest": {"cpu": "2", "memory": "1Mi"}})
        );
    }

    #[test]
    fn bounds_fit_each_other() {
        for (limit, expected) in [
            (json!({"type": "Pod", "max": {"cpu": "1"}}), vec![]),
            (
                json!({"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "2"}}),
                vec!["spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"],
            ),
            (
                json!({"type": "Pod", "default": {"cpu": "1"}}),
                vec!["spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'"],
            ),
            (
                json!({"type": "Ship"}),
                vec!["spec.limits[0].type: Invalid value: \"Ship\": must be a standard limit type or fully qualified"],
            ),
            (
                json!({"type": "PersistentVolumeClaim"}),
                vec![
                    "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither \
                 was provided",
                ],
            ),
            (
                json!({"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "3"}}),
                vec![
                    "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000",
                ],
            ),
        ] {
            assert_eq!(messages(&LimitRange, &json!({"spec": {"limits": [limit]}}), None), expected);
        }
    }
}
