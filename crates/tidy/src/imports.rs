//! Modules of a crate depend on each other in one direction, so that each can be read without the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::crate_paths::crate_paths;
use super::spawns::is_test;
use super::{before_tests, none, read, root, sources};

/// Pairs that still import each other. Remove a pair that no longer does; add none.
const MUTUAL: &[(&str, &str, &str)] = &[];

#[test]
fn modules_import_in_one_direction() {
    let crates = root().join("crates");
    let mut found = BTreeSet::new();
    for directory in super::directories(&crates) {
        let krate = super::file_name(&directory);
        for (one, other) in mutual_imports(&directory.join("src")) {
            found.insert((krate.clone(), one, other));
        }
    }
    let known: BTreeSet<_> =
        MUTUAL.iter().map(|(krate, one, other)| ((*krate).into(), (*one).into(), (*other).into())).collect();
    let describe = |(krate, one, other): &(String, String, String), what: &str| {
        format!("crates/{krate}: {one} and {other} {what}")
    };
    let new = found.difference(&known).map(|pair| describe(pair, "import each other: move what both need below them"));
    let gone =
        known.difference(&found).map(|pair| describe(pair, "no longer import each other: remove them from the list"));
    none(new.chain(gone).collect());
}

/// Pairs of top-level modules that name each other, in alphabetical order.
fn mutual_imports(directory: &Path) -> Vec<(String, String)> {
    if !directory.exists() {
        return Vec::new();
    }
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in sources(directory) {
        let relative = file.strip_prefix(directory).unwrap_or(&file);
        let Some(module) = top_module(relative) else { continue };
        if !is_test(&relative.to_string_lossy()) {
            imports.entry(module).or_default().extend(crate_paths(before_tests(&read(&file))));
        }
    }
    let names = |one: &str, other: &str| imports.get(one).is_some_and(|names| names.contains(other));
    let pairs = imports.iter().flat_map(|(one, others)| others.iter().map(move |other| (one, other)));
    let mutual = pairs.filter(|(one, other)| one < other && names(other, one));
    mutual.map(|(one, other)| (one.clone(), other.clone())).collect()
}

/// `response` for `response/encode.rs`; nothing for the root of the crate.
fn top_module(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs");
    (!["lib", "main"].contains(&name)).then(|| name.to_owned())
}
