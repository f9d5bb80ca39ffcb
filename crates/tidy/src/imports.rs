//! Modules of a crate depend on each other in one direction, so that each can be read without the other.

use std::collections::BTreeSet;
use std::path::Path;

use super::crate_paths::crate_paths;
use super::cycles::{Imports, cycles};
use super::spawns::is_test;
use super::{before_tests, directories, file_name, none, read, root, sources};

/// Groups of modules that still reach each other, by crate. Remove a module that no longer belongs to one; add none.
const CYCLES: &[(&str, &[&str])] = &[
    (
        "apiserver",
        &[
            "admit",
            "aggregate",
            "audit",
            "authenticate",
            "authorize",
            "authorized_request",
            "bootstrap",
            "convert",
            "custom",
            "decode",
            "documents",
            "drain",
            "encrypt",
            "fairness",
            "journey_events",
            "kinds",
            "loopback",
            "outbound",
            "page",
            "persist",
            "pki",
            "provided",
            "request_metrics",
            "resource_request",
            "response",
            "service",
            "state",
            "stored",
            "subresource",
            "ui",
            "watch",
        ],
    ),
    ("kubelet", &["node", "pods", "worker"]),
];

#[test]
fn modules_import_in_one_direction() {
    let mut wrong = Vec::new();
    for directory in directories(&root().join("crates")) {
        let krate = file_name(&directory);
        let known = CYCLES.iter().filter(|(of, _)| *of == krate).flat_map(|(_, modules)| *modules);
        let mut known: BTreeSet<&str> = known.copied().collect();
        let imports = imports(&directory.join("src"));
        for group in cycles(&imports) {
            let new: Vec<&str> = group.iter().map(String::as_str).filter(|module| !known.contains(module)).collect();
            if !new.is_empty() {
                let others: Vec<&str> = group.iter().map(String::as_str).collect();
                wrong.push(format!(
                    "crates/{krate}: {} in a cycle of imports ({}): move what both need below them",
                    new.join(", "),
                    others.join(" ")
                ));
            }
            known.retain(|module| !group.contains(*module));
        }
        for (one, other) in pairs(&imports) {
            wrong.push(format!("crates/{krate}: {one} and {other} import each other: move what both need below them"));
        }
        wrong
            .extend(known.iter().map(|gone| format!("crates/{krate}: {gone} is in no cycle: remove it from the list")));
    }
    none(wrong);
}

/// The modules that each top-level module names.
fn imports(directory: &Path) -> Imports {
    let mut imports = Imports::new();
    let files = if directory.exists() { sources(directory) } else { Vec::new() };
    for file in files {
        let relative = file.strip_prefix(directory).unwrap_or(&file);
        let Some(module) = top_module(relative) else { continue };
        if !is_test(&relative.to_string_lossy()) {
            imports.entry(module).or_default().extend(crate_paths(before_tests(&read(&file))));
        }
    }
    imports
}

/// The pairs that name each other, in alphabetical order.
fn pairs(imports: &Imports) -> impl Iterator<Item = (&str, &str)> {
    let names = |one: &str, other: &str| imports.get(one).is_some_and(|names| names.contains(other));
    let edges = imports.iter().flat_map(|(one, others)| others.iter().map(move |other| (one.as_str(), other.as_str())));
    edges.filter(move |(one, other)| one < other && names(other, one))
}

/// `response` for `response/encode.rs`; nothing for the root of the crate.
fn top_module(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs");
    (!["lib", "main"].contains(&name)).then(|| name.to_owned())
}
