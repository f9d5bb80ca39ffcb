//! Validation of the sharing policy of a device's capacity.

use knarr_api::field::{Errors, Path};
use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use super::naming;

const MAX_VALUES: usize = 10;

fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}

/// Validates the capacity of a device; only `shared` devices may have a sharing policy.
pub fn validate(errors: &mut Errors, path: &Path<'_>, capacity: &Value, shared: bool) {
    let policy = &capacity["requestPolicy"];
    if policy.is_null() {
        return;
    }
    let path = path.child("requestPolicy");
    if !shared {
        errors.forbidden(&path, "allowMultipleAllocations must be true");
        return;
    }
    let Some(whole) = quantity(&capacity["value"]) else { return };
    let (values, range) = (policy.items(&["validValues"]), &policy["validRange"]);
    let default = quantity(&policy["default"]);
    let (list, detail) = match (values.is_empty(), range.is_null()) {
        (false, false) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same \
                        time";
            errors.forbidden(&path, detail);
            return;
        }
        (true, true) => return,
        (false, true) => ("validValues", "required when validValues is defined"),
        (true, false) => ("validRange", "required when validRange is defined"),
    };
    match default {
        None => errors.required(&path.child("default"), detail),
        Some(default) if list == "validValues" => validate_values(errors, &path.child(list), values, &default, &whole),
        Some(default) => validate_range(errors, &path.child(list), range, &default, &whole),
    }
}

fn validate_values(errors: &mut Errors, path: &Path<'_>, values: &[Value], default: &Quantity, whole: &Quantity) {
    let amounts: Vec<Quantity> = values.iter().filter_map(quantity).collect();
    for (index, pair) in amounts.windows(2).enumerate().filter(|(_, pair)| pair[0] > pair[1]) {
        errors.invalid(&path.index(index + 1), pair[1].to_string(), "values must be sorted in ascending order");
    }
    let mut found = false;
    if naming::within(errors, path, amounts.len(), MAX_VALUES) {
        for (index, amount) in amounts.iter().enumerate() {
            if amount > whole {
                let detail = format!("option is larger than capacity value: {whole}");
                errors.invalid(&path.index(index), amount.to_string(), detail);
            }
            found |= amount == default;
        }
        let keys: Vec<Value> = amounts.iter().map(|amount| amount.value().to_string().into()).collect();
        naming::validate_distinct(errors, path, &keys);
    }
    if !found {
        let detail = "default value is not valid according to the requestPolicy";
        errors.invalid(path, default.to_string(), detail);
    }
}

fn validate_range(errors: &mut Errors, path: &Path<'_>, range: &Value, default: &Quantity, whole: &Quantity) {
    let Some(min) = quantity(&range["min"]) else {
        errors.required(&path.child("min"), "required when validRange is defined");
        return;
    };
    let (max, step) = (quantity(&range["max"]), quantity(&range["step"]));
    let mut refuse = |wrong: bool, field: &str, rendered: &Quantity, detail: String| {
        if wrong {
            errors.invalid(&path.child(field), rendered.to_string(), detail);
        }
    };
    refuse(min > *whole, "min", &min, format!("min is larger than capacity value: {whole}"));
    refuse(*default < min, "min", default, format!("default is less than min: {min}"));
    if let Some(max) = &max {
        refuse(min > *max, "max", &min, format!("min is larger than max: {max}"));
        refuse(*max > *whole, "max", max, format!("max is larger than capacity value: {whole}"));
        refuse(*default > *max, "max", default, format!("default is more than max: {max}"));
    }
    if let Some(step) = &step {
        let mut next = min.clone();
        next.add(step);
        refuse(next > *whole, "step", step, format!("one step {next} is larger than capacity value: {whole}"));
        for value in [Some(default), max.as_ref()].into_iter().flatten() {
            let uneven = step.value() != 0 && (value.value() - min.value()) % step.value() != 0;
            refuse(uneven, "step", value, format!("value is not a multiple of a given step ({step}) from ({min})"));
        }
    }
}
