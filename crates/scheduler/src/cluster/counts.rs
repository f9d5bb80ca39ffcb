//! Counts pods under each value of a topology label, and maintains the minimum.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Counts above zero by topology value. A value without pods is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_value: HashMap<Arc<str>, i64>,
    /// How many values have each count, so that the minimum is found without a scan.
    values_with: BTreeMap<i64, usize>,
}

impl Counts {
    pub fn get(&self, value: &str) -> i64 {
        self.by_value.get(value).copied().unwrap_or(0)
    }

    /// Values with at least one pod.
    pub fn len(&self) -> usize {
        self.by_value.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_value.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.by_value.iter().map(|(value, count)| (&**value, *count))
    }

    pub fn change(&mut self, value: &str, by: i64) {
        let before = self.get(value);
        let after = (before + by).max(0);
        if before == after {
            return;
        }
        if before > 0 {
            self.forget_count(before);
        }
        if after > 0 {
            *self.values_with.entry(after).or_default() += 1;
        }
        match self.by_value.get_mut(value) {
            Some(_) if after == 0 => {
                self.by_value.remove(value);
            }
            Some(count) => *count = after,
            None => {
                self.by_value.insert(value.into(), after);
            }
        }
    }

    /// The minimum over `domains` values, of which those without pods count zero.
    pub fn min(&self, domains: usize) -> i64 {
        if domains > self.by_value.len() {
            return 0;
        }
        self.values_with.keys().next().copied().unwrap_or(0)
    }

    /// The minimum over `domains` values without this one.
    pub fn min_of_others(&self, value: &str, domains: usize) -> Option<i64> {
        let own = self.get(value);
        let others_with_pods = self.by_value.len() - usize::from(own > 0);
        let others = domains.saturating_sub(1);
        if others == 0 {
            return None;
        }
        if others > others_with_pods {
            return Some(0);
        }
        self.values_with.iter().find(|(count, values)| **count != own || **values > 1).map(|(count, _)| *count)
    }

    /// Whether no other value has pods.
    pub fn has_only(&self, value: &str) -> bool {
        self.by_value.len() == usize::from(self.get(value) > 0)
    }

    fn forget_count(&mut self, count: i64) {
        if let Some(values) = self.values_with.get_mut(&count) {
            *values -= 1;
            if *values == 0 {
                self.values_with.remove(&count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_is_maintained_through_changes() {
        let mut counts = Counts::default();
        for (value, by, min_of_two, min_of_three) in
            [("a", 2, 0, 0), ("b", 1, 1, 0), ("b", 2, 2, 0), ("c", 5, 2, 2), ("a", -2, 3, 0), ("c", -4, 1, 0)]
        {
            counts.change(value, by);
            assert_eq!(counts.min(3), min_of_three, "{value} {by}");
            assert_eq!(counts.min(2), min_of_two, "{value} {by}");
        }
    }

    #[test]
    fn others_leave_one_value_out() {
        let mut counts = Counts::default();
        counts.change("a", 1);
        counts.change("b", 1);
        counts.change("c", 3);
        for (value, domains, min) in
            [("a", 3, Some(1)), ("c", 3, Some(1)), ("a", 4, Some(0)), ("new", 4, Some(1)), ("a", 1, None)]
        {
            assert_eq!(counts.min_of_others(value, domains), min, "{value} of {domains}");
        }
    }
}
