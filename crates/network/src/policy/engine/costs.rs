//! Limits what the policies of each namespace cost on every node.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{CompiledPolicy, Engine, Peer, group_set, of_namespace, size};

/// The maximum cost of the selectors of one namespace's policies: each pod in a set costs one, each set a few more. Authors of
/// policies can write any number of selectors that match all pods of the cluster, and every node keeps the sets.
pub const MAX_COST: usize = 1 << 18;
const COST_OF_SET: usize = 256;

/// The cost of each namespace's sets, kept up to date: a new pod must not need a look at all sets of all namespaces.
#[derive(Default)]
pub struct Costs {
    /// Set → the namespaces whose policies reference it, with the number of references.
    users: HashMap<String, BTreeMap<String, usize>>,
    /// By namespace.
    costs: HashMap<String, usize>,
}

impl Costs {
    pub fn of(&self, namespace: &str) -> usize {
        self.costs.get(namespace).copied().unwrap_or_default()
    }

    fn is_user(&self, namespace: &str, set: &str) -> bool {
        self.users.get(set).is_some_and(|users| users.contains_key(namespace))
    }

    fn exceeded(&self) -> Vec<String> {
        self.costs.iter().filter(|(_, cost)| **cost > MAX_COST).map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Adds a reference to a set that has this size.
    pub fn refer(&mut self, namespace: &str, set: &str, size: usize) {
        let count = self.users.entry(set.to_owned()).or_default().entry(namespace.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            *self.costs.entry(namespace.to_owned()).or_default() += COST_OF_SET + size;
        }
    }

    /// Removes a reference to a set that has this size.
    pub fn leave(&mut self, namespace: &str, set: &str, size: usize) {
        let Some(users) = self.users.get_mut(set) else { return };
        let Some(count) = users.get_mut(namespace) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        users.remove(namespace);
        if users.is_empty() {
            self.users.remove(set);
        }
        let cost = self.of(namespace).saturating_sub(COST_OF_SET + size);
        match cost {
            0 => drop(self.costs.remove(namespace)),
            _ => drop(self.costs.insert(namespace.to_owned(), cost)),
        }
    }

    pub fn resize(&mut self, set: &str, before: usize, after: usize) {
        if before == after {
            return;
        }
        for namespace in self.users.get(set).into_iter().flat_map(BTreeMap::keys) {
            if let Some(cost) = self.costs.get_mut(namespace) {
                *cost = (*cost + after).saturating_sub(before);
            }
        }
    }
}

impl Engine {
    /// The policy without the selectors beyond the limit of its namespace: their pods are not let in.
    pub(super) fn fitted(&self, key: &str, policy: CompiledPolicy) -> CompiledPolicy {
        let namespace = policy.namespace.clone();
        let mut cost = self.costs.of(&namespace);
        self.fit(key, policy, &mut cost, &mut HashSet::new(), |set| self.costs.is_user(&namespace, set))
    }

    /// Fits the policies of namespaces whose sets have grown beyond the limit. Policies are fitted by their order, as after a
    /// restart. What they lose comes back only with their next change: pods that come and go must not write policies each time.
    pub(super) fn limit(&mut self) {
        for namespace in self.costs.exceeded() {
            let (mut cost, mut counted) = (0, HashSet::new());
            let keys: Vec<String> = of_namespace(&self.policies, &namespace).map(|(key, _)| key.clone()).collect();
            for key in keys {
                let Some(policy) = self.policies.get(&key).cloned() else { continue };
                let policy = self.fit(&key, policy, &mut cost, &mut counted, |_| false);
                self.set_policy(&key, Some(policy));
            }
        }
    }

    /// Removes selectors whose sets are neither free nor counted from the first on that costs too much.
    fn fit(
        &self,
        key: &str,
        mut policy: CompiledPolicy,
        cost: &mut usize,
        counted: &mut HashSet<String>,
        is_free: impl Fn(&str) -> bool,
    ) -> CompiledPolicy {
        let mut left_out = 0_usize;
        policy.retain_peers(|peer| {
            let Peer::Group(group) = peer else { return true };
            let set = group_set(group);
            if is_free(&set) || counted.contains(&set) {
                return true;
            }
            let is_affordable = *cost + COST_OF_SET <= MAX_COST && {
                let matching = self.pods.values().filter(|pod| self.is_in(group, &pod.member));
                *cost += COST_OF_SET
                    + match self.groups.contains_key(&set) {
                        true => size(&self.tables, &set),
                        false => matching.map(|pod| pod.member.addresses.len()).sum::<usize>(),
                    };
                *cost <= MAX_COST
            };
            match is_affordable {
                true => drop(counted.insert(set)),
                false => left_out += 1,
            }
            is_affordable
        });
        if left_out > 0 {
            tracing::warn!(
                policy = key,
                left_out,
                "the selectors of a namespace match too many pods; some of them let nobody in until the policy changes"
            );
        }
        policy
    }
}
