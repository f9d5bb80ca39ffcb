//! Conditions of a terminating namespace: how far its deletion has come.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NamespaceCondition, NamespaceStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_client::time;

use super::Remaining;
use crate::common::discovery::Kind;
use crate::error::Result;

/// The outcome of one attempt to empty a namespace.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Objects left, by "resource.group".
    pub remaining: BTreeMap<String, usize>,
    pub finalizers: BTreeMap<String, usize>,
    pub failures: Vec<String>,
    pub discovery: Option<String>,
    /// Only pods were deleted, since some remain.
    pub pods_only: bool,
    pub wait_seconds: i64,
}

impl Outcome {
    pub fn add(&mut self, kind: &Kind, left: Result<Remaining>) {
        match left {
            Ok(left) => {
                if left.count > 0 {
                    self.remaining.insert(format!("{}.{}", kind.resource.plural, kind.resource.group), left.count);
                }
                for (finalizer, count) in left.finalizers {
                    *self.finalizers.entry(finalizer).or_default() += count;
                }
                self.failures.extend(left.failure);
                self.wait_seconds = self.wait_seconds.max(left.wait_seconds);
            }
            Err(error) => self.failures.push(error.to_string()),
        }
    }

    /// Whether pods may be left, after an attempt to delete them: also if that failed. Network policies must outlive them.
    pub fn may_have_pods(&self) -> bool {
        !self.remaining.is_empty() || !self.failures.is_empty()
    }
}

pub(super) fn updated(mut status: NamespaceStatus, outcome: &Outcome, now: Timestamp) -> NamespaceStatus {
    let reports_content = !outcome.pods_only;
    let remaining = outcome.remaining.iter().map(|(what, count)| format!("{what} has {count} resource instances"));
    let finalizers = outcome.finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances"));
    let remaining: Vec<String> = remaining.collect();
    let finalizers: Vec<String> = finalizers.collect();
    let mut failures = outcome.failures.clone();
    failures.sort();
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            outcome.discovery.clone(),
            "DiscoveryFailed",
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            "GroupVersionParsingFailed",
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            (!failures.is_empty()).then(|| {
                format!("Failed to delete all resource types, {} remaining: {}", failures.len(), failures.join(", "))
            }),
            "ContentDeletionFailed",
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            (reports_content && !remaining.is_empty())
                .then(|| format!("Some resources are remaining: {}", remaining.join(", "))),
            "SomeResourcesRemain",
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            (reports_content && !finalizers.is_empty())
                .then(|| format!("Some content in the namespace has finalizers remaining: {}", finalizers.join(", "))),
            "SomeFinalizersRemain",
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ];
    let conditions = status.conditions.get_or_insert_default();
    for (kind, problem, reason, fine) in rows {
        let (condition_status, reason, message) = match problem {
            Some(message) => ("True", reason, message),
            None => ("False", fine.0, fine.1.to_owned()),
        };
        set(conditions, kind, condition_status, reason, message, now);
    }
    status
}

fn set(
    conditions: &mut Vec<NamespaceCondition>,
    kind: &str,
    condition_status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let at = conditions.iter().position(|condition| condition.type_ == kind).unwrap_or_else(|| {
        conditions.push(NamespaceCondition { type_: kind.to_owned(), ..NamespaceCondition::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[at];
    if condition.status != condition_status {
        condition.last_transition_time = Some(time::truncated(now));
    }
    condition.status = condition_status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(outcome: Outcome) -> Vec<(String, String, String)> {
        let status = updated(NamespaceStatus::default(), &outcome, Timestamp::UNIX_EPOCH);
        let row = |c: NamespaceCondition| (c.type_, c.status, c.message.unwrap_or_default());
        status.conditions.unwrap().into_iter().map(row).collect()
    }

    /// CVE-2024-7598: policies are deleted after the pods that they isolate, also if those cannot be deleted.
    #[test]
    fn other_objects_outlive_pods() {
        let failed = Outcome { failures: vec!["pods \"p\" is forbidden".to_owned()], ..Outcome::default() };
        let left = Outcome { remaining: [("pods.".to_owned(), 1)].into(), ..Outcome::default() };
        assert!(failed.may_have_pods() && left.may_have_pods() && !Outcome::default().may_have_pods());
    }

    #[test]
    fn remaining_content_is_reported() {
        let fine = rendered(Outcome::default());
        assert_eq!(fine.len(), 5);
        assert!(fine.iter().all(|row| row.1 == "False"));
        let rows = rendered(Outcome {
            remaining: [("configmaps.".to_owned(), 2), ("jobs.batch".to_owned(), 1)].into(),
            finalizers: [("a.b/c".to_owned(), 3)].into(),
            ..Outcome::default()
        });
        assert_eq!(
            rows[3].2,
            "Some resources are remaining: configmaps. has 2 resource instances, jobs.batch has 1 resource instances"
        );
        assert_eq!(rows[4].2, "Some content in the namespace has finalizers remaining: a.b/c in 3 resource instances");
        let pods =
            rendered(Outcome { remaining: [("pods.".to_owned(), 1)].into(), pods_only: true, ..Outcome::default() });
        assert_eq!(pods[3].1, "False", "content is reported once pods are gone");
        let failed = rendered(Outcome { failures: vec!["b".into(), "a".into()], ..Outcome::default() });
        assert_eq!(failed[2].2, "Failed to delete all resource types, 2 remaining: a, b");
    }

    #[test]
    fn a_transition_is_a_change_of_status() {
        let first = updated(NamespaceStatus::default(), &Outcome::default(), Timestamp::UNIX_EPOCH);
        let later = updated(first.clone(), &Outcome::default(), Timestamp::MAX);
        assert_eq!(first, later);
    }
}
