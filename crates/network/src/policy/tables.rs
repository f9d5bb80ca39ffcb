//! The desired and the current content of the policy tables; their difference is one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use crate::interfaces::POD_PREFIX;
use crate::proxy::Family;

pub const TABLE: &str = "knarr-policy";
/// Pods with restricted ingress, and their chains.
pub const INGRESS: &str = "ingress";
/// Pods with restricted egress, and their chains.
pub const EGRESS: &str = "egress";
/// Addresses of this node's pods whose rules are installed. Other pods are new, and have no network.
pub const KNOWN: &str = "known";
/// Pairs of equal addresses: no policy isolates a pod from itself.
pub const ITSELF: &str = "itself";

/// Commands that remove the tables of both families.
pub fn removal() -> String {
    [Family::V4, Family::V6].map(|family| delete_table(family.name())).concat()
}

fn delete_table(ip: &str) -> String {
    format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\n")
}

/// The variable content of a table.
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
    desired: Content,
    current: Content,
    /// Whether the kernel has what `current` says.
    is_there: bool,
    touched_chains: BTreeSet<String>,
    touched_sets: BTreeSet<String>,
    touched_elements: BTreeSet<(String, String)>,
    /// Reference counts of elements: an address may pass from pod to pod.
    shares: HashMap<(String, String), usize>,
}

