//! `docs/flags.md`: the table of all flags and feature gates, and what they do in Knarr.

use std::fmt::Write as _;

use crate::status::{Status, gate_effect, status};
use crate::{Component, Target, configuration_kind, fields, flags, gates};

const INTRODUCTION: &str = "\
# Flags, configuration files and feature gates of Kubernetes' components

A link to `knarr` that is named like a component of Kubernetes behaves as that component: it takes the flags below. `works`: the
flag does what it does in Kubernetes. `no effect`: it is accepted; a value other than the default causes a warning.
`refused`: only the default is accepted. Wrong values and unknown flags are refused with Kubernetes' messages.

`cargo xtask generate` writes this page from `crates/component-flags`; a test compares them.
";

/// The whole page.
pub fn render() -> String {
    let mut text = INTRODUCTION.to_owned();
    for component in Component::ALL {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {}\n\n{}\n\n", component.name(), counts(component));
        text.push_str("| flag | type | default | here | notes |\n| --- | --- | --- | --- | --- |\n");
        for flag in flags(component) {
            let (word, note) = words(status(component, flag.name), flag.name);
            let default = if flag.default.is_empty() { String::new() } else { format!("`{}`", flag.default) };
            let _ = writeln!(text, "| `--{}` | {} | {default} | {word} | {note} |", flag.name, flag.type_name);
        }
    }
    for component in Component::ALL {
        text.push_str(&field_table(component));
    }
    text.push_str(&crate::server_fields::tables());
    text.push_str(&gate_table());
    text
}

/// The fields of the configuration file that a component reads.
fn field_table(component: Component) -> String {
    let Some(kind) = configuration_kind(component) else { return String::new() };
    let mut text = format!(
        "\n## {}\n\nThe file of `{} --config`. A field that stands for a flag does what the flag does.\n\n\
         | field | type | here |\n| --- | --- | --- |\n",
        kind.kind,
        component.name()
    );
    for field in fields(kind.kind) {
        let here = match field.target {
            Target::Flag(name) => match words(status(component, name), name).0 {
                "works" => format!("works, as `--{name}`"),
                other => format!("{other}, as `--{name}`"),
            },
            Target::Setting(_) | Target::Seconds(_) => "works".to_owned(),
            Target::Ignored => "no effect".to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| `{}` | {} | {here} |", field.path, field.type_name.replace('|', " or "));
    }
    text
}

fn counts(component: Component) -> String {
    let count = |expected: &str| {
        flags(component).iter().filter(|flag| words(status(component, flag.name), "").0 == expected).count()
    };
    let all = flags(component).len();
    format!(
        "{all} flags: {} work, {} have no effect, {} are refused.",
        count("works"),
        count("no effect"),
        count("refused")
    )
}

fn words(status: Option<Status>, name: &str) -> (&'static str, String) {
    match status {
        Some(Status::Passed(target)) if target == name || name.is_empty() => ("works", String::new()),
        Some(Status::Passed(target)) => ("works", format!("`--{target}` of Knarr")),
        Some(Status::Translated(note)) => ("works", note.to_owned()),
        Some(Status::Ignored(note)) => ("no effect", note.to_owned()),
        Some(Status::Always(value, "")) => ("no effect", format!("always `{value}`")),
        Some(Status::Always(value, why)) => ("no effect", format!("always `{value}`: {why}")),
        Some(Status::Refused(why)) => ("refused", why.to_owned()),
        None => ("unknown", String::new()),
    }
}

fn gate_table() -> String {
    let switching = gates().iter().filter(|gate| gate_effect(gate.name).is_some()).count();
    let mut text = format!(
        "\n## Feature gates\n\nAll {} gates of Kubernetes are known by name, in `--feature-gates` and in configuration \
         files; locked ones cannot be changed. {switching} switch something here; another value of the others is accepted \
         with a warning. The API server drops the fields of a gate that is off from what is written, unless the stored \
         object has them; those of PodSpec in pods and in all templates, those of ClaimSpec in claims and their \
         templates.\n\n| gate | stage | default | locked | switches here |\n| --- | --- | --- | --- | --- |\n",
        gates().len()
    );
    for gate in gates() {
        let default = if gate.default { "on" } else { "off" };
        let locked = if gate.is_locked { "yes" } else { "" };
        let effect = gate_effect(gate.name).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {} | {default} | {locked} | {effect} |", gate.name, gate.stage.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flags.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert_eq!(page, super::render(), "run `cargo xtask generate`");
    }
}
