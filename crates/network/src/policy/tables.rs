//! The tables as they should be and as the kernel has them; the difference is one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use crate::cni::guard::INTERFACES;
use crate::proxy::Family;

pub const TABLE: &str = "knarr-policy";
/// Pods that may receive from some only, and their chains.
pub const INGRESS: &str = "ingress";
/// Pods that may send to some only, and their chains.
pub const EGRESS: &str = "egress";
/// Addresses of this node's pods whose rules are here. Others are new, and reach nobody.
pub const KNOWN: &str = "known";
/// Pairs of equal addresses: no policy keeps a pod from itself.
pub const ITSELF: &str = "itself";

/// Takes the tables of both families away.
pub fn removal() -> String {
    [Family::V4, Family::V6].map(|family| delete_table(family.name())).concat()
}

fn delete_table(ip: &str) -> String {
    format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\n")
}

/// What a table holds besides what is always there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    chains: BTreeMap<String, Vec<String>>,
    /// Set → its declaration.
    sets: BTreeMap<String, String>,
    /// Map or set → key → value (empty for a set).
    elements: BTreeMap<String, BTreeMap<String, String>>,
}

pub struct Tables {
    family: Family,
    wanted: Content,
    held: Content,
    /// Whether the kernel has what `held` says.
    is_there: bool,
    touched_chains: BTreeSet<String>,
    touched_sets: BTreeSet<String>,
    touched_elements: BTreeSet<(String, String)>,
    /// How many want an element, when more than one may: addresses pass from pod to pod.
    shares: HashMap<(String, String), usize>,
}

