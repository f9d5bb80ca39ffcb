//! The parser of `kinds.txt` and `optional_kinds.txt`, whose first lines describe their format.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Group, GroupVersionKind, Kind, Storage, Subresource, Verb, Verbs, Version};

/// A line of the table that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct CatalogueError {
    line: usize,
    problem: &'static str,
}

/// What a kind needs in order to be served, besides its version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// A feature gate.
    pub gate: Option<String>,
    /// Whether this program lacks the kind.
    pub is_absent: bool,
}

/// What a table holds.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub groups: Vec<Group>,
    /// By group, version and plural; kinds that are always served are left out.
    pub needs: HashMap<[String; 3], Needs>,
}

pub(super) fn parse(text: &str) -> Result<Table, CatalogueError> {
    let mut table = Table::default();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        add_line(&mut table, line).ok_or(CatalogueError { line: index + 1, problem: "not understood" })?;
    }
    Ok(table)
}

fn add_line(table: &mut Table, line: &str) -> Option<()> {
    let groups = &mut table.groups;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    match first {
        "group" => groups.push(Group {
            name: group_name(words.next()?).to_owned(),
            priority: words.next()?.parse().ok()?,
            versions: Vec::new(),
        }),
        "version" => groups.last_mut()?.versions.push(Version {
            name: words.next()?.to_owned(),
            priority: words.next()?.parse().ok()?,
            kinds: Vec::new(),
        }),
        name if line.starts_with(' ') => {
            let kind = groups.last_mut()?.versions.last_mut()?.kinds.last_mut()?;
            let subresource = subresource(kind, name, words)?;
            Arc::get_mut(kind)?.subresources.push(subresource);
        }
        plural => {
            let group = groups.last_mut()?;
            let name = group.name.clone();
            let version = group.versions.last_mut()?;
            let (words, needs) = needs(words);
            if needs != Needs::default() {
                table.needs.insert([name.clone(), version.name.clone(), plural.to_owned()], needs);
            }
            let kind = kind(&name, &version.name, plural, words.into_iter())?;
            version.kinds.push(Arc::new(kind));
        }
    }
    Some(())
}

/// Separates what a kind needs from the words that describe it.
fn needs<'a>(words: impl Iterator<Item = &'a str>) -> (Vec<&'a str>, Needs) {
    let mut needs = Needs::default();
    let mut others = Vec::new();
    for word in words {
        match (word, word.strip_prefix("gate=")) {
            ("absent", _) => needs.is_absent = true,
            (_, Some(gate)) => needs.gate = Some(gate.to_owned()),
            _ => others.push(word),
        }
    }
    (others, needs)
}

fn kind<'a>(group: &str, version: &str, plural: &str, mut words: impl Iterator<Item = &'a str>) -> Option<Kind> {
    let singular = words.next()?.to_owned();
    let name = words.next()?;
    let namespaced = match words.next()? {
        "namespaced" => true,
        "cluster" => false,
        _ => return None,
    };
    let mut kind = Kind {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: name.to_owned(),
        list_kind: format!("{name}List"),
        plural: plural.to_owned(),
        singular,
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: verbs(words.next()?)?,
        subresources: Vec::new(),
        type_name: words.next()?.to_owned(),
        storage: None,
        custom: false,
        selectable: Vec::new(),
    };
    for word in words {
        match word.split_once('=')? {
            ("short", names) => kind.short_names = names.split(',').map(str::to_owned).collect(),
            ("categories", names) => kind.categories = names.split(',').map(str::to_owned).collect(),
            ("store", prefix) => {
                kind.storage = Some(Storage {
                    prefix: format!("/registry/{prefix}/"),
                    group: group.to_owned(),
                    version: version.to_owned(),
                });
            }
            ("as", stored) => {
                let (group, version) = stored.split_once('/')?;
                let storage = kind.storage.as_mut()?;
                storage.group = group_name(group).to_owned();
                storage.version = version.to_owned();
            }
            _ => return None,
        }
    }
    Some(kind)
}

fn subresource<'a>(parent: &Kind, name: &str, mut words: impl Iterator<Item = &'a str>) -> Option<Subresource> {
    let kind = words.next()?;
    let kind = match kind.rsplit_once('/') {
        Some((version, kind)) => GroupVersionKind::new(version, kind),
        None => GroupVersionKind { kind: kind.to_owned(), ..parent.group_version_kind() },
    };
    Some(Subresource { name: name.to_owned(), kind, verbs: verbs(words.next()?)? })
}

fn verbs(names: &str) -> Option<Verbs> {
    if names == "all" { Some(Verbs::ALL) } else { names.split(',').map(Verb::parse).collect() }
}

fn group_name(written: &str) -> &str {
    if written == "core" { "" } else { written }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_line() {
        for (text, line) in [
            ("group apps many", 1),
            ("\nversion v1 1", 2),
            ("group a 1\nversion v1 1\nthings thing Thing somewhere all Thing", 3),
            ("group a 1\nversion v1 1\nthings thing Thing cluster fly Thing", 3),
            ("group a 1\nversion v1 1\n  status Thing get", 3),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
