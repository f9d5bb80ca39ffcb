//! The devices that claims hold.

use std::collections::HashMap;

use k8s_openapi::api::resource::v1::AllocationResult;
use knarr_client::quantity;

use super::DeviceId;
use super::slice::Amounts;

/// Which devices are allocated, as a whole or in shares. Counted, as two claims may hold a device for a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InUse {
    whole: HashMap<DeviceId, usize>,
    shares: HashMap<DeviceId, Shares>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Shares {
    count: usize,
    consumed: Amounts,
}

impl InUse {
    pub fn add(&mut self, allocation: &AllocationResult) {
        for (id, share) in held(allocation) {
            match share {
                None => *self.whole.entry(id).or_default() += 1,
                Some(consumed) => {
                    let shares = self.shares.entry(id).or_default();
                    shares.count += 1;
                    for (name, amount) in consumed {
                        shares.consumed.entry(name).or_default().add(&amount);
                    }
                }
            }
        }
    }

    /// Removes what was added.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for (id, share) in held(allocation) {
            match share {
                None => {
                    if let Some(count) = self.whole.get_mut(&id) {
                        *count -= 1;
                        if *count == 0 {
                            self.whole.remove(&id);
                        }
                    }
                }
                Some(consumed) => {
                    let Some(shares) = self.shares.get_mut(&id) else { continue };
                    shares.count -= 1;
                    for (name, amount) in consumed {
                        if let Some(total) = shares.consumed.get_mut(&name) {
                            total.subtract(&amount);
                        }
                    }
                    if shares.count == 0 {
                        self.shares.remove(&id);
                    }
                }
            }
        }
    }

    /// Whether it is allocated as a whole.
    pub fn is_whole(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id)
    }

    /// What others consume of a shared device; none if it has no shares.
    pub fn consumed(&self, id: &DeviceId) -> Option<&Amounts> {
        self.shares.get(id).map(|shares| &shares.consumed)
    }

    pub fn is_used(&self, id: &DeviceId) -> bool {
        self.is_whole(id) || self.shares.contains_key(id)
    }

    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.shares.is_empty()
    }
}

/// The devices of an allocation that others cannot have, and what it consumes of those it shares.
fn held(allocation: &AllocationResult) -> impl Iterator<Item = (DeviceId, Option<Amounts>)> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let held = results.filter(|result| result.admin_access != Some(true));
    held.map(|result| {
        let id = DeviceId::new(&result.driver, &result.pool, &result.device);
        let consumed = result.consumed_capacity.iter().flatten();
        let share =
            result.share_id.as_ref().map(|_| consumed.map(|(name, q)| (name.clone(), quantity::of(q))).collect());
        (id, share)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_added_can_be_removed() {
        let allocation = |device: &str, more: serde_json::Value| -> AllocationResult {
            let mut result = json!({"request": "r", "driver": "d", "pool": "p", "device": device});
            result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(json!({"devices": {"results": [result]}})).unwrap()
        };
        let whole = allocation("a", json!({}));
        let admin = allocation("b", json!({"adminAccess": true}));
        let share = |id: &str| allocation("c", json!({"shareID": id, "consumedCapacity": {"m": "1Gi"}}));
        let mut used = InUse::default();
        for one in [&whole, &whole, &admin, &share("1"), &share("2")] {
            used.add(one);
        }
        let id = |device| DeviceId::new("d", "p", device);
        assert!(used.is_whole(&id("a")) && !used.is_used(&id("b")) && !used.is_whole(&id("c")));
        assert_eq!(used.consumed(&id("c")).unwrap()["m"], quantity::Quantity::parse("2Gi").unwrap());
        for one in [&whole, &share("1")] {
            used.remove(one);
        }
        assert!(used.is_whole(&id("a")) && used.is_used(&id("c")));
        for one in [&whole, &admin, &share("2"), &share("3")] {
            used.remove(one);
        }
        assert_eq!(used, InUse::default());
    }
}
