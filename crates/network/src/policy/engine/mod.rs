//! Computes the nftables content for pods, namespaces and policies incrementally: a change touches only what depends on it.

mod costs;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use knarr_client::selector::Labels;

use super::compiled::{CompiledPolicy, Group, Peer, Port};
use super::member::PolicyPod;
use super::render::{Direction, chains, group_set, policy_chain, port_set, short_hash};
use super::tables::{ITSELF, KNOWN, Tables};
use crate::protocol::Protocol;
use crate::proxy::Family;
use costs::Costs;

pub struct Engine {
    tables: [Tables; 2],
    namespaces: HashMap<String, Labels>,
    /// By namespace/name, as policies.
    pods: BTreeMap<String, PodChains>,
    policies: BTreeMap<String, CompiledPolicy>,
    /// Sets of pods that rules reference.
    groups: BTreeMap<String, RefCounted<Group>>,
    costs: Costs,
    /// Sets of named ports that rules reference, by protocol and name.
    ports: BTreeMap<String, RefCounted<(Protocol, String)>>,
    /// Chains that combine several policies, with the number of pods that use each.
    combined: HashMap<String, usize>,
}

/// A pod and its chains.
struct PodChains {
    member: PolicyPod,
    chains: [Option<String>; 2],
}

struct RefCounted<T> {
    value: T,
    users: usize,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            tables: [Tables::new(Family::V4), Tables::new(Family::V6)],
            namespaces: HashMap::new(),
            pods: BTreeMap::new(),
            policies: BTreeMap::new(),
            groups: BTreeMap::new(),
            costs: Costs::default(),
            ports: BTreeMap::new(),
            combined: HashMap::new(),
        }
    }
}

impl Engine {
    pub fn transaction(&self) -> String {
        self.tables.iter().map(Tables::transaction).collect()
    }

    pub fn installed(&mut self) {
        self.tables.iter_mut().for_each(Tables::installed);
    }

    pub fn lost(&mut self) {
        self.tables.iter_mut().for_each(Tables::lost);
    }

    /// Whether a pod is known with all of these addresses.
    pub fn knows(&self, key: &str, addresses: &[IpAddr]) -> bool {
        let member = self.pods.get(key).map(|pod| &pod.member);
        member.is_some_and(|member| addresses.iter().all(|address| member.addresses.contains(address)))
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        if self.namespaces.get(name) == labels.as_ref() {
            return;
        }
        let old = self.namespaces.remove(name);
        if let Some(labels) = &labels {
            self.namespaces.insert(name.to_owned(), labels.clone());
        }
        let pods: Vec<PolicyPod> = of_namespace(&self.pods, name).map(|(_, pod)| pod.member.clone()).collect();
        for member in pods {
            for (set, group) in self.groups.iter().filter(|(_, group)| group.value.depends_on_namespaces()) {
                let was = group.value.contains(&member, old.as_ref());
                let is = group.value.contains(&member, labels.as_ref());
                if was != is {
                    change_group(&mut self.tables, &mut self.costs, set, &member, is);
                }
            }
            // After each pod: all of them together may exceed the limit many times.
            self.limit();
        }
    }

    pub fn set_pod(&mut self, key: &str, member: Option<PolicyPod>) {
        if self.pods.get(key).map(|pod| &pod.member) == member.as_ref() {
            return;
        }
        if let Some(pod) = self.pods.remove(key) {
            self.count_pod(&pod.member, false);
            self.free(&pod);
        }
        if let Some(member) = member {
            self.count_pod(&member, true);
            let pod = self.isolate(member);
            self.pods.insert(key.to_owned(), pod);
            self.limit();
        }
    }

    pub fn set_policy(&mut self, key: &str, policy: Option<CompiledPolicy>) {
        if self.policies.get(key) == policy.as_ref() {
            return;
        }
        let old = self.policies.remove(key);
        let policy = policy.map(|policy| self.fitted(key, policy));
        // Add references of the new policy before releasing those of the old one: shared groups stay.
        if let Some(policy) = &policy {
            self.use_sets(policy);
            self.write_policy(key, policy);
            self.policies.insert(key.to_owned(), policy.clone());
        }
        let concerned: Vec<String> = {
            let both = [old.as_ref(), policy.as_ref()];
            let namespace = key.split('/').next().unwrap_or_default();
            let is_concerned = |pod: &PodChains| both.iter().flatten().any(|policy| policy.is_for(&pod.member));
            of_namespace(&self.pods, namespace)
                .filter(|(_, pod)| pod.member.is_local && is_concerned(pod))
                .map(|(key, _)| key.clone())
                .collect()
        };
        for key in concerned {
            if let Some(pod) = self.pods.remove(&key) {
                self.free(&pod);
                let pod = self.isolate(pod.member);
                self.pods.insert(key, pod);
            }
        }
        if let Some(old) = old {
            for tables in &mut self.tables {
                let still = policy.as_ref().map(|policy| chains_of(key, policy, tables.family())).unwrap_or_default();
                for chain in
                    chains_of(key, &old, tables.family()).into_keys().filter(|chain| !still.contains_key(chain))
                {
                    tables.set_chain(&chain, None);
                }
            }
            self.leave_sets(&old);
        }
    }

