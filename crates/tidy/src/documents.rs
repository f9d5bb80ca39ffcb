//! Documents name tests as evidence; the tests must exist.

use super::{MAY_USE, none, read, root, sources};

/// Pages whose sentences are checked by tests.
const PAGES: &[&str] = &["docs/threat-model.md", "docs/security-history.md"];

#[test]
fn tests_that_documents_name_exist() {
    let functions = function_names();
    let mut wrong = Vec::new();
    for page in PAGES {
        for name in test_names(&read(&root().join(page))) {
            let exists = match name.strip_suffix('…') {
                Some(start) => functions.iter().any(|function| function.starts_with(start)),
                None => functions.contains(&name),
            };
            if !exists {
                wrong.push(format!("{page}: there is no test {name}"));
            }
        }
    }
    none(wrong);
}

#[test]
fn the_architecture_says_which_crates_each_crate_uses() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let mut wrong = Vec::new();
    for (name, allowed) in MAY_USE.iter().filter(|(name, _)| *name != "fuzz-targets") {
        let named = format!("`{name}`");
        let mut rows = page.lines().filter(|line| line.starts_with("| `"));
        let Some(row) = rows.find(|line| line.split('|').nth(1).is_some_and(|first| first.contains(&named))) else {
            wrong.push(format!("ARCHITECTURE.md has no row for crates/{name}"));
            continue;
        };
        let uses: Vec<&str> = row.split('|').nth(3).unwrap_or_default().split(',').map(str::trim).collect();
        for missing in allowed.iter().filter(|used| !uses.contains(*used)) {
            wrong.push(format!("ARCHITECTURE.md does not say that crates/{name} uses crates/{missing}"));
        }
    }
    none(wrong);
}

/// Pages that say where things are.
const MAPS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md"];

#[test]
fn paths_that_documents_name_exist() {
    let mut wrong = Vec::new();
    for page in MAPS {
        for path in paths(&read(&root().join(page))) {
            if !exists(&path) {
                wrong.push(format!("{page}: there is no {path}"));
            }
        }
    }
    none(wrong);
}

/// Words in backticks that look like a path. Those with capitals stand for others, and sockets are not in the tree.
fn paths(page: &str) -> Vec<String> {
    let words = page.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        word.contains('/')
            && word.starts_with(|letter: char| letter.is_ascii_lowercase())
            && word
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_./-".contains(letter))
            && !word.ends_with(".sock")
    };
    words.filter(is_path).map(str::to_owned).collect()
}

/// A path from the root, or the name of a crate and a module or directory in it.
fn exists(path: &str) -> bool {
    let (name, module) = path.split_once('/').unwrap_or((path, ""));
    let directory = root().join("crates").join(name);
    let places = [root().join(path), directory.join(module), directory.join("src").join(module)];
    places.iter().any(|place| place.exists()) || directory.join("src").join(format!("{module}.rs")).exists()
}

/// Words in backticks that look like the name of a test.
fn test_names(page: &str) -> Vec<String> {
    let words = page.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.matches('_').count() >= 2 && word.chars().all(|letter| letter.is_alphanumeric() || "_…".contains(letter))
    };
    words.filter(is_name).map(str::to_owned).collect()
}

fn function_names() -> Vec<String> {
    let mut names = Vec::new();
    for file in sources(&root().join("crates")) {
        for line in read(&file).lines() {
            if let Some((_, rest)) = line.split_once("fn ") {
                names.push(rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect());
            }
        }
    }
    names
}

#[test]
fn only_names_of_tests_are_read_from_a_page() {
    let page = "A `kubeconfig.yaml` and (`a_b_c`, `x_y`, `one_two_…`).";
    assert_eq!(test_names(page), ["a_b_c", "one_two_…"]);
}
