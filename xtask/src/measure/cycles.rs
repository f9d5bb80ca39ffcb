//! Pairs of top-level modules of a crate that name each other.

#[path = "../../../crates/tidy/src/crate_paths.rs"]
mod crate_paths;

use std::collections::{BTreeMap, BTreeSet};

use crate::source::SourceFile;
use crate_paths::crate_paths;

/// By crate, the pairs in alphabetical order.
pub fn mutual_imports(sources: &[SourceFile]) -> BTreeMap<&str, Vec<(String, String)>> {
    let mut imports: BTreeMap<&str, BTreeSet<(String, String)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let Some(module) = top_module(source) else { continue };
        let product: Vec<&str> = source.text.lines().take(source.product_lines()).collect();
        for name in crate_paths(&product.join("\n")) {
            imports.entry(&source.krate).or_default().insert((module.clone(), name));
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
