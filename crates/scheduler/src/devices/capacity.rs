//! Capacity of devices that several claims share: how much a request consumes, and whether it is left.

use k8s_openapi::api::resource::v1 as api;
use knarr_client::quantity::{self, Format, Quantity, scale};

use super::slice::{Amounts, Device};

/// What a device has of something, and in which amounts it can be requested.
#[derive(Clone, Debug)]
pub struct Capacity {
    value: Quantity,
    policy: Option<Policy>,
}

#[derive(Clone, Debug)]
struct Policy {
    default: Option<Quantity>,
    range: Option<Range>,
    /// In ascending order.
    values: Vec<Quantity>,
}

#[derive(Clone, Debug)]
struct Range {
    min: Option<Quantity>,
    max: Option<Quantity>,
    step: Option<Quantity>,
}

impl Capacity {
    pub fn of(capacity: &api::DeviceCapacity) -> Self {
        let range = |range: &api::CapacityRequestPolicyRange| Range {
            min: Some(quantity::of(&range.min)),
            max: range.max.as_ref().map(quantity::of),
            step: range.step.as_ref().map(quantity::of).filter(|step| wide(step) > 0),
        };
        let policy = |policy: &api::CapacityRequestPolicy| Policy {
            default: policy.default.as_ref().map(quantity::of),
            range: policy.valid_range.as_ref().map(range),
            values: policy.valid_values.iter().flatten().map(quantity::of).collect(),
        };
        Capacity { value: quantity::of(&capacity.value), policy: capacity.request_policy.as_ref().map(policy) }
    }

    /// What a request consumes: without one the default or all of it, otherwise the next amount that the policy has.
    fn consumed(&self, requested: Option<&Quantity>) -> Quantity {
        let Some(requested) = requested else {
            return self.policy.as_ref().and_then(|policy| policy.default.as_ref()).unwrap_or(&self.value).clone();
        };
        match &self.policy {
            Some(Policy { range: Some(range @ Range { min: Some(min), .. }), .. }) => {
                if requested < min {
                    min.clone()
                } else {
                    range.step.as_ref().map_or_else(|| requested.clone(), |step| next_step(requested, min, step))
                }
            }
            Some(policy) => policy.values.iter().find(|value| requested <= *value).unwrap_or(requested).clone(),
            None => requested.clone(),
        }
    }

    fn allows(&self, amount: &Quantity) -> bool {
        let Some(policy) = &self.policy else { return true };
        if policy.default.as_ref() == Some(amount) {
            return true;
        }
        match &policy.range {
            Some(range) => {
                let min = range.min.as_ref().map_or(0, wide);
                let is_step = |step: &Quantity| (wide(amount) - min) % wide(step) == 0;
                range.max.as_ref().is_none_or(|max| amount <= max) && range.step.as_ref().is_none_or(is_step)
            }
            None => policy.values.is_empty() || policy.values.contains(amount),
        }
    }
}

fn next_step(requested: &Quantity, min: &Quantity, step: &Quantity) -> Quantity {
    let (over, step) = (wide(requested) - wide(min), wide(step));
    let steps = over / step + i128::from(over % step != 0);
    let value = wide(min) + steps * step;
    Quantity::new(i64::try_from(value).unwrap_or(i64::MAX), Format::BinarySi)
}

fn wide(quantity: &Quantity) -> i128 {
    i128::from(quantity.saturating_value(scale::ONE))
}

/// Whether the device has what is requested, beyond what others consume.
pub fn fits(requests: &Amounts, device: &Device, consumed: [Option<&Amounts>; 2]) -> bool {
    if requests.keys().any(|name| !device.capacity.contains_key(name)) {
        return false;
    }
    device.capacity.iter().all(|(name, capacity)| {
        let amount = capacity.consumed(requests.get(name));
        if !capacity.allows(&amount) {
            return false;
        }
        let mut total = amount;
        consumed.iter().flatten().filter_map(|amounts| amounts.get(name)).for_each(|used| total.add(used));
        total <= capacity.value
    })
}

/// What the request consumes of the device.
pub fn consumption(requests: &Amounts, device: &Device) -> Amounts {
    let consumed = |(name, capacity): (&String, &Capacity)| (name.clone(), capacity.consumed(requests.get(name)));
    device.capacity.iter().map(consumed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_rounded_to_what_the_policy_allows() {
        let steps = json!({"default": "1Gi", "validRange": {"min": "2Gi", "max": "9Gi", "step": "1Gi"}});
        let values = json!({"default": "1", "validValues": ["1", "4", "8"]});
        let hostile = json!({"validRange": {"min": "1", "step": "0"}});
        for (policy, requested, consumed, allowed) in [
            (json!(null), None, "10Gi", true),
            (json!(null), Some("3Gi"), "3Gi", true),
            (steps.clone(), None, "1Gi", true),
            (steps.clone(), Some("1"), "2Gi", true),
            (steps.clone(), Some("2049Mi"), "3Gi", true),
            (steps.clone(), Some("9000Mi"), "9Gi", true),
            (steps.clone(), Some("9500Mi"), "10Gi", false),
            (steps, Some("9223372036854775807"), "9223372036854775807", false),
            (values.clone(), Some("2"), "4", true),
            (values.clone(), None, "1", true),
            (values, Some("9"), "9", false),
            (hostile, Some("7"), "7", true),
        ] {
            let api = json!({"value": "10Gi", "requestPolicy": policy});
            let capacity = Capacity::of(&serde_json::from_value(api.clone()).unwrap());
            let found = capacity.consumed(requested.map(|text| Quantity::parse(text).unwrap()).as_ref());
            assert_eq!(found, Quantity::parse(consumed).unwrap(), "{api} {requested:?}");
            assert_eq!(capacity.allows(&found), allowed, "{api} {requested:?}");
        }
    }
}
