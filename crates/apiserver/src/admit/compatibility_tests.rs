//! Checks that `docs/compatibility.md` lists the API groups and admission plugins that the code has.

use std::collections::BTreeSet;

use knarr_api::catalogue::{Catalogue, RuntimeConfig};

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

/// Whether a resource of an optional version is served, and which gate it needs, as the page lists it.
#[test]
fn the_page_lists_the_optional_versions() {
    let mut listed = BTreeSet::new();
    for row in rows("Versions that are served when asked for") {
        for resource in row[2].split(", ") {
            listed.insert((format!("{}/{}/{resource}", row[0], row[1]), row[3].clone()));
        }
    }
    let all = RuntimeConfig::parse(["api/all=true"]).unwrap().select(&|_| true).unwrap();
    let absent = all.absent.into_iter().map(|path| (path, "no".to_owned()));
    let is_optional = |version: &str| version.contains("alpha") || version.contains("beta");
    let served = all.catalogue.kinds().filter(|kind| is_optional(&kind.version));
    let served = served.map(|kind| (format!("{}/{}/{}", kind.group, kind.version, kind.plural), "yes".to_owned()));
    assert_eq!(listed, served.chain(absent).collect::<BTreeSet<_>>());
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
