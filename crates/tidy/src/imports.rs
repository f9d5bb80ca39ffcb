//! Modules of a crate depend on each other in one direction, so that each can be read without the other.

use std::path::Path;

use super::crate_paths::crate_paths;
use super::cycles::{Imports, cycles};
use super::spawns::is_test;
use super::{before_tests, directories, file_name, none, read, root, sources};

#[test]
fn modules_import_in_one_direction() {
    let mut wrong = Vec::new();
    for directory in directories(&root().join("crates")) {
        let krate = file_name(&directory);
        for group in cycles(&imports(&directory.join("src"))) {
            let modules: Vec<&str> = group.iter().map(String::as_str).collect();
            let modules = modules.join(", ");
            wrong.push(format!("crates/{krate}: {modules} import each other: move what they share below them"));
        }
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

/// `response` for `response/encode.rs`; nothing for the root of the crate.
fn top_module(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    let name = first.trim_end_matches(".rs");
    (!["lib", "main"].contains(&name)).then(|| name.to_owned())
}
