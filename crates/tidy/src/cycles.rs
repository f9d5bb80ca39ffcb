//! Cycles in a graph of modules: groups of two or more that all reach each other. `cargo xtask measure` finds them with this
//! file, too.

use std::collections::{BTreeMap, BTreeSet};

/// The modules that each module names.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// The groups of modules that reach each other, each in alphabetical order. A module that names itself is no cycle.
pub fn cycles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|module| (module, reachable(imports, module))).collect();
    let mut groups: Vec<BTreeSet<String>> = Vec::new();
    for module in imports.keys() {
        if groups.iter().any(|group| group.contains(module)) {
            continue;
        }
        let reaches_back = |other: &&&String| reached.get(*other).is_some_and(|others| others.contains(module));
        let mut group: BTreeSet<String> =
            reached[module].iter().filter(reaches_back).map(|other| (*other).clone()).collect();
        group.insert(module.clone());
        if group.len() > 1 {
            groups.push(group);
        }
    }
    groups
}

/// Every module that can be reached from one by following imports.
fn reachable<'a>(imports: &'a Imports, module: &String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = imports.get(module).into_iter().flatten().collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(imports.get(next).into_iter().flatten());
        }
    }
    found
}

#[test]
fn groups_that_reach_each_other_are_found() {
    for (edges, expected) in [
        ("a>b b>c", vec![]),
        ("a>a", vec![]),
        ("a>b b>a", vec!["a b"]),
        ("a>b b>c c>a c>d", vec!["a b c"]),
        ("a>b b>a c>d d>c b>c", vec!["a b", "c d"]),
        ("a>b b>c c>a c>e e>c", vec!["a b c e"]),
        ("x>a a>b b>a", vec!["a b"]),
    ] {
        let mut imports = Imports::new();
        for (from, to) in edges.split(' ').filter_map(|edge| edge.split_once('>')) {
            imports.entry(from.to_owned()).or_default().insert(to.to_owned());
        }
        let found: Vec<String> =
            cycles(&imports).into_iter().map(|group| group.into_iter().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(found, expected, "{edges}");
    }
}
