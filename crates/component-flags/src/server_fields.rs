//! The fields of the API server's configuration files: `server_fields.txt` is generated, `server_field_status.txt` says which of
//! them do not work here. The API server reads these files itself; a test compares its tables with this one.

use std::fmt::Write as _;
use std::sync::LazyLock;

/// A field of a configuration file of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerField {
    pub kind: &'static str,
    /// Empty for a file without a version.
    pub group: &'static str,
    pub version: &'static str,
    /// `[]` stands for every element of a list.
    pub path: &'static str,
    pub type_name: &'static str,
    pub effect: Effect,
}

/// What a field does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Works,
    /// Some values work; the text says which.
    Partly(&'static str),
    Ignored(&'static str),
    Refused(&'static str),
}

/// All fields, by file.
pub fn server_fields() -> &'static [ServerField] {
    static TABLE: LazyLock<Vec<ServerField>> = LazyLock::new(read);
    &TABLE
}

fn read() -> Vec<ServerField> {
    let (mut kind, mut group, mut version) = ("", "", "");
    let mut fields = Vec::new();
    for line in include_str!("server_fields.txt").lines() {
        let Some((name, rest)) = line.split_once('\t') else { continue };
        match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(heading) => {
                kind = heading;
                (group, version) = rest.split_once('/').unwrap_or_default();
            }
            None => {
                let effect = effect(kind, group, name);
                fields.push(ServerField { kind, group, version, path: name, type_name: rest, effect });
            }
        }
    }
    fields
}

struct Exception {
    kind: String,
    group: &'static str,
    path: &'static str,
    effect: Effect,
}

fn exceptions() -> impl Iterator<Item = Exception> {
    include_str!("server_field_status.txt").lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.splitn(5, ' ');
        let (kind, group, path, word) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let text = words.next().unwrap_or_default();
        let effect = match word {
            "partly" => Effect::Partly(text),
            "ignored" => Effect::Ignored(text),
            "refused" => Effect::Refused(text),
            _ => return None,
        };
        let group = if group == "-" { "" } else { group };
        Some(Exception { kind: kind.replace('-', " "), group, path, effect })
    })
}

fn effect(kind: &str, group: &str, path: &str) -> Effect {
    let found =
        exceptions().find(|one| one.kind == kind && one.group == group && (one.path == "*" || one.path == path));
    found.map_or(Effect::Works, |one| one.effect)
}

/// The tables of the page of flags.
pub(crate) fn tables() -> String {
    let mut text =
        "\n## Configuration files of kube-apiserver\n\nThe files of `--admission-control-config-file` and its \
                    plugins, `--authentication-config`, `--authorization-config`, `--encryption-provider-config`, \
                    `--tracing-config-file` and `--egress-selector-config-file`.\n"
            .to_owned();
    let mut last = ("", "");
    for field in server_fields() {
        if last != (field.kind, field.group) {
            last = (field.kind, field.group);
            let version = if field.group.is_empty() {
                "no version".to_owned()
            } else {
                format!("`{}/{}`", field.group, field.version)
            };
            // Writing to a String cannot fail.
            let _ = write!(text, "\n### {} ({version})\n\n| field | type | here |\n| --- | --- | --- |\n", field.kind);
        }
        let here = match field.effect {
            Effect::Works => "works".to_owned(),
            Effect::Partly(note) => format!("partly: {note}"),
            Effect::Ignored("") => "no effect".to_owned(),
            Effect::Ignored(note) => format!("no effect: {note}"),
            Effect::Refused(note) => format!("refused: {note}"),
        };
        let _ = writeln!(text, "| `{}` | {} | {here} |", field.path, field.type_name.replace('|', " or "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exception_belongs_to_a_field() {
        let lines = include_str!("server_field_status.txt").lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(exceptions().count(), lines, "a line cannot be read");
        for one in exceptions() {
            let is_known = server_fields().iter().any(|field| {
                field.kind == one.kind && field.group == one.group && (one.path == "*" || one.path == field.path)
            });
            assert!(is_known, "{} {} {}", one.kind, one.group, one.path);
        }
    }
}
