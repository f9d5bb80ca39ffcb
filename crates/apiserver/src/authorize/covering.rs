//! Privilege escalation check: nobody may grant rules that their own rules do not cover.
//!
//! A rule is a product: in a short body it names a billion combinations of verb, group, resource and name. So the work is
//! bounded, and what was not compared counts as not covered.

use std::collections::{HashMap, HashSet};

use super::Rule;

/// How many own rules are looked at, and values compared, for one request. Roles of real clusters need a few thousand.
const MAX_COMPARISONS: usize = 1_000_000;

/// How many values of own rules are prepared for the search, each rule counted as [`RULE_WEIGHT`] more.
const MAX_OWN_WEIGHT: usize = 200_000;

/// A prepared rule takes about a kilobyte, however short it is.
const RULE_WEIGHT: usize = 20;

/// How many uncovered combinations are listed. One is enough for a refusal.
const MAX_LISTED: usize = 10_000;

/// What of `granted` is not covered by `own_rules`, merged into one rule per resource.
pub fn uncovered<'a>(own_rules: impl IntoIterator<Item = &'a Rule>, granted: &[Rule]) -> Vec<Rule> {
    let own_rules = prepared(own_rules);
    let mut budget = Budget(MAX_COMPARISONS);
    let mut missing = Missing::default();
    for rule in granted {
        if own_rules.iter().any(|own| budget.spend() && own.covers_rule(rule, &mut budget)) {
            continue;
        }
        // A rule of no combinations would go on to the next one.
        if budget.0 == 0 {
            missing.rules.push(rule.clone());
            return missing.rules;
        }
        for combination in combinations(rule) {
            let is_covered =
                budget.spend() && own_rules.iter().any(|own| budget.spend() && own.covers(&combination, &mut budget));
            if budget.0 == 0 || missing.listed == MAX_LISTED {
                missing.rules.push(rule.clone());
                return missing.rules;
            }
            if !is_covered {
                missing.add(&combination);
            }
        }
    }
    missing.rules
}

/// The rules in which values are found fast. Those beyond the limit count as not held.
fn prepared<'a>(own_rules: impl IntoIterator<Item = &'a Rule>) -> Vec<OwnRule<'a>> {
    let mut weight = 0;
    let fits = |rule: &&Rule| {
        let lists = [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.paths];
        weight += RULE_WEIGHT + lists.into_iter().map(Vec::len).sum::<usize>();
        weight <= MAX_OWN_WEIGHT
    };
    own_rules.into_iter().take_while(fits).map(OwnRule::new).collect()
}

/// One verb on one resource or path.
struct Combination<'a> {
    verb: &'a str,
    on: On<'a>,
}

enum On<'a> {
    Path(&'a str),
    Resource { group: &'a str, resource: &'a str, name: Option<&'a str> },
}

/// All combinations of a rule, one after the other: together they may not fit into memory.
fn combinations(rule: &Rule) -> impl Iterator<Item = Combination<'_>> {
    rule.verbs.iter().flat_map(move |verb| {
        let paths = rule.paths.iter().map(move |path| Combination { verb, on: On::Path(path) });
        let resources = rule.groups.iter().flat_map(move |group| {
            rule.resources.iter().flat_map(move |resource| {
                names(rule).map(move |name| Combination { verb, on: On::Resource { group, resource, name } })
            })
        });
        paths.chain(resources)
    })
}

/// The names of a rule; without any it holds for all names.
fn names(rule: &Rule) -> impl Iterator<Item = Option<&str>> {
    rule.names.is_empty().then_some(None).into_iter().chain(rule.names.iter().map(|name| Some(name.as_str())))
}

/// How many comparisons are left.
struct Budget(usize);

impl Budget {
    /// Whether one more comparison may be made.
    fn spend(&mut self) -> bool {
        let has_one = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        has_one
    }
}

#[derive(Default)]
struct Missing {
    rules: Vec<Rule>,
    listed: usize,
    /// Group, resource and name of a rule → its place among the rules.
    places: HashMap<(String, String, Option<String>), usize>,
}

