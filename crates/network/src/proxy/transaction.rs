//! The difference between a Service's installed and desired rules, as nftables commands.
//!
//! Order matters within a transaction: a chain must exist before something jumps to it, and nothing may jump to it any more
//! before it is deleted.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::rules::{ENDPOINTS, Family, Rules, TABLE};
use super::shared_elements::Difference;

pub struct Transaction {
    family: Family,
    declarations: String,
    endpoints_gone: Elements,
    endpoints: Elements,
    rules: String,
    gone: Elements,
    elements: Elements,
    removals: [String; 3],
}

/// By map or set.
type Elements = BTreeMap<&'static str, Vec<String>>;

impl Transaction {
    pub fn new(family: Family) -> Self {
        Self {
            family,
            declarations: String::new(),
            endpoints_gone: Elements::new(),
            endpoints: Elements::new(),
            rules: String::new(),
            gone: Elements::new(),
            elements: Elements::new(),
            removals: Default::default(),
        }
    }

    /// Adds the change of one Service.
    pub fn add(&mut self, before: &Rules, after: &Rules) {
        if before == after {
            return;
        }
        self.declare(before, after);
        self.write_rules(before, after);
        self.change_elements(before, after);
        self.remove(before, after);
    }

    /// Adds the change of shared elements.
    pub fn add_shared(&mut self, set: &'static str, difference: Difference) {
        if !difference.gone.is_empty() {
            self.gone.entry(set).or_default().extend(difference.gone);
        }
        if !difference.new.is_empty() {
            self.elements.entry(set).or_default().extend(difference.new);
        }
    }

    /// All commands in order; empty if nothing differs.
    pub fn text(self) -> String {
        let ip = self.family.name();
        let mut text = self.declarations;
        write_elements(&mut text, ip, "delete", &self.endpoints_gone);
        write_elements(&mut text, ip, "add", &self.endpoints);
        text.push_str(&self.rules);
        write_elements(&mut text, ip, "delete", &self.gone);
        write_elements(&mut text, ip, "add", &self.elements);
        text.extend(self.removals);
        text
    }

    fn declare(&mut self, before: &Rules, after: &Rules) {
        let ip = self.family.name();
        for (name, declaration) in after.sets.iter().filter(|(name, _)| !before.sets.contains_key(*name)) {
            let _ = writeln!(self.declarations, "add set {ip} {TABLE} {name} {declaration}");
        }
        // All new chains first: rules may jump to other chains.
        for name in after.chains.keys().filter(|name| !before.chains.contains_key(*name)) {
            let _ = writeln!(self.declarations, "add chain {ip} {TABLE} {name}");
        }
    }

    fn write_rules(&mut self, before: &Rules, after: &Rules) {
        let ip = self.family.name();
        for (name, rules) in &after.chains {
            let old = before.chains.get(name);
            if old == Some(rules) {
                continue;
            }
            if old.is_some() {
                let _ = writeln!(self.rules, "flush chain {ip} {TABLE} {name}");
            }
            for rule in rules {
                let _ = writeln!(self.rules, "add rule {ip} {TABLE} {name} {rule}");
            }
        }
    }

    fn change_elements(&mut self, before: &Rules, after: &Rules) {
        for (place, value) in &before.elements {
            if after.elements.get(place) != Some(value) {
                let gone = if place.0 == ENDPOINTS { &mut self.endpoints_gone } else { &mut self.gone };
                gone.entry(place.0).or_default().push(place.1.clone());
            }
        }
        for (place, value) in &after.elements {
            if before.elements.get(place) != Some(value) {
                let new = if place.0 == ENDPOINTS { &mut self.endpoints } else { &mut self.elements };
                let value = if value.is_empty() { String::new() } else { format!(" : {value}") };
                new.entry(place.0).or_default().push(format!("{}{value}", place.1));
            }
        }
    }

    fn remove(&mut self, before: &Rules, after: &Rules) {
        let ip = self.family.name();
        let [flushes, chains, sets] = &mut self.removals;
        for name in before.chains.keys().filter(|name| !after.chains.contains_key(*name)) {
            let _ = writeln!(flushes, "flush chain {ip} {TABLE} {name}");
            let _ = writeln!(chains, "delete chain {ip} {TABLE} {name}");
        }
        for name in before.sets.keys().filter(|name| !after.sets.contains_key(*name)) {
            let _ = writeln!(sets, "delete set {ip} {TABLE} {name}");
        }
    }
}

fn write_elements(text: &mut String, ip: &str, verb: &str, elements: &Elements) {
    for (map, elements) in elements {
        let _ = writeln!(text, "{verb} element {ip} {TABLE} {map} {{ {} }}", elements.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(chain: &str, rule: &str, endpoint: &str) -> Rules {
        let mut rules = Rules::default();
        rules.chains.insert(chain.to_owned(), vec![rule.to_owned()]);
        rules.elements.insert(("services", "10.96.0.1 . tcp . 80".to_owned()), format!("goto {chain}"));
        rules.elements.insert((ENDPOINTS, "7".to_owned()), endpoint.to_owned());
        rules
    }

    fn change(before: &Rules, after: &Rules) -> Vec<String> {
        let mut transaction = Transaction::new(Family::V4);
        transaction.add(before, after);
        transaction.text().lines().map(|line| line.replace(" ip knarr-proxy", "")).collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let before = rules("a", "accept", "10.0.0.1 . 80");
        assert!(change(&before, &before).is_empty());
        assert_eq!(
            change(&before, &rules("a", "drop", "10.0.0.1 . 80")),
            ["flush chain a", "add rule a drop"],
            "only a rule"
        );
        assert_eq!(
            change(&before, &rules("a", "accept", "10.0.0.2 . 80")),
            ["delete element endpoints { 7 }", "add element endpoints { 7 : 10.0.0.2 . 80 }"],
            "only an endpoint"
        );
    }

    #[test]
    fn objects_are_created_and_deleted_in_order() {
        let whole = rules("a", "accept", "10.0.0.1 . 80");
        assert_eq!(
            change(&Rules::default(), &whole),
            [
                "add chain a",
                "add element endpoints { 7 : 10.0.0.1 . 80 }",
                "add rule a accept",
                "add element services { 10.96.0.1 . tcp . 80 : goto a }",
            ]
        );
        assert_eq!(
            change(&whole, &Rules::default()),
            [
                "delete element endpoints { 7 }",
                "delete element services { 10.96.0.1 . tcp . 80 }",
                "flush chain a",
                "delete chain a",
            ]
        );
    }
}
