//! Whether rules somebody holds cover rules they want to grant: nobody may hand out more than they have.

use super::Rule;
use super::rule::path_matches;

/// The parts of `wanted` that `held` does not cover, those of one resource as one rule.
pub fn uncovered(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    for part in wanted.iter().flat_map(break_down) {
        if held.iter().any(|rule| covers(rule, &part)) {
            continue;
        }
        let same = |rule: &&mut Rule| {
            part.paths.is_empty()
                && (&rule.groups, &rule.resources, &rule.names) == (&part.groups, &part.resources, &part.names)
        };
        match missing.iter_mut().find(same) {
            Some(rule) => rule.verbs.extend(part.verbs),
            None => missing.push(part),
        }
    }
    missing
}

/// A rule as rules of one verb, group, resource and name each.
fn break_down(rule: &Rule) -> Vec<Rule> {
    let mut parts = Vec::new();
    for verb in &rule.verbs {
        for path in &rule.paths {
            parts.push(Rule { verbs: vec![verb.clone()], paths: vec![path.clone()], ..Rule::default() });
        }
        for group in &rule.groups {
            for resource in &rule.resources {
                let part = |names: Vec<String>| Rule {
                    verbs: vec![verb.clone()],
                    groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    names,
                    paths: Vec::new(),
                };
                if rule.names.is_empty() {
                    parts.push(part(Vec::new()));
                } else {
                    parts.extend(rule.names.iter().map(|name| part(vec![name.clone()])));
                }
            }
        }
    }
    parts
}

fn covers(held: &Rule, part: &Rule) -> bool {
    let covers_all = |own: &[String], wanted: &[String]| {
        own.iter().any(|item| item == "*") || wanted.iter().all(|item| own.contains(item))
    };
    if !covers_all(&held.verbs, &part.verbs) {
        return false;
    }
    if !part.paths.is_empty() {
        return part.paths.iter().all(|wanted| held.paths.iter().any(|own| own == wanted || path_matches(own, wanted)));
    }
    covers_all(&held.groups, &part.groups)
        && part.resources.iter().all(|wanted| held.resources.iter().any(|own| resource_covers(own, wanted)))
        && (held.names.is_empty()
            || (!part.names.is_empty() && part.names.iter().all(|name| held.names.contains(name))))
}

fn resource_covers(own: &str, wanted: &str) -> bool {
    if own == "*" || own == wanted {
        return true;
    }
    match (own.strip_prefix("*/"), wanted.split_once('/')) {
        (Some(part), Some((_, wanted_part))) => part == wanted_part,
        _ => false,
    }
}

impl std::fmt::Display for Rule {
    /// The compact form in which refusals list what is not held.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quoted = |list: &[String]| list.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(" ");
        let mut parts = Vec::new();
        for (title, list) in [
            ("NonResourceURLs", &self.paths),
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ] {
            if !list.is_empty() {
                parts.push(format!("{title}:[{}]", quoted(list)));
            }
        }
        write!(f, "{{{}}}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        Rule::from_value(&json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names}))
    }

    #[test]
    fn only_what_is_held_is_covered() {
        let held =
            [rule(&["get", "list"], &[""], &["pods", "secrets"], &[]), rule(&["get"], &["apps"], &["*"], &["a"])];
        for (wanted, missing) in [
            (rule(&["get"], &[""], &["pods"], &[]), 0),
            (rule(&["get", "delete"], &[""], &["pods"], &[]), 1),
            (rule(&["*"], &[""], &["pods"], &[]), 1),
            (rule(&["get"], &["apps"], &["deployments"], &["a", "b"]), 1),
            (rule(&["get"], &["apps"], &["deployments"], &[]), 1),
            (rule(&["get"], &[""], &["secrets"], &["x"]), 0),
        ] {
            assert_eq!(uncovered(&held, std::slice::from_ref(&wanted)).len(), missing, "{wanted}");
        }
    }

    #[test]
    fn a_rule_is_shown_in_compact_form() {
        let shown = rule(&["get", "list"], &[""], &["pods"], &[]).to_string();
        assert_eq!(shown, r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#);
    }
}