impl Tables {
    pub fn new(family: Family) -> Self {
        Self {
            family,
            desired: Content::default(),
            current: Content::default(),
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

    /// Sets or removes a chain.
    pub fn set_chain(&mut self, name: &str, rules: Option<Vec<String>>) {
        match rules {
            Some(rules) => self.desired.chains.insert(name.to_owned(), rules),
            None => self.desired.chains.remove(name),
        };
        self.touched_chains.insert(name.to_owned());
    }

    pub fn add_set(&mut self, name: &str, declaration: String) {
        self.desired.sets.insert(name.to_owned(), declaration);
        self.touched_sets.insert(name.to_owned());
    }

    /// Removes a set with all its elements.
    pub fn remove_set(&mut self, name: &str) {
        self.desired.sets.remove(name);
        self.touched_sets.insert(name.to_owned());
        for (element, _) in self.desired.elements.remove(name).into_iter().flatten() {
            let place = (name.to_owned(), element);
            self.shares.remove(&place);
            self.touched_elements.insert(place);
        }
    }

    /// The number of elements of a set.
    pub fn size(&self, set: &str) -> usize {
        self.desired.elements.get(set).map_or(0, BTreeMap::len)
    }

    /// Adds an element to a set; one that is added twice must be removed twice.
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
        let elements = self.desired.elements.entry(map.to_owned()).or_default();
        match value {
            Some(value) => elements.insert(element.clone(), value),
            None => elements.remove(&element),
        };
        self.touched_elements.insert((map.to_owned(), element));
    }

    /// The commands that bring the kernel up to date; empty if it is.
    pub fn transaction(&self) -> String {
        let nothing = Content::default();
        let mut text = String::new();
        let current = if self.is_there {
            &self.current
        } else {
            text = base(self.family);
            &nothing
        };
        let all: (BTreeSet<String>, BTreeSet<String>, BTreeSet<(String, String)>);
        let (chains, sets, elements) = if self.is_there {
            (&self.touched_chains, &self.touched_sets, &self.touched_elements)
        } else {
            all = everything(&self.desired);
            (&all.0, &all.1, &all.2)
        };
        self.write_sets(&mut text, current, sets);
        self.write_chains(&mut text, current, chains);
        self.write_elements(&mut text, current, elements);
        self.write_removals(&mut text, current, chains, sets);
        text
    }

    fn write_sets(&self, text: &mut String, current: &Content, touched: &BTreeSet<String>) {
        let ip = self.family.name();
        for name in touched.iter().filter(|name| !current.sets.contains_key(*name)) {
            if let Some(declaration) = self.desired.sets.get(name) {
                let _ = writeln!(text, "add set {ip} {TABLE} {name} {declaration}");
            }
        }
    }

    fn write_chains(&self, text: &mut String, current: &Content, touched: &BTreeSet<String>) {
        let ip = self.family.name();
        // All new chains first: rules may jump to other chains.
        for name in touched.iter().filter(|name| !current.chains.contains_key(*name)) {
            if self.desired.chains.contains_key(name) {
                let _ = writeln!(text, "add chain {ip} {TABLE} {name}");
            }
        }
        for name in touched {
            let (before, Some(rules)) = (current.chains.get(name), self.desired.chains.get(name)) else { continue };
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

    fn write_elements(&self, text: &mut String, current: &Content, touched: &BTreeSet<(String, String)>) {
        let ip = self.family.name();
        let (mut gone, mut new) = (BTreeMap::<&str, Vec<&str>>::new(), BTreeMap::<&str, Vec<String>>::new());
        for (set, element) in touched {
            let before = current.elements.get(set).and_then(|elements| elements.get(element));
            let after = self.desired.elements.get(set).and_then(|elements| elements.get(element));
            if before == after {
                continue;
            }
            // Deleting a set deletes its elements.
            let is_set_going = current.sets.contains_key(set) && !self.desired.sets.contains_key(set);
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

    fn write_removals(&self, text: &mut String, current: &Content, chains: &BTreeSet<String>, sets: &BTreeSet<String>) {
        let ip = self.family.name();
        let gone = |name: &&String| current.chains.contains_key(*name) && !self.desired.chains.contains_key(*name);
        for name in chains.iter().filter(gone) {
            let _ = writeln!(text, "flush chain {ip} {TABLE} {name}");
        }
        for name in chains.iter().filter(gone) {
            let _ = writeln!(text, "delete chain {ip} {TABLE} {name}");
        }
        for name in
            sets.iter().filter(|name| current.sets.contains_key(*name) && !self.desired.sets.contains_key(*name))
        {
            let _ = writeln!(text, "delete set {ip} {TABLE} {name}");
        }
    }

    /// The kernel accepted the last transaction.
    pub fn installed(&mut self) {
        if !self.is_there {
            self.current = self.desired.clone();
            self.is_there = true;
        }
        for name in &self.touched_chains {
            match self.desired.chains.get(name) {
                Some(rules) => self.current.chains.insert(name.clone(), rules.clone()),
                None => self.current.chains.remove(name),
            };
        }
        for name in &self.touched_sets {
            match self.desired.sets.get(name) {
                Some(declaration) => drop(self.current.sets.insert(name.clone(), declaration.clone())),
                None => {
                    self.current.sets.remove(name);
                    self.current.elements.remove(name);
                }
            }
        }
        for (set, element) in &self.touched_elements {
            match self.desired.elements.get(set).and_then(|elements| elements.get(element)) {
                Some(value) => {
                    self.current.elements.entry(set.clone()).or_default().insert(element.clone(), value.clone());
                }
                None => {
                    if let Some(elements) = self.current.elements.get_mut(set) {
                        elements.remove(element);
                    }
                }
            }
        }
        self.touched_chains.clear();
        self.touched_sets.clear();
        self.touched_elements.clear();
    }

    /// The state of the kernel is unknown: the next transaction writes everything again.
    pub fn lost(&mut self) {
        self.is_there = false;
    }
}

fn everything(content: &Content) -> (BTreeSet<String>, BTreeSet<String>, BTreeSet<(String, String)>) {
    let elements = content.elements.iter();
    let elements = elements.flat_map(|(set, elements)| elements.keys().map(|element| (set.clone(), element.clone())));
    (content.chains.keys().cloned().collect(), content.sets.keys().cloned().collect(), elements.collect())
}

/// The empty table, created again. Each direction has its own hook: a packet must be accepted by both.
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
            format!("{way} \"{POD_PREFIX}*\" {ip} {side} != @{KNOWN} drop"),
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
    fn only_differences_are_written_and_in_order() {
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
        assert!(changes(&tables)[0].starts_with("add table"), "everything again");
    }
}
