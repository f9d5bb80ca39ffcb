//! Privilege escalation check: nobody may grant rules that their own rules do not cover.

use super::Rule;
use super::rule::path_matches;

/// What of `granted` is not covered by `own_rules`, merged into one rule per resource.
pub fn uncovered(own_rules: &[Rule], granted: &[Rule]) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    for part in granted.iter().flat_map(break_down) {
        if own_rules.iter().any(|rule| covers(rule, &part)) {
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

fn covers(own: &Rule, part: &Rule) -> bool {
    let covers_all = |allowed: &[String], granted: &[String]| {
        allowed.iter().any(|item| item == "*") || granted.iter().all(|item| allowed.contains(item))
    };
    if !covers_all(&own.verbs, &part.verbs) {
        return false;
    }
    if !part.paths.is_empty() {
        return part
            .paths
            .iter()
            .all(|granted| own.paths.iter().any(|path| path == granted || path_matches(path, granted)));
    }
    covers_all(&own.groups, &part.groups)
        && part.resources.iter().all(|granted| own.resources.iter().any(|resource| resource_covers(resource, granted)))
        && (own.names.is_empty() || (!part.names.is_empty() && part.names.iter().all(|name| own.names.contains(name))))
}

fn resource_covers(own: &str, granted: &str) -> bool {
    if own == "*" || own == granted {
        return true;
    }
    match (own.strip_prefix("*/"), granted.split_once('/')) {
        (Some(part), Some((_, granted_part))) => part == granted_part,
        _ => false,
    }
}

impl std::fmt::Display for Rule {
    /// The compact form in which error messages list missing rules.
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
    fn rules_cover_only_what_they_allow() {
        let own_rules =
            [rule(&["get", "list"], &[""], &["pods", "secrets"], &[]), rule(&["get"], &["apps"], &["*"], &["a"])];
        for (granted, missing) in [
            (rule(&["get"], &[""], &["pods"], &[]), 0),
            (rule(&["get", "delete"], &[""], &["pods"], &[]), 1),
            (rule(&["*"], &[""], &["pods"], &[]), 1),
            (rule(&["get"], &["apps"], &["deployments"], &["a", "b"]), 1),
            (rule(&["get"], &["apps"], &["deployments"], &[]), 1),
            (rule(&["get"], &[""], &["secrets"], &["x"]), 0),
        ] {
            assert_eq!(uncovered(&own_rules, std::slice::from_ref(&granted)).len(), missing, "{granted}");
        }
    }

    #[test]
    fn a_rule_is_displayed_in_compact_form() {
        let displayed = rule(&["get", "list"], &[""], &["pods"], &[]).to_string();
        assert_eq!(displayed, r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#);
    }
}
