//! The rules of this codebase that a program can check. They run as tests: `cargo test -p knarr-tidy`.
//!
//! In: the source tree. Out: one line for each place that breaks a rule.

#![cfg(test)]

mod clocks;
mod crate_paths;
mod cycles;
mod dependencies;
mod documents;
mod imports;
mod paths;
mod spawns;

use std::fs;
use std::path::{Path, PathBuf};

/// Which of our crates each crate may use. Crates meet only in the binary.
const MAY_USE: &[(&str, &[&str])] = &[
    ("api", &["go-duration", "semantics", "version"]),
    (
        "apiserver",
        &[
            "api",
            "files",
            "identity",
            "listen",
            "metrics",
            "relay",
            "rules",
            "store",
            "supervisor",
            "traces",
            "tunnel",
            "ui",
            "version",
            "why",
        ],
    ),
    ("bench", &[]),
    ("client", &["go-duration", "identity", "metrics", "packing", "semantics", "supervisor"]),
    ("component-flags", &["go-duration", "semantics"]),
    ("controllers", &["client", "identity", "metrics", "supervisor"]),
    ("cri", &[]),
    ("csi", &[]),
    ("csi-controller", &["client", "csi", "supervisor"]),
    ("descriptions", &[]),
    ("dns", &["client", "listen", "metrics", "supervisor"]),
    ("files", &[]),
    (
        "fuzz-targets",
        &[
            "api",
            "apiserver",
            "component-flags",
            "controllers",
            "csi",
            "dns",
            "identity",
            "ingress",
            "kubelet",
            "network",
            "registry",
            "store",
            "tunnel",
        ],
    ),
    ("go-duration", &[]),
    ("identity", &[]),
    ("ingress", &["client", "listen", "relay", "supervisor"]),
    ("journey", &[]),
    (
        "kubelet",
        &[
            "client",
            "cri",
            "csi",
            "files",
            "identity",
            "listen",
            "metrics",
            "relay",
            "supervisor",
            "traces",
            "version",
            "zpages",
        ],
    ),
    ("listen", &["supervisor"]),
    ("local-storage", &["csi"]),
    ("metrics", &[]),
    ("network", &["client", "listen", "metrics", "supervisor", "version", "zpages"]),
    ("object-storage", &[]),
    ("packing", &[]),
    ("registry", &["listen"]),
    ("relay", &[]),
    ("rules", &["api", "component-flags"]),
    ("scheduler", &["api", "client", "metrics", "packing", "supervisor"]),
    ("semantics", &["go-duration"]),
    ("store", &["metrics", "packing", "supervisor", "traces"]),
    ("supervisor", &[]),
    ("traces", &["metrics", "supervisor"]),
    ("tunnel", &["relay", "supervisor"]),
    ("test-host", &[]),
    ("tidy", &[]),
    ("ui", &[]),
    ("version", &[]),
    ("why", &["api", "rules"]),
    ("zpages", &["version"]),
    (FEATURES, &[]),
];

/// The crate without code that unifies the features of dependencies.
const FEATURES: &str = "workspace-features";

/// The typed API takes half a minute to compile: these crates do without.
const WITHOUT_TYPED_API: &[&str] = &["api", "apiserver", "rules", "semantics", "store"];

/// Where decisions are made: time comes in as a value.
const DECIDES: &[&str] = &["controllers", "scheduler", "rules", "api", "semantics"];
const CLOCKS: &[&str] = &["SystemTime::now", "Timestamp::now", "Zoned::now", "Utc::now", "time::now()"];

/// Reconcilers are given their clock: only what is handed to all of them chooses that of the host.
const HOST_CLOCK: &str = "Clock::system()";
const CHOOSES_THE_CLOCK: &[&str] = &["clock.rs", "context.rs"];

/// Lines of a file, with the tests in it.
const MAX_LINES: usize = 400;
/// Lines of a file that holds nothing but tests.
const MAX_TEST_LINES: usize = 600;

