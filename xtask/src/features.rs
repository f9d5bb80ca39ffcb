//! `cargo xtask features`: writes the dependencies of `crates/workspace-features`.
//!
//! A dependency that some selection of packages compiles with other features than another is listed there with all of
//! them, so that it is compiled once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

const MANIFEST: &str = "crates/workspace-features/Cargo.toml";
/// The crate itself, and this program, which is small and starts at once.
const APART: &[&str] = &["knarr-workspace-features", "xtask"];
/// Only macros use them, and macros are compiled for the compiler's own host.
const OF_MACROS: &[&str] = &["syn", "quote", "proc-macro2"];

/// Name, and version as far as it is compatible with others: `syn` 2 and `syn` 3 are two.
type Dependency = (String, String);
/// The sets of features with which a dependency is compiled.
type FeatureSets = BTreeMap<Dependency, BTreeSet<BTreeSet<String>>>;

pub fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let manifest = root.join(MANIFEST);
    let old = fs::read_to_string(&manifest).with_context(|| format!("cannot read {MANIFEST}"))?;
    let head = old.split("[dependencies]\n").next().unwrap_or_default().to_owned();
    let mut sets = FeatureSets::new();
    for package in packages(root)?.iter().filter(|package| !APART.contains(&package.as_str())) {
        for edges in ["normal,build", "normal,build,dev"] {
            read_tree(&tree(root, package, edges)?, &mut sets);
        }
    }
    let new = head + &dependencies(&sets, &listed(&old));
    if !check {
        return fs::write(&manifest, new).with_context(|| format!("cannot write {MANIFEST}"));
    }
    if new != old {
        bail!("{MANIFEST} is out of date: run `cargo xtask features`");
    }
    Ok(())
}

/// The names of the workspace's packages.
fn packages(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = cargo(root, &["metadata", "--no-deps", "--format-version=1"])?;
    let metadata: serde_json::Value = serde_json::from_str(&output)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    Ok(packages.iter().filter_map(|package| package["name"].as_str().map(str::to_owned)).collect())
}

/// Every dependency of a package with its features, a line each.
fn tree(root: &Path, package: &str, edges: &str) -> anyhow::Result<String> {
    cargo(root, &["tree", "--package", package, "--edges", edges, "--prefix", "none", "--format", "{p}|{f}"])
}

fn cargo(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root).output()?;
    if !output.status.success() {
        bail!("cargo {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn read_tree(tree: &str, sets: &mut FeatureSets) {
    for line in tree.lines().filter(|line| !line.contains("(/") && !line.contains("(proc-macro)")) {
        let Some((package, features)) = line.trim_end_matches(" (*)").split_once('|') else { continue };
        let Some((name, version)) = package.split_once(" v") else { continue };
        let features = features.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned).collect();
        sets.entry((name.to_owned(), compatible(version))).or_default().insert(features);
    }
}

/// The part of a version that decides about compatibility.
fn compatible(version: &str) -> String {
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some("0"), Some(minor)) => format!("0.{minor}"),
        (Some(major), _) => major.to_owned(),
        (None, _) => String::new(),
    }
}

/// What the manifest lists already. It stays: with it, no difference is left to be seen.
fn listed(manifest: &str) -> BTreeSet<Dependency> {
    let quoted = |line: &str, key: &str| {
        let rest = line.split_once(&format!("{key} = \""))?.1;
        rest.split('"').next().map(str::to_owned)
    };
    let lines = manifest.lines().filter(|line| line.contains("default-features = false"));
    let entry = |line: &str| {
        let key = line.split(' ').next()?.to_owned();
        Some((quoted(line, "package").unwrap_or(key), quoted(line, "version")?))
    };
    lines.filter_map(entry).collect()
}

fn dependencies(sets: &FeatureSets, listed: &BTreeSet<Dependency>) -> String {
    let (mut target, mut host) = (String::from("[dependencies]\n"), String::from("\n[build-dependencies]\n"));
    for (dependency, found) in sets {
        if found.len() < 2 && !listed.contains(dependency) {
            continue;
        }
        let (name, version) = dependency;
        let is_ambiguous = sets.keys().filter(|(other, _)| other == name).count() > 1;
        let (key, package) = if is_ambiguous {
            (format!("{name}-{}", version.replace('.', "-")), format!("package = \"{name}\", "))
        } else {
            (name.clone(), String::new())
        };
        let all: BTreeSet<&String> = found.iter().flatten().collect();
        let all: Vec<String> = all.into_iter().map(|feature| format!("{feature:?}")).collect();
        let table = if OF_MACROS.contains(&name.as_str()) { &mut host } else { &mut target };
        *table += &format!(
            "{key} = {{ {package}version = \"{version}\", default-features = false, features = [{}] }}\n",
            all.join(", ")
        );
    }
    target + &host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compiled_with_different_features_is_listed_with_all_of_them() {
        let mut sets = FeatureSets::new();
        read_tree("a v1.2.3|std\nb v0.4.1|x\nown v0.1.0 (/own)|\nsyn v2.0.1|full (*)\n", &mut sets);
        read_tree("a v1.2.3|alloc,std\nb v0.4.1|x\nsyn v2.0.1|\nsyn v3.0.0|\n", &mut sets);
        let expected = "[dependencies]\n\
            a = { version = \"1\", default-features = false, features = [\"alloc\", \"std\"] }\n\n\
            [build-dependencies]\n\
            syn-2 = { package = \"syn\", version = \"2\", default-features = false, features = [\"full\"] }\n";
        let written = dependencies(&sets, &BTreeSet::new());
        assert_eq!(written, expected);

        // When all agree, because they are listed, they stay listed.
        let mut unified = FeatureSets::new();
        read_tree("a v1.2.3|alloc,std\nb v0.4.1|x\nsyn v2.0.1|full\nsyn v3.0.0|\n", &mut unified);
        assert_eq!(dependencies(&unified, &listed(&written)), expected);
    }
}