impl Missing {
    fn add(&mut self, combination: &Combination<'_>) {
        self.listed += 1;
        let verbs = vec![combination.verb.to_owned()];
        let (group, resource, name) = match combination.on {
            On::Path(path) => {
                return self.rules.push(Rule { verbs, paths: vec![path.to_owned()], ..Rule::default() });
            }
            On::Resource { group, resource, name } => (group.to_owned(), resource.to_owned(), name.map(str::to_owned)),
        };
        let place = *self.places.entry((group, resource, name)).or_insert_with_key(|(group, resource, name)| {
            let (groups, resources) = (vec![group.clone()], vec![resource.clone()]);
            self.rules.push(Rule { groups, resources, names: name.iter().cloned().collect(), ..Rule::default() });
            self.rules.len() - 1
        });
        self.rules[place].verbs.extend(verbs);
    }
}

/// A rule of the user, in which values are found without walking over all of them.
struct OwnRule<'a> {
    verbs: Values<'a>,
    groups: Values<'a>,
    resources: Values<'a>,
    /// The subresources of `*/scale` and the like.
    subresources: HashSet<&'a str>,
    names: Values<'a>,
    paths: Values<'a>,
    /// The starts of paths of `/healthz/*` and the like.
    path_starts: Vec<&'a str>,
}

struct Values<'a> {
    any: bool,
    listed: HashSet<&'a str>,
}

impl<'a> Values<'a> {
    fn new(values: &'a [String]) -> Self {
        Values { any: values.iter().any(|value| value == "*"), listed: values.iter().map(String::as_str).collect() }
    }

    fn has(&self, value: &str, budget: &mut Budget) -> bool {
        self.any || (budget.spend() && self.listed.contains(value))
    }

    fn has_all(&self, values: &[String], budget: &mut Budget) -> bool {
        self.any || values.iter().all(|value| self.has(value, budget))
    }
}

impl<'a> OwnRule<'a> {
    fn new(rule: &'a Rule) -> Self {
        OwnRule {
            verbs: Values::new(&rule.verbs),
            groups: Values::new(&rule.groups),
            resources: Values::new(&rule.resources),
            subresources: rule.resources.iter().filter_map(|resource| resource.strip_prefix("*/")).collect(),
            names: Values { any: rule.names.is_empty(), ..Values::new(&rule.names) },
            paths: Values::new(&rule.paths),
            path_starts: rule.paths.iter().filter_map(|path| path.strip_suffix('*')).collect(),
        }
    }

    /// Whether this rule covers another one by itself.
    fn covers_rule(&self, granted: &Rule, budget: &mut Budget) -> bool {
        let names_everything = granted.names.is_empty() && !granted.resources.is_empty();
        (self.names.any || !names_everything)
            && self.names.has_all(&granted.names, budget)
            && self.verbs.has_all(&granted.verbs, budget)
            && (self.paths.any || granted.paths.iter().all(|path| self.has_path(path, budget)))
            && self.groups.has_all(&granted.groups, budget)
            && (self.resources.any || granted.resources.iter().all(|resource| self.has_resource(resource, budget)))
    }

    fn covers(&self, granted: &Combination<'_>, budget: &mut Budget) -> bool {
        self.verbs.has(granted.verb, budget)
            && match granted.on {
                On::Path(path) => self.has_path(path, budget),
                On::Resource { group, resource, name } => {
                    self.groups.has(group, budget)
                        && self.has_resource(resource, budget)
                        && (self.names.any || name.is_some_and(|name| self.names.has(name, budget)))
                }
            }
    }

    fn has_path(&self, path: &str, budget: &mut Budget) -> bool {
        self.paths.has(path, budget) || self.path_starts.iter().any(|start| budget.spend() && path.starts_with(start))
    }

