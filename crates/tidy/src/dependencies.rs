//! Each dependency that a crate declares is used by it.

use std::collections::BTreeSet;

use super::{FEATURES, directories, file_name, none, read, root, sources};

/// Used by their features or by macros, without being named.
const NEVER_NAMED: &[(&str, &str)] = &[];

#[test]
fn dependencies_are_used() {
    let mut wrong = Vec::new();
    let mut crates = directories(&root().join("crates"));
    crates.push(root().join("xtask"));
    for directory in crates {
        let mut text = String::new();
        for file in sources(&directory) {
            let content = read(&file);
            for shared in paths_of_modules(&content) {
                text += &without_comments(&read(&file.with_file_name(shared)));
            }
            text += &without_comments(&content);
        }
        for dependency in declared(&read(&directory.join("Cargo.toml"))) {
            let name = dependency.replace('-', "_");
            let is_excused = NEVER_NAMED.contains(&(file_name(&directory).as_str(), dependency.as_str()))
                || file_name(&directory) == FEATURES
                || dependency.strip_prefix("knarr-") == Some(FEATURES);
            if !names_crate(&text, &name) && !is_excused {
                wrong.push(format!("{} declares {dependency} and never uses it", directory.display()));
            }
        }
    }
    none(wrong);
}

#[test]
fn dependencies_of_the_workspace_are_declared_by_a_crate() {
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut crates = directories(&root().join("crates"));
    crates.push(root().join("xtask"));
    for directory in crates.iter().filter(|directory| file_name(directory) != FEATURES) {
        used.extend(declared(&read(&directory.join("Cargo.toml"))));
    }
    let all = declared(&read(&root().join("Cargo.toml")));
    let unused = all.into_iter().filter(|name| !used.contains(name));
    none(unused.map(|name| format!("the workspace declares {name}, which no crate uses")).collect());
}

/// Whether code names a crate: by a path, a macro or an import. Longer names, paths of other modules and variables don't count.
fn names_crate(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let is_whole = !before.ends_with(|last: char| last.is_alphanumeric() || last == '_' || last == ':')
            && !after.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        let is_crate = before.ends_with("use ") || ["::", "!", " as _"].iter().any(|end| after.starts_with(end));
        is_whole && is_crate
    })
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn only_names_of_crates_count() {
    for text in ["use serde::Serialize;", "time::now()", "bytes!()", "use {a as _, b};", "fn f() -> a::B {}"] {
        let name = ["serde", "time", "bytes", "a"].into_iter().find(|name| names_crate(text, name));
        assert!(name.is_some(), "{text}");
    }
    for text in ["serde_json::to_string", "std::time::now()", "self.bytes[0]", "bytes as u64", "other::a::B"] {
        let name = ["serde", "time", "bytes", "a"].into_iter().find(|name| names_crate(text, name));
        assert_eq!(name, None, "{text}");
    }
}

#[test]
fn all_crates_share_the_features_of_dependencies() {
    let mut wrong = Vec::new();
    for directory in directories(&root().join("crates")) {
        let has = declared(&read(&directory.join("Cargo.toml"))).iter().any(|name| name.ends_with(FEATURES));
        if !has && file_name(&directory) != FEATURES {
            wrong.push(format!("{} does not depend on knarr-{FEATURES}", directory.display()));
        }
    }
    none(wrong);
}

/// The files of other crates that tests share: `#[path = "…"]`.
fn paths_of_modules(text: &str) -> impl Iterator<Item = &str> {
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    named.filter(|path| path.starts_with("../"))
}

/// The names in all tables of dependencies of a manifest.
fn declared(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_dependencies = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependencies = line.ends_with("dependencies]");
        } else if is_dependencies && let Some(name) = line.split(['.', ' ', '=']).next().filter(|name| !name.is_empty())
        {
            names.push(name.to_owned());
        }
    }
    names.retain(|name| !name.starts_with('#'));
    names
}

#[test]
fn all_tables_of_dependencies_are_read() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb-c = \"1\"\n\n[build-dependencies]\nd = { path = \"d\" }\n[lints]\nworkspace = true\n";
    assert_eq!(declared(manifest), ["a", "b-c", "d"]);
}
