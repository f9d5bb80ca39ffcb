//! Checks that `docs/compatibility.md` lists the API groups and admission plugins that the code has.

use std::collections::BTreeSet;

use knarr_api::catalogue::Catalogue;

use super::enabled::{ORDERED, Runs};

const PAGE: &str = include_str!("../../../../docs/compatibility.md");

/// The rows of the first table of a section, as trimmed cells without backticks.
fn rows(section: &str) -> Vec<Vec<String>> {
    let heading = format!("\n## {section}\n");
    let text = PAGE.split_once(&heading).expect("the section exists").1;
    let table = text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    table.skip(2).map(cells).collect()
}

#[test]
fn the_page_lists_the_served_api_groups() {
    let catalogue = Catalogue::built_in();
    let served: BTreeSet<Vec<String>> = catalogue
        .groups()
        .iter()
        .map(|group| {
            let name = if group.name.is_empty() { "core" } else { &group.name };
            let versions: Vec<&str> = group.versions.iter().map(|version| version.name.as_str()).collect();
            vec![name.to_owned(), versions.join(", ")]
        })
        .collect();
    assert_eq!(rows("API groups").into_iter().collect::<BTreeSet<_>>(), served);
}

#[test]
fn the_page_lists_the_admission_plugins() {
    let listed = |status: &str| -> BTreeSet<String> {
        rows("Admission plugins").into_iter().filter(|row| row[1] == status).map(|row| row[0].clone()).collect()
    };
    let of = |runs: Runs| -> BTreeSet<String> {
        ORDERED.iter().filter(|(_, own)| *own == runs).map(|(name, _)| (*name).to_owned()).collect()
    };
    assert_eq!(listed("enabled"), of(Runs::ByDefault));
    assert_eq!(listed("optional"), of(Runs::IfEnabled));
    assert_eq!(listed("accepted"), of(Runs::Never));
}
