//! Apply conflicts: fields of other managers that a configuration would change.

use super::managers::{ManagerId, Operation};
use super::set::Set;
use crate::decode::quoted;
use std::collections::BTreeMap;

/// A field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// `conflict with "name" using v1`
    pub message: String,
    /// `.spec.replicas`
    pub field: String,
    manager: ManagerId,
}

/// How much text the fields of all conflicts may have together: a field's path may be as long as the object.
const MAX_BYTES: usize = 1 << 20;

/// The conflicts over the fields that each manager owns; the first of them, if there are many.
pub(super) fn conflicts_of(sets: &BTreeMap<ManagerId, Set>) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    let mut left = MAX_BYTES;
    for (manager, set) in sets {
        let message = format!("conflict with {}", format_manager(manager));
        for field in set.shown(left) {
            left = left.saturating_sub(message.len() + field.len());
            conflicts.push(Conflict { message: message.clone(), field, manager: manager.clone() });
        }
    }
    conflicts
}

/// The message of the response to a configuration with conflicts.
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: {}: {}", only.message, only.field);
    }
    let mut lines = Vec::new();
    for same in conflicts.chunk_by(|a, b| a.manager == b.manager) {
        lines.push(format!("conflicts with {}:", format_manager(&same[0].manager)));
        lines.extend(same.iter().map(|conflict| format!("- {}", conflict.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

fn format_manager(manager: &ManagerId) -> String {
    let mut text = quoted(&manager.manager);
    if !manager.subresource.is_empty() {
        text = format!("{text} with subresource {}", quoted(&manager.subresource));
    }
    match manager.operation {
        Operation::Update => format!("{text} using {}", manager.api_version),
        Operation::Apply => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::PathElement;
    use super::*;

    #[test]
    fn conflicts_below_a_long_name_do_not_fill_memory() {
        let name = "n".repeat(MAX_BYTES / 16);
        let mut set = Set::default();
        (0..1_000).for_each(|at| {
            set.insert(&[PathElement::field(&name), PathElement::field(&at.to_string())]);
        });
        let manager = |name: &str| ManagerId::new(name, Operation::Apply, "", "");
        let conflicts = conflicts_of(&[(manager("a"), set.clone()), (manager("b"), set)].into());
        assert!((8..100).contains(&conflicts.len()), "{}", conflicts.len());
        assert!(conflict_message(&conflicts).len() < 2 * MAX_BYTES);
    }
}
