//! Apply conflicts: fields of other managers that a configuration would change.

use super::element::PathElement;
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
    pub(super) path: Vec<PathElement>,
    manager: ManagerId,
}

pub(super) fn conflicts_of(sets: BTreeMap<ManagerId, Set>) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    for (manager, set) in sets {
        for path in set.paths() {
            let field = path.iter().map(ToString::to_string).collect();
            let message = format!("conflict with {}", format_manager(&manager));
            conflicts.push(Conflict { message, field, path, manager: manager.clone() });
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
