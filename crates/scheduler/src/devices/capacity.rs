//! Capacity of devices that several claims share: how much a request consumes, and whether it is left.

use k8s_openapi::api::resource::v1 as api;
use knarr_client::quantity::{Format, Quantity};

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
            min: Some(Quantity::of(&range.min)),
            max: range.max.as_ref().map(Quantity::of),
            step: range.step.as_ref().map(Quantity::of).filter(|step| step.value() > 0),
        };
        let policy = |policy: &api::CapacityRequestPolicy| Policy {
            default: policy.default.as_ref().map(Quantity::of),
            range: policy.valid_range.as_ref().map(range),
            values: policy.valid_values.iter().flatten().map(Quantity::of).collect(),
        };
        Capacity { value: Quantity::of(&capacity.value), policy: capacity.request_policy.as_ref().map(policy) }
    }

    /// What a request consumes: without one the default or all of it, otherwise the next amount that the policy has.
    fn consumed(&self, requested: Option<Quantity>) -> Quantity {
        let Some(requested) = requested else {
            return self.policy.as_ref().and_then(|policy| policy.default).unwrap_or(self.value);
        };
        match &self.policy {
            Some(Policy { range: Some(range @ Range { min: Some(min), .. }), .. }) => {
                if requested < *min {
                    *min
                } else {
                    range.step.map_or(requested, |step| next_step(requested, *min, step))
                }
            }
            Some(policy) => policy.values.iter().copied().find(|value| requested <= *value).unwrap_or(requested),
            None => requested,
        }
    }

    fn allows(&self, amount: Quantity) -> bool {
        let Some(policy) = &self.policy else { return true };
        if policy.default == Some(amount) {
            return true;
        }
        match &policy.range {
            Some(range) => {
                let min = range.min.unwrap_or(Quantity::ZERO);
                let is_step = |step: Quantity| (wide(amount) - wide(min)) % wide(step) == 0;
                range.max.is_none_or(|max| amount <= max) && range.step.is_none_or(is_step)
            }
            None => policy.values.is_empty() || policy.values.contains(&amount),
        }
    }
}

fn next_step(requested: Quantity, min: Quantity, step: Quantity) -> Quantity {
    let (over, step) = (wide(requested) - wide(min), wide(step));
    let steps = over / step + i128::from(over % step != 0);
    let value = wide(min) + steps * step;
    Quantity::new(i64::try_from(value).unwrap_or(i64::MAX), Format::BinarySi)
}

fn wide(quantity: Quantity) -> i128 {
    i128::from(quantity.value())
}

/// Whether the device has what is requested, beyond what others consume.
pub fn fits(requests: &Amounts, device: &Device, consumed: [Option<&Amounts>; 2]) -> bool {
    if requests.keys().any(|name| !device.capacity.contains_key(name)) {
        return false;
    }
    device.capacity.iter().all(|(name, capacity)| {
        let amount = capacity.consumed(requests.get(name).copied());
        let used = consumed.iter().flatten().filter_map(|amounts| amounts.get(name));
        let total = used.fold(amount, |total, used| total + *used);
        capacity.allows(amount) && total <= capacity.value
    })
}

/// What the request consumes of the device.
pub fn consumption(requests: &Amounts, device: &Device) -> Amounts {
    let consumed = |(name, capacity): (&String, &Capacity)| {
        let requested = requests.get(name).copied();
        (name.clone(), capacity.consumed(requested))
    };
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
            let found = capacity.consumed(requested.map(|text| Quantity::parse(text).unwrap()));
            assert_eq!(found, Quantity::parse(consumed).unwrap(), "{api} {requested:?}");
            assert_eq!(capacity.allows(found), allowed, "{api} {requested:?}");
        }
    }
}
