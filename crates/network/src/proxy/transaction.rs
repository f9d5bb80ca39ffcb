//! The difference between what the kernel holds for a service and what it should hold, as nftables commands.
//!
//! Order matters within a transaction: what is led to must exist before it is led to, and must not be led to any more
//! before it goes.

use std::fmt::Write;

use super::rules::{Family, Rules, TABLE};

/// Appends the commands; nothing when there is no difference.
pub fn write(text: &mut String, family: Family, before: &Rules, after: &Rules) {
    if before == after {
        return;
    }
    let ip = family.name();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    for (name, declaration) in &after.sets {
        if !before.sets.contains_key(name) {
            line(format!("add set {ip} {TABLE} {name} {declaration}"));
        }
    }
    // All new chains first: their rules may lead to one another.
    for name in after.chains.keys() {
        if !before.chains.contains_key(name) {
            line(format!("add chain {ip} {TABLE} {name}"));
        }
    }
    for (name, rules) in &after.chains {
        let old = before.chains.get(name);
        if old == Some(rules) {
            continue;
        }
        if old.is_some() {
            line(format!("flush chain {ip} {TABLE} {name}"));
        }
        for rule in rules {
            line(format!("add rule {ip} {TABLE} {name} {rule}"));
        }
    }
    for ((map, key), value) in &before.elements {
        if after.elements.get(&(*map, key.clone())) != Some(value) {
            line(format!("delete element {ip} {TABLE} {map} {{ {key} }}"));
        }
    }
    for ((map, key), value) in &after.elements {
        if before.elements.get(&(*map, key.clone())) != Some(value) {
            let value = if value.is_empty() { String::new() } else { format!(" : {value}") };
            line(format!("add element {ip} {TABLE} {map} {{ {key}{value} }}"));
        }
    }
    let gone: Vec<&String> = before.chains.keys().filter(|name| !after.chains.contains_key(*name)).collect();
    for name in &gone {
        line(format!("flush chain {ip} {TABLE} {name}"));
    }
    for name in gone {
        line(format!("delete chain {ip} {TABLE} {name}"));
    }
    for name in before.sets.keys().filter(|name| !after.sets.contains_key(*name)) {
        line(format!("delete set {ip} {TABLE} {name}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(chain: &str, rule: &str, target: &str) -> Rules {
        let mut rules = Rules::default();
        rules.chains.insert(chain.to_owned(), vec![rule.to_owned()]);
        rules.elements.insert(("services", "10.96.0.1 . tcp . 80".to_owned()), format!("goto {target}"));
        rules
    }

    #[test]
    fn only_what_differs_is_written() {
        let (before, after) = (rules("a", "accept", "a"), rules("a", "drop", "a"));
        let mut text = String::new();
        write(&mut text, Family::V4, &before, &before);
        assert_eq!(text, "");
        write(&mut text, Family::V4, &before, &after);
        assert_eq!(text, "flush chain ip knarr-proxy a\nadd rule ip knarr-proxy a drop\n");
    }

    #[test]
    fn a_chain_goes_after_what_leads_to_it() {
        let mut text = String::new();
        write(&mut text, Family::V4, &rules("a", "accept", "a"), &Rules::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "delete element ip knarr-proxy services { 10.96.0.1 . tcp . 80 }",
                "flush chain ip knarr-proxy a",
                "delete chain ip knarr-proxy a",
            ]
        );
    }
}
