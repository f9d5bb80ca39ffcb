//! What documents refer to exists: tests, paths, links, targets of `make` and commands.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{MAY_USE, entries, file_name, none, read, root, sources};

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

/// Pages that say where things are: all their paths are those of this repository.
const MAPS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md"];
/// Directories of this repository, by which its paths are recognized in other pages.
const DIRECTORIES: &[&str] = &["crates", "docs", "fuzz", "scripts", "xtask"];

#[test]
fn paths_that_documents_name_exist() {
    let mut wrong = Vec::new();
    for page in pages() {
        let is_map = MAPS.contains(&file_name(&page).as_str());
        for path in paths(&read(&page)) {
            let is_ours = is_map || path.split('/').next().is_some_and(|first| DIRECTORIES.contains(&first));
            if is_ours && !exists(&path) {
                wrong.push(format!("{}: there is no {path}", page.display()));
            }
        }
    }
    none(wrong);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (file, anchor) in links(&text) {
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let is_page = target.extension().is_some_and(|extension| extension == "md");
            let leads = target.exists() && (!is_page || anchor.is_empty() || anchors(&read(&target)).contains(anchor));
            if !leads {
                wrong.push(format!("{}: the link to {file}#{anchor} leads nowhere", page.display()));
            }
        }
    }
    none(wrong);
}

#[test]
fn commands_that_documents_name_exist() {
    let makefile = read(&root().join("Makefile"));
    let targets: BTreeSet<&str> = makefile.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    let reference = read(&root().join("docs/commands.md"));
    let headings = reference.lines().filter_map(|line| line.trim_start_matches('#').trim().strip_prefix("`knarr "));
    let mut commands: BTreeSet<&str> = headings.map(first_word).collect();
    commands.insert("help");
    let mut wrong = Vec::new();
    for page in pages() {
        for word in read(&page).split('`').skip(1).step_by(2) {
            for (program, known) in [("make ", &targets), ("knarr ", &commands)] {
                let name = word.strip_prefix(program).map_or("", first_word);
                if !name.is_empty() && !known.contains(name) {
                    wrong.push(format!("{}: there is no {program}{name}", page.display()));
                }
            }
        }
    }
    none(wrong);
}

/// All pages of documentation.
fn pages() -> Vec<PathBuf> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let all = entries(&root()).into_iter().chain(entries(&root().join("docs")));
    all.filter(|path| is_page(path) && file_name(path) != "CHANGELOG.md").collect()
}

/// The word of lower-case letters, digits and dashes that a text starts with; none if it starts with a flag.
fn first_word(text: &str) -> &str {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let end = text.find(|letter| !is_letter(letter)).unwrap_or(text.len());
    if text.starts_with('-') { "" } else { &text[..end] }
}

/// The files and anchors of links that stay within this repository.
fn links(page: &str) -> Vec<(&str, &str)> {
    let targets = page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let own = targets.filter(|target| !target.contains(':') && !target.contains(char::is_whitespace));
    own.map(|target| target.split_once('#').unwrap_or((target, ""))).collect()
}

/// The names by which links lead to the headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let is_kept = |letter: &char| letter.is_alphanumeric() || "_- ".contains(*letter);
    headings
        .map(|heading| heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn links_and_headings_are_read() {
    let page = "# How `it` works: a tour\n[a](b.md#how-it) and [web](https://x.y/#z), [here](#top)";
    assert_eq!(links(page), [("b.md", "how-it"), ("", "top")]);
    assert_eq!(anchors(page), BTreeSet::from(["how-it-works-a-tour".to_owned()]));
    assert_eq!(["cluster create`", "run", "--help"].map(first_word), ["cluster", "run", ""]);
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
