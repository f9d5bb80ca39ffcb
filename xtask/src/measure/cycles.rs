//! Top-level modules of a crate that import each other, directly or over others.

#[path = "../../../crates/tidy/src/crate_paths.rs"]
mod crate_paths;
#[path = "../../../crates/tidy/src/cycles.rs"]
mod groups;

use std::collections::{BTreeMap, BTreeSet};

use crate::source::SourceFile;
use crate_paths::crate_paths;
use groups::Imports;

/// By crate, the modules that each module names.
pub fn imports(sources: &[SourceFile]) -> BTreeMap<&str, Imports> {
    let mut imports: BTreeMap<&str, Imports> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let Some(module) = top_module(source) else { continue };
        let product: Vec<&str> = source.text.lines().take(source.product_lines()).collect();
        let names = crate_paths(&product.join("\n"));
        imports.entry(&source.krate).or_default().entry(module).or_default().extend(names);
    }
    imports
}

/// The pairs that name each other, in alphabetical order.
pub fn pairs(imports: &Imports) -> Vec<(&str, &str)> {
    let names = |one: &str, other: &str| imports.get(one).is_some_and(|names| names.contains(other));
    let edges = imports.iter().flat_map(|(one, others)| others.iter().map(|other| (one.as_str(), other.as_str())));
    edges.filter(|(one, other)| one < other && names(other, one)).collect()
}

/// The groups of three and more modules that reach each other.
pub fn larger(imports: &Imports) -> Vec<BTreeSet<String>> {
    groups::cycles(imports).into_iter().filter(|group| group.len() > 2).collect()
}

/// `response` for `crates/apiserver/src/response/encode.rs`; nothing for the root of the crate.
fn top_module(source: &SourceFile) -> Option<String> {
    let mut parts = source.path.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let name = parts.nth(3)?.trim_end_matches(".rs").to_owned();
    (!["lib", "main"].contains(&name.as_str())).then_some(name)
}
