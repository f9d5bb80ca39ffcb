//! Counters that devices of a pool share: the partitions of a device cannot consume more than the device has.

use std::collections::HashMap;

use super::in_use::InUse;
use super::pool::Pool;
use super::slice::{Amounts, Device};

/// What is left of the counters of one pool.
pub struct Counters {
    left: HashMap<String, Amounts>,
}

impl Counters {
    /// The pool's counters without what its allocated devices consume; that can be more than there is.
    pub fn of(pool: &Pool, in_use: &InUse) -> Self {
        let mut counters = Counters { left: pool.counters.clone() };
        if !counters.left.is_empty() {
            let devices = pool.slices.iter().chain(&pool.elsewhere).flat_map(|slice| &slice.devices);
            for device in devices.into_iter().filter(|device| in_use.is_used(&device.id)) {
                counters.change(device, false);
            }
        }
        counters
    }

    /// Consumes what the device consumes, if it is there.
    pub fn reserve(&mut self, device: &Device) -> bool {
        self.change(device, false);
        let is_left = self.left.values().flat_map(|amounts| amounts.values()).all(|amount| !amount.is_negative());
        if !is_left {
            self.release(device);
        }
        is_left
    }

    pub fn release(&mut self, device: &Device) {
        self.change(device, true);
    }

    fn change(&mut self, device: &Device, gives: bool) {
        for (set, amounts) in &device.consumes {
            let Some(left) = self.left.get_mut(set) else { continue };
            for (name, amount) in amounts {
                if let Some(left) = left.get_mut(name) {
                    if gives { left.add(amount) } else { left.subtract(amount) }
                }
            }
        }
    }
}