impl Tables {
    pub fn new(family: Family) -> Self {
        Self {
            family,
            wanted: Content::default(),
            held: Content::default(),
            is_there: false,
            touched_chains: BTreeSet::new(),
            touched_sets: BTreeSet::new(),
            touched_elements: BTreeSet::new(),
            shares: HashMap::new(),
        }
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Puts a chain in place, or takes it away.
    pub fn set_chain(&mut self, name: &str, rules: Option<Vec<String>>) {
        match rules {
            Some(rules) => self.wanted.chains.insert(name.to_owned(), rules),
            None => self.wanted.chains.remove(name),
        };
        self.touched_chains.insert(name.to_owned());
    }

    pub fn add_set(&mut self, name: &str, declaration: String) {
        self.wanted.sets.insert(name.to_owned(), declaration);
        self.touched_sets.insert(name.to_owned());
    }

    /// Takes a set away with all that is in it.
    pub fn remove_set(&mut self, name: &str) {
        self.wanted.sets.remove(name);
        self.touched_sets.insert(name.to_owned());
        for (element, _) in self.wanted.elements.remove(name).into_iter().flatten() {
            let place = (name.to_owned(), element);
            self.shares.remove(&place);
            self.touched_elements.insert(place);
        }
    }

    /// Adds to a set; what is added twice must be removed twice.
    pub fn add_element(&mut self, set: &str, element: String) {
        *self.shares.entry((set.to_owned(), element.clone())).or_default() += 1;
        self.set_element(set, element, Some(String::new()));
    }

    pub fn remove_element(&mut self, set: &str, element: String) {
        let place = (set.to_owned(), element);
        let Some(count) = self.shares.get_mut(&place) else { return };
        *count -= 1;
        if *count == 0 {
            self.shares.remove(&place);
            self.set_element(set, place.1, None);
        }
    }

    /// Sets or removes an element of a map.
    pub fn set_element(&mut self, map: &str, element: String, value: Option<String>) {
        let elements = self.wanted.elements.entry(map.to_owned()).or_default();
        match value {
            Some(value) => elements.insert(element.clone(), value),
            None => elements.remove(&element),
        };
        self.touched_elements.insert((map.to_owned(), element));
    }

    /// What the kernel must be told; nothing when it has all.
    pub fn transaction(&self) -> String {
        let nothing = Content::default();
        let mut text = String::new();
        let held = if self.is_there {
            &self.held
        } else {
            text = base(self.family);
            &nothing
        };
        let all: (BTreeSet<String>, BTreeSet<String>, BTreeSet<(String, String)>);
        let (chains, sets, elements) = if self.is_there {
            (&self.touched_chains, &self.touched_sets, &self.touched_elements)
        } else {
            all = everything(&self.wanted);
            (&all.0, &all.1, &all.2)
        };
        self.write_sets(&mut text, held, sets);
        self.write_chains(&mut text, held, chains);
        self.write_elements(&mut text, held, elements);
        self.write_removals(&mut text, held, chains, sets);
        text
    }

    fn write_sets(&self, text: &mut String, held: &Content, touched: &BTreeSet<String>) {
        let ip = self.family.name();
        for name in touched.iter().filter(|name| !held.sets.contains_key(*name)) {
            if let Some(declaration) = self.wanted.sets.get(name) {
                let _ = writeln!(text, "add set {ip} {TABLE} {name} {declaration}");
            }
        }
    }

    fn write_chains(&self, text: &mut String, held: &Content, touched: &BTreeSet<String>) {
        let ip = self.family.name();
        // All new chains first: their rules may lead to one another.
        for name in touched.iter().filter(|name| !held.chains.contains_key(*name)) {
            if self.wanted.chains.contains_key(name) {
                let _ = writeln!(text, "add chain {ip} {TABLE} {name}");
            }
        }
        for name in touched {
            let (before, Some(rules)) = (held.chains.get(name), self.wanted.chains.get(name)) else { continue };
            if before == Some(rules) {
                continue;
            }
            if before.is_some() {
                let _ = writeln!(text, "flush chain {ip} {TABLE} {name}");
            }
            for rule in rules {
                let _ = writeln!(text, "add rule {ip} {TABLE} {name} {rule}");
            }
        }
    }

    fn write_elements(&self, text: &mut String, held: &Content, touched: &BTreeSet<(String, String)>) {
        let ip = self.family.name();
        let (mut gone, mut new) = (BTreeMap::<&str, Vec<&str>>::new(), BTreeMap::<&str, Vec<String>>::new());
        for (set, element) in touched {
            let before = held.elements.get(set).and_then(|elements| elements.get(element));
            let after = self.wanted.elements.get(set).and_then(|elements| elements.get(element));
            if before == after {
                continue;
            }
            // A set that goes takes its elements along.
            let is_set_going = held.sets.contains_key(set) && !self.wanted.sets.contains_key(set);
            if before.is_some() && !is_set_going {
                gone.entry(set).or_default().push(element);
            }
            if let Some(value) = after {
                let value = if value.is_empty() { String::new() } else { format!(" : {value}") };
                new.entry(set).or_default().push(format!("{element}{value}"));
            }
        }
        for (set, elements) in gone {
            let _ = writeln!(text, "delete element {ip} {TABLE} {set} {{ {} }}", elements.join(", "));
        }
        for (set, elements) in new {
            let _ = writeln!(text, "add element {ip} {TABLE} {set} {{ {} }}", elements.join(", "));
        }
    }

    fn write_removals(&self, text: &mut String, held: &Content, chains: &BTreeSet<String>, sets: &BTreeSet<String>) {
        let ip = self.family.name();
        let gone = |name: &&String| held.chains.contains_key(*name) && !self.wanted.chains.contains_key(*name);
        for name in chains.iter().filter(gone) {
            let _ = writeln!(text, "flush chain {ip} {TABLE} {name}");
        }
        for name in chains.iter().filter(gone) {
            let _ = writeln!(text, "delete chain {ip} {TABLE} {name}");
        }
        for name in sets.iter().filter(|name| held.sets.contains_key(*name) && !self.wanted.sets.contains_key(*name)) {
            let _ = writeln!(text, "delete set {ip} {TABLE} {name}");
        }
    }

    /// The kernel took the last transaction.
    pub fn installed(&mut self) {
        if !self.is_there {
            self.held = self.wanted.clone();
            self.is_there = true;
        }
        for name in &self.touched_chains {
            match self.wanted.chains.get(name) {
                Some(rules) => self.held.chains.insert(name.clone(), rules.clone()),
                None => self.held.chains.remove(name),
            };
        }
        for name in &self.touched_sets {
            match self.wanted.sets.get(name) {
                Some(declaration) => drop(self.held.sets.insert(name.clone(), declaration.clone())),
                None => {
                    self.held.sets.remove(name);
                    self.held.elements.remove(name);
                }
            }
        }
        for (set, element) in &self.touched_elements {
            match self.wanted.elements.get(set).and_then(|elements| elements.get(element)) {
                Some(value) => {
                    self.held.elements.entry(set.clone()).or_default().insert(element.clone(), value.clone());
                }
                None => {
                    if let Some(elements) = self.held.elements.get_mut(set) {
                        elements.remove(element);
                    }
                }
            }
        }
        self.touched_chains.clear();
        self.touched_sets.clear();
        self.touched_elements.clear();
    }

    /// What the kernel has is not known: the next transaction makes all anew.
    pub fn lost(&mut self) {
        self.is_there = false;
    }
}

fn everything(content: &Content) -> (BTreeSet<String>, BTreeSet<String>, BTreeSet<(String, String)>) {
    let elements = content.elements.iter();
    let elements = elements.flat_map(|(set, elements)| elements.keys().map(|element| (set.clone(), element.clone())));
    (content.chains.keys().cloned().collect(), content.sets.keys().cloned().collect(), elements.collect())
}

/// The empty table, made anew. Each direction has a hook of its own: to be accepted by one is not yet to be accepted.
fn base(family: Family) -> String {
    let (ip, address) = (family.name(), family.address_type());
    let mut text = delete_table(ip);
    let _ = writeln!(text, "add table {ip} {TABLE}");
    let _ = writeln!(text, "add set {ip} {TABLE} {ITSELF} {{ type {address} . {address} ; }}");
    let _ = writeln!(text, "add set {ip} {TABLE} {KNOWN} {{ type {address} ; }}");
    for (map, side, way, priority) in [(EGRESS, "saddr", "iifname", -6), (INGRESS, "daddr", "oifname", -5)] {
        let _ = writeln!(text, "add map {ip} {TABLE} {map} {{ type {address} : verdict ; }}");
        let chain = format!("check-{map}");
        let _ = writeln!(text, "add chain {ip} {TABLE} {chain} {{ type filter hook forward priority {priority} ; }}");
        for rule in [
            "ct state established,related accept".to_owned(),
            format!("{way} \"{INTERFACES}*\" {ip} {side} != @{KNOWN} drop"),
            format!("{ip} saddr . {ip} daddr @{ITSELF} accept"),
            format!("{ip} {side} vmap @{map}"),
        ] {
            let _ = writeln!(text, "add rule {ip} {TABLE} {chain} {rule}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(tables: &Tables) -> Vec<String> {
        tables.transaction().lines().map(|line| line.replace(" ip knarr-policy", "")).collect()
    }

    #[test]
    fn only_differences_are_told_and_in_order() {
        let mut tables = Tables::new(Family::V4);
        tables.set_chain("a", Some(vec!["ip saddr @s accept".into(), "drop".into()]));
        tables.add_set("s", "{ type ipv4_addr ; }".into());
        tables.add_element("s", "10.0.0.1".into());
        tables.set_element(INGRESS, "10.0.0.9".into(), Some("goto a".into()));
        assert!(changes(&tables).ends_with(&[
            "add set s { type ipv4_addr ; }".into(),
            "add chain a".into(),
            "add rule a ip saddr @s accept".into(),
            "add rule a drop".into(),
            "add element ingress { 10.0.0.9 : goto a }".into(),
            "add element s { 10.0.0.1 }".into(),
        ]));
        tables.installed();
        assert!(changes(&tables).is_empty());
        tables.add_element("s", "10.0.0.1".into());
        tables.remove_element("s", "10.0.0.1".into());
        assert!(changes(&tables).is_empty(), "another still wants it");
        tables.remove_element("s", "10.0.0.1".into());
        tables.add_element("s", "10.0.0.2".into());
        assert_eq!(changes(&tables), ["delete element s { 10.0.0.1 }", "add element s { 10.0.0.2 }"]);
        tables.installed();
        tables.set_element(INGRESS, "10.0.0.9".into(), None);
        tables.set_chain("a", None);
        tables.remove_set("s");
        assert_eq!(
            changes(&tables),
            ["delete element ingress { 10.0.0.9 }", "flush chain a", "delete chain a", "delete set s"]
        );
        tables.lost();
        assert!(changes(&tables)[0].starts_with("add table"), "all anew");
    }
}
