//! Each dependency that a crate declares is used by it.

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
                text += &read(&file.with_file_name(shared));
            }
            text += &content;
        }
        for dependency in declared(&read(&directory.join("Cargo.toml"))) {
            let name = dependency.replace('-', "_");
            let is_excused = NEVER_NAMED.contains(&(file_name(&directory).as_str(), dependency.as_str()))
                || file_name(&directory) == FEATURES
                || dependency.strip_prefix("knarr-") == Some(FEATURES);
            if !text.contains(&name) && !is_excused {
                wrong.push(format!("{} declares {dependency} and never uses it", directory.display()));
            }
        }
    }
    none(wrong);
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
