//! The parser of `kinds.txt`, whose first lines describe its format.

use std::sync::Arc;

use super::{Group, GroupVersionKind, Kind, Storage, Subresource, Verb, Verbs, Version};

/// A line of the table that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct CatalogueError {
    line: usize,
    problem: &'static str,
}

pub(super) fn parse(text: &str) -> Result<Vec<Group>, CatalogueError> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        add_line(&mut groups, line).ok_or(CatalogueError { line: index + 1, problem: "not understood" })?;
    }
    Ok(groups)
}

fn add_line(groups: &mut Vec<Group>, line: &str) -> Option<()> {
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
            let kind = kind(&name, &version.name, plural, words)?;
            version.kinds.push(Arc::new(kind));
        }
    }
    Some(())
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
