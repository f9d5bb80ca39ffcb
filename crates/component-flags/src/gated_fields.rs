//! The fields that belong to feature gates (`gated_fields.txt`). `knarr-rules` drops those of gates that are off.

use std::sync::LazyLock;

/// Fields of one kind that a gate switches together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatedFields {
    pub gate: &'static str,
    /// `KIND.GROUP`, or the name of a structure that several kinds contain.
    pub kind: &'static str,
    pub paths: Vec<&'static str>,
    /// Fields whose presence in the stored object keeps those of `paths`; empty if it is these themselves.
    pub unless: Vec<&'static str>,
    /// Whether a component acts on the fields; otherwise they are only stored.
    pub has_effect: bool,
}

/// All rows of the table.
pub fn gated_fields() -> &'static [GatedFields] {
    static TABLE: LazyLock<Vec<GatedFields>> = LazyLock::new(|| lines().filter_map(read).collect());
    &TABLE
}

fn lines() -> impl Iterator<Item = &'static str> {
    include_str!("gated_fields.txt").lines().filter(|line| !line.starts_with('#'))
}

fn read(line: &'static str) -> Option<GatedFields> {
    let mut words = line.split(' ');
    let has_effect = match words.next()? {
        "works" => true,
        "stored" => false,
        _ => return None,
    };
    let (gate, kind) = (words.next()?, words.next()?);
    let paths: Vec<_> = words.by_ref().take_while(|word| *word != "unless").collect();
    let unless = words.collect();
    (!paths.is_empty()).then_some(GatedFields { gate, kind, paths, unless, has_effect })
}

/// What a gate does to fields, for the table of gates; `None` if it has none.
pub(crate) fn effect(gate: &str) -> Option<String> {
    let rows: Vec<_> = gated_fields().iter().filter(|row| row.gate == gate).collect();
    let first = rows.first()?;
    let mut named: Vec<String> = Vec::new();
    for row in &rows {
        let kind = row.kind.split('.').next().unwrap_or_default();
        let fields = row.paths.iter().map(|path| format!("`{}`", readable(path)));
        named.push(format!("{} of {kind}", fields.collect::<Vec<_>>().join(", ")));
    }
    let end = if first.has_effect { "" } else { "; kept when on, but nothing acts on them" };
    // Bars separate the columns of the table.
    Some(format!("fields: {}{end}", named.join("; ")).replace('|', "\\|"))
}

/// A path without the marks that only say when it is removed.
fn readable(path: &str) -> String {
    let end = path.find(['!', '~']).unwrap_or(path.len());
    path[..end].replace(['?', '$'], "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates;

    #[test]
    fn rows_are_read_and_belong_to_gates_that_can_be_changed() {
        for line in lines() {
            assert!(read(line).is_some(), "{line}");
        }
        for row in gated_fields() {
            let gate = gates().iter().find(|gate| gate.name == row.gate);
            assert!(gate.is_some_and(|gate| !gate.is_locked), "{row:?}");
            let alike = gated_fields().iter().filter(|other| other.gate == row.gate);
            assert!(alike.clone().all(|other| other.has_effect == row.has_effect), "{row:?}");
        }
    }

    #[test]
    fn effects_are_written_for_readers() {
        assert_eq!(effect("HostnameOverride").as_deref(), Some("fields: `hostnameOverride` of PodSpec"));
        assert_eq!(
            effect("VolumeLimitScaling").as_deref(),
            Some("fields: `spec.preventPodSchedulingIfMissing` of CSIDriver; kept when on, but nothing acts on them")
        );
        assert_eq!(effect("APIServerTracing"), None);
    }
}