    fn is_in(&self, group: &Group, member: &PolicyPod) -> bool {
        group.contains(member, self.namespaces.get(&member.namespace))
    }

    /// Adds a pod to all matching sets, or removes it from them.
    fn count_pod(&mut self, member: &PolicyPod, is_there: bool) {
        let labels = self.namespaces.get(&member.namespace);
        for (set, group) in &self.groups {
            if group.value.contains(member, labels) {
                change_group(&mut self.tables, &mut self.costs, set, member, is_there);
            }
        }
        for (set, port) in &self.ports {
            change_ports(&mut self.tables, set, &port.value, member, is_there);
        }
    }

    /// Maps a pod's addresses to the chain of all policies that select it.
    fn isolate(&mut self, member: PolicyPod) -> PodChains {
        let mut chains = [None, None];
        if !member.is_local {
            return PodChains { member, chains };
        }
        change_addresses(&mut self.tables, KNOWN, &member, true);
        for (direction, chain) in Direction::BOTH.into_iter().zip(&mut chains) {
            let of_pod = of_namespace(&self.policies, &member.namespace)
                .filter(|(_, policy)| direction.rules(policy).is_some() && policy.is_for(&member));
            let names: Vec<String> = of_pod.map(|(key, _)| policy_chain(key, direction)).collect();
            if names.is_empty() {
                continue;
            }
            let name = format!("all-{}-{}", direction.name(), short_hash(&names.join(" ")));
            let users = self.combined.entry(name.clone()).or_default();
            *users += 1;
            if *users == 1 {
                let rules: Vec<String> =
                    names.iter().map(|name| format!("jump {name}")).chain(["drop".to_owned()]).collect();
                self.tables.iter_mut().for_each(|tables| tables.set_chain(&name, Some(rules.clone())));
            }
            for address in &member.addresses {
                let tables = &mut self.tables[usize::from(address.is_ipv6())];
                tables.set_element(direction.map(), address.to_string(), Some(format!("goto {name}")));
                tables.add_element(ITSELF, format!("{address} . {address}"));
            }
            *chain = Some(name);
        }
        PodChains { member, chains }
    }

    /// Removes a pod's map elements. An address that another pod has got already stays mapped to that pod's chain.
    fn free(&mut self, pod: &PodChains) {
        if pod.member.is_local {
            change_addresses(&mut self.tables, KNOWN, &pod.member, false);
        }
        for (index, (direction, chain)) in Direction::BOTH.into_iter().zip(&pod.chains).enumerate() {
            let Some(chain) = chain else { continue };
            for address in &pod.member.addresses {
                let heir =
                    self.pods.values().find(|other| other.member.is_local && other.member.addresses.contains(address));
                let target = heir.and_then(|heir| heir.chains[index].as_ref()).map(|chain| format!("goto {chain}"));
                let tables = &mut self.tables[usize::from(address.is_ipv6())];
                tables.set_element(direction.map(), address.to_string(), target);
                tables.remove_element(ITSELF, format!("{address} . {address}"));
            }
            let users = self.combined.entry(chain.clone()).or_default();
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.combined.remove(chain);
                self.tables.iter_mut().for_each(|tables| tables.set_chain(chain, None));
            }
        }
    }

    fn write_policy(&mut self, key: &str, policy: &CompiledPolicy) {
        for tables in &mut self.tables {
            for (chain, lines) in chains_of(key, policy, tables.family()) {
                tables.set_chain(&chain, Some(lines));
            }
        }
    }

    fn use_sets(&mut self, policy: &CompiledPolicy) {
        for group in groups_of(policy) {
            let set = group_set(group);
            if let Some(used) = self.groups.get_mut(&set) {
                used.users += 1;
                self.costs.refer(&policy.namespace, &set, size(&self.tables, &set));
                continue;
            }
            for tables in &mut self.tables {
                tables.add_set(&set, format!("{{ type {} ; }}", tables.family().address_type()));
            }
            for pod in self.pods.values() {
                if group.contains(&pod.member, self.namespaces.get(&pod.member.namespace)) {
                    change_addresses(&mut self.tables, &set, &pod.member, true);
                }
            }
            self.costs.refer(&policy.namespace, &set, size(&self.tables, &set));
            self.groups.insert(set, RefCounted { value: group.clone(), users: 1 });
        }
        for port in named_ports_of(policy) {
            let set = port_set(&port);
            if let Some(used) = self.ports.get_mut(&set) {
                used.users += 1;
                continue;
            }
            for tables in &mut self.tables {
                tables.add_set(&set, format!("{{ type {} . inet_service ; }}", tables.family().address_type()));
            }
            for pod in self.pods.values() {
                change_ports(&mut self.tables, &set, &port, &pod.member, true);
            }
            self.ports.insert(set, RefCounted { value: port, users: 1 });
        }
    }

    fn leave_sets(&mut self, policy: &CompiledPolicy) {
        for set in groups_of(policy).map(group_set) {
            self.costs.leave(&policy.namespace, &set, size(&self.tables, &set));
            if leave(&mut self.groups, &set) {
                self.tables.iter_mut().for_each(|tables| tables.remove_set(&set));
            }
        }
        for set in named_ports_of(policy).map(|port| port_set(&port)) {
            if leave(&mut self.ports, &set) {
                self.tables.iter_mut().for_each(|tables| tables.remove_set(&set));
            }
        }
    }
}

