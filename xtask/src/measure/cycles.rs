//! Pairs of top-level modules of a crate that name each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::SourceFile;

/// By crate, the pairs in alphabetical order.
pub fn mutual_imports(sources: &[SourceFile]) -> BTreeMap<&str, Vec<(String, String)>> {
    let mut imports: BTreeMap<&str, BTreeSet<(String, String)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let Some(module) = top_module(source) else { continue };
        for line in source.text.lines().take(source.product_lines()) {
            for name in crate_paths(line) {
                imports.entry(&source.krate).or_default().insert((module.clone(), name));
            }
        }
    }
    let mut mutual = BTreeMap::new();
    for (krate, edges) in imports {
        let is_mutual = |(a, b): &&(String, String)| a < b && edges.contains(&(b.clone(), a.clone()));
        let pairs: Vec<_> = edges.iter().filter(is_mutual).cloned().collect();
        if !pairs.is_empty() {
            mutual.insert(krate, pairs);
        }
    }
    mutual
}

/// `response` for `crates/apiserver/src/response/encode.rs`; nothing for the root of the crate.
fn top_module(source: &SourceFile) -> Option<String> {
    let mut parts = source.path.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let name = parts.nth(3)?.trim_end_matches(".rs").to_owned();
    (!["lib", "main"].contains(&name.as_str())).then_some(name)
}

/// The modules behind each `crate::` of a line.
fn crate_paths(line: &str) -> impl Iterator<Item = String> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).flat_map(|rest| {
        let name: String = rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        (name.starts_with(|letter: char| letter.is_lowercase())).then_some(name)
    })
}
