//! What each flag and gate does in Knarr (`status.txt`, `gate_status.txt`, both written by hand).

use std::sync::LazyLock;

use crate::{Component, gated_fields};

/// What a flag does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Works: passed on to the setting of this name.
    Passed(&'static str),
    /// Works, translated by code; the text says how.
    Translated(&'static str),
    /// Accepted without effect, as there is nothing to set; the text says why, if that needs saying.
    Ignored(&'static str),
    /// Accepted; Knarr always behaves as with this value.
    Always(&'static str, &'static str),
    /// Only the default is accepted; the text says why.
    Refused(&'static str),
}

/// The status of a flag; `None` if the table has none for it.
pub fn status(component: Component, name: &str) -> Option<Status> {
    let rows = || table().iter().filter(|row| row.name == name);
    let own = rows().find(|row| row.heading == component.name());
    own.or_else(|| rows().find(|row| row.heading == "all")).map(|row| row.status)
}

/// What a feature gate switches here, if anything.
pub fn gate_effect(name: &str) -> Option<String> {
    let written = include_str!("gate_status.txt").lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (gate, effect) = line.split_once(' ')?;
        (gate == name).then(|| effect.trim().to_owned())
    });
    let effects: Vec<String> = written.into_iter().chain(gated_fields::effect(name)).collect();
    (!effects.is_empty()).then(|| effects.join("; "))
}

pub(crate) struct Row {
    pub heading: &'static str,
    pub name: &'static str,
    pub status: Status,
}

pub(crate) fn table() -> &'static [Row] {
    static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| read(include_str!("status.txt")));
    &TABLE
}

fn read(text: &'static str) -> Vec<Row> {
    let mut heading = "";
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(next) => heading = next,
            None => rows.extend(read_row(heading, line)),
        }
    }
    rows
}

fn read_row(heading: &'static str, line: &'static str) -> Option<Row> {
    let (name, rest) = line.split_once(' ')?;
    let rest = rest.trim();
    let (word, text) = rest.split_once(' ').map_or((rest, ""), |(word, text)| (word, text.trim()));
    let status = match word {
        "same" => Status::Passed(name),
        "as" => Status::Passed(text),
        "code" => Status::Translated(text),
        "ignored" => Status::Ignored(text),
        "always" => {
            text.split_once(' ').map_or(Status::Always(text, ""), |(value, why)| Status::Always(value, why.trim()))
        }
        "refused" => Status::Refused(text),
        _ => return None,
    };
    Some(Row { heading, name, status })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flags, gates};

    #[test]
    fn every_flag_has_a_status_and_every_status_a_flag() {
        let mut wrong = Vec::new();
        for component in Component::ALL {
            for flag in flags(component) {
                if status(component, flag.name).is_none() {
                    wrong.push(format!("{} --{} has no status", component.name(), flag.name));
                }
            }
        }
        for row in table() {
            let components = Component::ALL
                .into_iter()
                .filter(|component| matches!(row.heading, "all") || row.heading == component.name());
            if !components.clone().any(|component| crate::flag(component, row.name).is_some()) {
                wrong.push(format!("[{}] {} is not a flag", row.heading, row.name));
            }
            if let Status::Refused("") = row.status {
                wrong.push(format!("[{}] {} is refused without a reason", row.heading, row.name));
            }
            let doubles = table().iter().filter(|other| other.heading == row.heading && other.name == row.name).count();
            if doubles > 1 {
                wrong.push(format!("[{}] {} has several rows", row.heading, row.name));
            }
        }
        let lines = include_str!("status.txt").lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '[']));
        if lines.clone().count() != table().len() {
            wrong.extend(lines.filter(|line| read_row("", line).is_none()).map(|line| format!("cannot read {line:?}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_gate_with_an_effect_exists_and_may_be_changed() {
        for line in include_str!("gate_status.txt").lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(' ').next().unwrap_or_default();
            let gate = gates().iter().find(|gate| gate.name == name);
            assert!(gate.is_some_and(|gate| !gate.is_locked), "{line}");
            assert!(gate_effect(name).is_some_and(|effect| !effect.is_empty()), "{line}");
        }
    }
}