/// The chains of a policy in both directions.
fn chains_of(key: &str, policy: &CompiledPolicy, family: Family) -> BTreeMap<String, Vec<String>> {
    let of = |direction: Direction| Some(chains(key, direction.rules(policy)?, direction, family));
    Direction::BOTH.into_iter().filter_map(of).flatten().collect()
}

/// Releases a reference. Returns whether it was the last one.
fn leave<T>(all: &mut BTreeMap<String, RefCounted<T>>, name: &str) -> bool {
    let Some(used) = all.get_mut(name) else { return false };
    used.users -= 1;
    let is_last = used.users == 0;
    if is_last {
        all.remove(name);
    }
    is_last
}

/// The entries of a namespace, by keys of the form namespace/name.
fn of_namespace<'a, T>(all: &'a BTreeMap<String, T>, namespace: &str) -> impl Iterator<Item = (&'a String, &'a T)> {
    // '0' is the character after '/'.
    all.range(format!("{namespace}/")..format!("{namespace}0"))
}

/// The number of addresses in a set.
fn size(tables: &[Tables; 2], set: &str) -> usize {
    tables.iter().map(|tables| tables.size(set)).sum()
}

/// Adds a pod to a set of pods, or removes it.
fn change_group(tables: &mut [Tables; 2], costs: &mut Costs, set: &str, member: &PolicyPod, is_there: bool) {
    let before = size(tables, set);
    change_addresses(tables, set, member, is_there);
    costs.resize(set, before, size(tables, set));
}

fn change_addresses(tables: &mut [Tables; 2], set: &str, member: &PolicyPod, is_there: bool) {
    for address in &member.addresses {
        change(&mut tables[usize::from(address.is_ipv6())], set, address.to_string(), is_there);
    }
}

fn change_ports(
    tables: &mut [Tables; 2],
    set: &str,
    (protocol, name): &(Protocol, String),
    member: &PolicyPod,
    is_there: bool,
) {
    let ports = member.named_ports.iter().filter(|port| port.protocol == *protocol && port.name == *name);
    for number in ports.map(|port| port.number).collect::<BTreeSet<u16>>() {
        for address in &member.addresses {
            change(&mut tables[usize::from(address.is_ipv6())], set, format!("{address} . {number}"), is_there);
        }
    }
}

fn change(tables: &mut Tables, set: &str, element: String, is_there: bool) {
    if is_there {
        tables.add_element(set, element);
    } else {
        tables.remove_element(set, element);
    }
}

fn groups_of(policy: &CompiledPolicy) -> impl Iterator<Item = &Group> {
    policy.rules().flat_map(|rule| rule.peers.iter().flatten()).filter_map(|peer| match peer {
        Peer::Group(group) => Some(group),
        Peer::Block { .. } => None,
    })
}

fn named_ports_of(policy: &CompiledPolicy) -> impl Iterator<Item = (Protocol, String)> {
    policy.rules().flat_map(|rule| rule.ports.iter().flatten()).filter_map(|port| match port {
        Port::Named { protocol, name } => Some((*protocol, name.clone())),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