#[test]
fn crates_use_only_what_they_may() {
    let mut wrong = Vec::new();
    for directory in directories(&root().join("crates")) {
        let name = file_name(&directory);
        if name == "knarr" {
            continue;
        }
        let manifest = read(&directory.join("Cargo.toml"));
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("crates/{name} is in no rule: say which crates it may use"));
            continue;
        };
        for line in dependencies.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if let Some(own) = dependency.strip_prefix("knarr-")
                && own != name
                && own != FEATURES
                && !allowed.contains(&own)
            {
                wrong.push(format!("crates/{name} may not use crates/{own}"));
            }
            if WITHOUT_TYPED_API.contains(&name.as_str()) && ["k8s-openapi", "kube"].contains(&dependency) {
                wrong.push(format!("crates/{name} may not use {dependency}"));
            }
        }
    }
    none(wrong);
}

#[test]
fn decisions_are_given_the_time() {
    let mut wrong = Vec::new();
    for name in DECIDES {
        for file in sources(&root().join("crates").join(name).join("src")) {
            // The one place of a crate that reads the clock, to hand it on.
            if file_name(&file) == "clock.rs" {
                continue;
            }
            for (number, line) in before_tests(&read(&file)).lines().enumerate() {
                if let Some(clock) = CLOCKS.iter().find(|clock| line.contains(*clock)) {
                    wrong.push(format!("{}:{}: {clock} in a decision", file.display(), number + 1));
                }
                if line.contains(HOST_CLOCK) && !CHOOSES_THE_CLOCK.contains(&file_name(&file).as_str()) {
                    wrong.push(format!("{}:{}: the clock comes with the context", file.display(), number + 1));
                }
            }
        }
    }
    none(wrong);
}

#[test]
fn files_hold_one_concept() {
    let mut wrong = Vec::new();
    for file in sources(&root().join("crates")) {
        let lines = read(&file).lines().count();
        let path = file.display().to_string();
        let is_test = spawns::is_test(&path) || path.contains("/benches/");
        let limit = if is_test { MAX_TEST_LINES } else { MAX_LINES };
        if lines > limit {
            wrong.push(format!("{path}: {lines} lines, more than {limit}"));
        }
    }
    none(wrong);
}

#[test]
fn modules_with_children_are_directories() {
    let mut wrong = Vec::new();
    for file in sources(&root().join("crates")) {
        let children = file.with_extension("");
        if children.is_dir() {
            wrong.push(format!("{}: move it to {}/mod.rs", file.display(), children.display()));
        }
    }
    none(wrong);
}

#[test]
fn modules_open_with_what_they_are() {
    let mut wrong = Vec::new();
    for file in sources(&root().join("crates")) {
        let path = file.display().to_string();
        if path.contains("/src/") && !spawns::is_test(&path) && !read(&file).starts_with("//!") {
            wrong.push(format!("{path} does not open with what the module is"));
        }
    }
    none(wrong);
}

fn none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text before the inline module of tests. Test modules in files of their own are declared anywhere.
fn before_tests(text: &str) -> &str {
    const MARK: &str = "#[cfg(test)]\n";
    let is_module = |at: &usize| {
        let next = text[at + MARK.len()..].lines().next().unwrap_or_default();
        next.contains("mod ") && next.ends_with('{')
    };
    let end = text.match_indices(MARK).map(|(at, _)| at).find(is_module);
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn declarations_of_test_modules_hide_nothing() {
    let text = "#[cfg(test)]\nmod fake;\nfn one() {}\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(before_tests(text), "#[cfg(test)]\nmod fake;\nfn one() {}\n");
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn directories(path: &Path) -> Vec<PathBuf> {
    entries(path).into_iter().filter(|entry| entry.is_dir()).collect()
}

fn sources(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in entries(path) {
        if entry.is_dir() {
            found.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
    found
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut entries: Vec<PathBuf> = read.map(|entry| entry.expect("a directory entry").path()).collect();
    entries.sort();
    entries
}