    /// A resource, or its subresource of any resource.
    fn has_resource(&self, resource: &str, budget: &mut Budget) -> bool {
        let of_any = || resource.split_once('/').is_some_and(|(_, part)| self.subresources.contains(part));
        self.resources.has(resource, budget) || of_any()
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
    use std::time::Duration;

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

    /// A short role that names 10¹² combinations, and a long one of which nothing is covered.
    #[test]
    fn a_role_of_endless_combinations_is_refused_at_once() {
        let values = |start: &str, count: usize| (0..count).map(|at| format!("{start}{at}")).collect::<Vec<_>>();
        let many = Rule {
            verbs: values("v", 1000),
            groups: values("g", 1000),
            resources: values("r", 1000),
            names: values("n", 1000),
            paths: Vec::new(),
        };
        let long = Rule {
            verbs: vec!["get".into()],
            groups: vec![String::new()],
            resources: values("r", 300_000),
            ..Rule::default()
        };
        // Each covers all but the last verb: no comparison ends early.
        let most =
            Rule { verbs: values("v", 999), groups: vec!["*".into()], resources: vec!["*".into()], ..Rule::default() };
        let own_rules = [vec![most; 100], vec![rule(&["get"], &[""], &["pods"], &[])]].concat();
        for granted in [many.clone(), long] {
            let (done, waiting) = std::sync::mpsc::channel();
            let own_rules = own_rules.clone();
            // Without a limit it would run for days.
            std::thread::spawn(move || done.send(uncovered(&own_rules, &[granted]).len()));
            let missing = waiting.recv_timeout(Duration::from_secs(60)).expect("refused at once");
            assert!((1..=MAX_LISTED + 1).contains(&missing), "{missing}");
        }
        // What one rule covers as a whole is not taken apart.
        assert!(uncovered(&[rule(&["*"], &["*"], &["*"], &[])], &[many]).is_empty());
    }

    /// Each own rule is refused by its name alone, or by a name after nothing but stars; only the last ones would cover.
    #[test]
    fn own_rules_without_end_are_not_compared_without_end() {
        let plain = || rule(&["get"], &[""], &["pods"], &[]);
        let named = |count: usize| vec![rule(&["*"], &["*"], &["*"], &["x"]); count];
        let covers = |own: &[Rule], granted: &[Rule]| uncovered(own, granted).is_empty();
        let own_rules = [named(5000), vec![plain()]].concat();
        assert!(covers(&own_rules, &vec![plain(); 10]));
        assert!(!covers(&own_rules, &vec![plain(); 1000]), "rules are counted");
        let halves = |count: usize| -> [Vec<String>; 2] {
            let resources = |start: &str| (0..count).map(|at| format!("{start}{at}")).collect();
            [resources("a"), resources("b")]
        };
        for (count, is_covered) in [(10, true), (500, false)] {
            let with = |resources: Vec<String>| Rule { resources, ..plain() };
            let own_rules = [named(5000), halves(count).map(with).to_vec()].concat();
            assert_eq!(covers(&own_rules, &[with(halves(count).concat())]), is_covered, "combinations are counted");
        }
        let no_verbs = rule(&[], &[""], &["pods", "secrets"], &[]);
        assert!(!covers(&own_rules, &vec![no_verbs; 1000]), "rules that grant nothing are counted");
    }

    #[test]
    fn own_rules_without_end_do_not_fill_memory() {
        let plain = || rule(&["get"], &[""], &["pods"], &[]);
        let short = |count: usize| vec![Rule { names: vec!["x".into()], ..plain() }; count];
        let long = |count: usize| vec![Rule { names: vec!["x".into(); count], ..plain() }];
        for (before, is_covered) in
            [(short(5000), true), (short(10_000), false), (long(100_000), true), (long(300_000), false)]
        {
            let count = before.len();
            let own_rules = [before, vec![plain()]].concat();
            assert_eq!(uncovered(&own_rules, &[plain()]).is_empty(), is_covered, "{count}");
        }
    }

    #[test]
    fn a_rule_of_paths_and_resources_needs_both() {
        let granted = Rule { paths: vec!["/metrics".into()], ..rule(&["get"], &[""], &["secrets"], &[]) };
        let paths = Rule { verbs: vec!["get".into()], paths: vec!["/metr*".into()], ..Rule::default() };
        assert_eq!(uncovered([&paths], std::slice::from_ref(&granted)).len(), 1);
        assert_eq!(uncovered([&rule(&["get"], &[""], &["secrets"], &[])], std::slice::from_ref(&granted)).len(), 1);
        assert_eq!(uncovered([&paths, &rule(&["get"], &[""], &["*"], &[])], &[granted]).len(), 0);
    }

    #[test]
    fn a_rule_is_displayed_in_compact_form() {
        let displayed = rule(&["get", "list"], &[""], &["pods"], &[]).to_string();
        assert_eq!(displayed, r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#);
    }
}
