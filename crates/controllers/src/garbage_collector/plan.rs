//! Decides what happens to an object, by the state of its owners.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PropagationPolicy;

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OwnerState {
    Present,
    Gone,
    /// Being deleted, and waiting for its dependents to be deleted first.
    Waiting,
}

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Nothing,
    /// Other owners remain: only these references are removed.
    DropReferences(Vec<String>),
    Delete {
        policy: PropagationPolicy,
        /// Whether owners stop blocking first, because the dependents wait in turn.
        unblock: bool,
    },
}

/// Whether an object can have the name. Requests for others would lead elsewhere: a reference to `x/proxy/path` to what a
/// pod serves there, with the rights of this controller.
pub(super) fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%?#".contains(&byte))
}

pub(super) fn plan(
    owners: &[OwnerReference],
    states: &[OwnerState],
    has_dependents: bool,
    finalizers: &[String],
) -> Action {
    if owners.is_empty() {
        return Action::Nothing;
    }
    let lost = owners.iter().zip(states).filter(|(_, owner_state)| **owner_state != OwnerState::Present);
    let lost: Vec<String> = lost.map(|(owner, _)| owner.uid.clone()).collect();
    if lost.len() < owners.len() {
        return if lost.is_empty() { Action::Nothing } else { Action::DropReferences(lost) };
    }
    if has_dependents && states.contains(&OwnerState::Waiting) {
        return Action::Delete { policy: PropagationPolicy::Foreground, unblock: true };
    }
    let has = |finalizer: &str| finalizers.iter().any(|present| present == finalizer);
    let policy = if has(ORPHAN) {
        PropagationPolicy::Orphan
    } else if has(FOREGROUND) {
        PropagationPolicy::Foreground
    } else {
        PropagationPolicy::Background
    };
    Action::Delete { policy, unblock: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_no_other_path() {
        for name in ["web", "system:controller:x", "a.b", "A_b"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "x:80/proxy/y", "a%2Fproxy", "?watch=1", "a?b", "a#b", "a b", "\u{e4}", "a\n"] {
            assert!(!is_name(name), "{name}");
        }
    }

    use OwnerState::{Gone, Present, Waiting};

    #[test]
    fn the_standing_of_owners_decides() {
        let delete = |policy, unblock| Action::Delete { policy, unblock };
        let drop = |uids: &[&str]| Action::DropReferences(uids.iter().map(|uid| uid.to_string()).collect());
        for (states, has_dependents, finalizer, expected) in [
            (vec![], false, "", Action::Nothing),
            (vec![Present], false, "", Action::Nothing),
            (vec![Gone], false, "", delete(PropagationPolicy::Background, false)),
            (vec![Gone, Present], false, "", drop(&["0"])),
            (vec![Present, Waiting], true, "", drop(&["1"])),
            (vec![Gone, Waiting], false, "", delete(PropagationPolicy::Background, false)),
            (vec![Gone, Waiting], true, "", delete(PropagationPolicy::Foreground, true)),
            (vec![Gone], true, ORPHAN, delete(PropagationPolicy::Orphan, false)),
            (vec![Gone], true, FOREGROUND, delete(PropagationPolicy::Foreground, false)),
        ] {
            let owners: Vec<OwnerReference> =
                (0..states.len()).map(|n| OwnerReference { uid: n.to_string(), ..OwnerReference::default() }).collect();
            let finalizers = if finalizer.is_empty() { vec![] } else { vec![finalizer.to_owned()] };
            assert_eq!(plan(&owners, &states, has_dependents, &finalizers), expected, "{states:?}");
        }
    }
}
