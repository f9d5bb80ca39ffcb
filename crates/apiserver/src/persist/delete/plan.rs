//! What a delete does to an object: a pure function of the object, its kind and the options.

use jiff::{SignedDuration, Timestamp};
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use knarr_rules::apiextensions::custom_resource_definition;
use serde_json::{Value, json};

use crate::kinds::Resource;
use crate::route::options::{DeleteOptions, Propagation};

/// The finalizer that makes the garbage collector orphan dependents.
const ORPHAN: &str = "orphan";
/// The finalizer that makes the garbage collector delete dependents first.
const FOREGROUND: &str = "foregroundDeletion";

/// What a delete does to an object.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// It is being deleted already.
    Nothing,
    /// Store it as being deleted; `then_remove` when nothing keeps it.
    Mark {
        object: Value,
        then_remove: bool,
    },
    Remove,
}

/// Plans the deletion of an object. The outcome depends on its grace period, its finalizers and its kind.
pub fn plan(resource: &Resource, old: &Value, options: &DeleteOptions, now: Timestamp) -> Plan {
    let emptying = resource.is("", "namespaces") && !old.items(&["spec", "finalizers"]).is_empty();
    if emptying && old.has(&["metadata", "deletionTimestamp"]) {
        return Plan::Nothing;
    }
    let requested = options.grace_period.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let mut object = old.clone();
    let graceful = match start_or_shorten_grace(resource, &mut object, requested, now) {
        Grace::Pending => return Plan::Nothing,
        Grace::Starts(seconds) => Some(seconds),
        Grace::None => None,
    };
    let before: Vec<String> = finalizers(old);
    let after = finalizers_for(resource, &before, options);
    let changed = {
        let (mut a, mut b) = (before.clone(), after.clone());
        a.sort();
        b.sort();
        a != b
    };
    if changed {
        if after.is_empty() {
            object.remove(&["metadata", "finalizers"]);
        } else {
            object.set(&["metadata", "finalizers"], json!(after));
        }
    }
    let kept = !after.is_empty();
    match graceful {
        Some(seconds) => Plan::Mark { object, then_remove: seconds == 0 && !kept },
        None if kept || stays_until_finalized(resource, &object).is_some() => {
            let stay = stays_until_finalized(resource, &object);
            if stay.is_none() && !object.has(&["metadata", "deletionTimestamp"]) {
                count_generation(&mut object);
            }
            mark(&mut object, now);
            if let Some(stay) = stay {
                stay(&mut object);
            }
            Plan::Mark { object, then_remove: false }
        }
        None => Plan::Remove,
    }
}

enum Grace {
    None,
    Pending,
    Starts(i64),
}

/// Starts a pod's grace period, or shortens one that runs.
fn start_or_shorten_grace(resource: &Resource, object: &mut Value, requested: Option<i64>, now: Timestamp) -> Grace {
    if resource.custom.is_some() {
        return Grace::None;
    }
    let Some(seconds) = resource.rules.grace_period(object, requested) else { return Grace::None };
    if !object.has(&["metadata", "deletionTimestamp"]) {
        let until = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        object.set(&["metadata", "deletionTimestamp"], time::seconds(until));
        object.set(&["metadata", "deletionGracePeriodSeconds"], seconds);
        count_generation(object);
        return Grace::Starts(seconds);
    }
    let running = object.integer(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    if running == 0 {
        return Grace::None;
    }
    let Some(mut shorter) = requested.filter(|requested| *requested < running) else { return Grace::Pending };
    let ends = time::parse(object.text(&["metadata", "deletionTimestamp"])).unwrap_or(now);
    let mut ends = ends.saturating_add(SignedDuration::from_secs(shorter - running)).unwrap_or(now);
    if ends < now {
        ends = now;
        if shorter != 0 {
            shorter = 1;
        }
    }
    object.set(&["metadata", "deletionTimestamp"], time::seconds(ends));
    object.set(&["metadata", "deletionGracePeriodSeconds"], shorter);
    Grace::Starts(shorter)
}

fn count_generation(object: &mut Value) {
    if let Some(generation) = object.integer(&["metadata", "generation"]).filter(|generation| *generation > 0) {
        object.set(&["metadata", "generation"], generation + 1);
    }
}

/// Marks an object that only its finalizers keep.
fn mark(object: &mut Value, now: Timestamp) {
    let later = time::parse(object.text(&["metadata", "deletionTimestamp"])).is_none_or(|until| until > now);
    if later {
        object.set(&["metadata", "deletionTimestamp"], time::seconds(now));
    }
    object.set(&["metadata", "deletionGracePeriodSeconds"], 0);
}

/// Namespaces stay until their contents are gone, custom resource definitions until their objects are. Returns what else
/// changes in an object that stays.
pub fn stays_until_finalized(resource: &Resource, object: &Value) -> Option<fn(&mut Value)> {
    if resource.is("", "namespaces") && !object.items(&["spec", "finalizers"]).is_empty() {
        return Some(terminate_namespace);
    }
    // The first request to delete a definition makes it wait for its objects.
    let first =
        !object.has(&["metadata", "deletionTimestamp"]) || !object.items(&["metadata", "finalizers"]).is_empty();
    if first && resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        return Some(custom_resource_definition::terminate);
    }
    None
}

fn terminate_namespace(object: &mut Value) {
    object.remove(&["metadata", "deletionGracePeriodSeconds"]);
    object.set(&["status", "phase"], "Terminating");
}

fn finalizers(object: &Value) -> Vec<String> {
    let all = object.items(&["metadata", "finalizers"]).iter();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The finalizers of an object, with those by which the garbage collector knows what to do with dependents.
fn finalizers_for(resource: &Resource, before: &[String], options: &DeleteOptions) -> Vec<String> {
    let is_event = resource.kind.plural == "events" && resource.custom.is_none();
    let has = |name: &str| before.iter().any(|own| own == name);
    let (orphan, foreground) = match (options.orphan_dependents, options.propagation) {
        _ if is_event => (false, false),
        (Some(orphan), _) => (orphan, false),
        (None, Some(Propagation::Orphan)) => (true, false),
        (None, Some(Propagation::Foreground)) => (false, true),
        (None, Some(Propagation::Background)) => (false, false),
        (None, None) => (has(ORPHAN) || orphans_by_default(resource) && !has(FOREGROUND), has(FOREGROUND)),
    };
    let mut after: Vec<String> = before.iter().filter(|name| *name != ORPHAN && *name != FOREGROUND).cloned().collect();
    if orphan {
        after.push(ORPHAN.to_owned());
    }
    if foreground {
        after.push(FOREGROUND.to_owned());
    }
    after
}

/// The oldest kinds orphan their dependents unless the client says otherwise.
fn orphans_by_default(resource: &Resource) -> bool {
    resource.custom.is_none() && resource.rules.orphans_by_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use knarr_api::catalogue::Catalogue;

    use super::*;
    use crate::kinds::{Kinds, no_descriptions};

    fn resource(plural: &str) -> Arc<Resource> {
        Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions())
            .resource("", "v1", plural)
            .unwrap()
            .clone()
    }

    #[test]
    fn an_object_without_finalizers_is_removed_at_once() {
        let object = json!({"metadata": {"name": "m"}});
        assert_eq!(
            plan(&resource("configmaps"), &object, &DeleteOptions::default(), Timestamp::UNIX_EPOCH),
            Plan::Remove
        );
    }

    #[test]
    fn finalizers_and_policies_keep_an_object() {
        let object = json!({"metadata": {"name": "m", "generation": 1, "finalizers": ["a/b"]}});
        let options = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
        match plan(&resource("configmaps"), &object, &options, Timestamp::UNIX_EPOCH) {
            Plan::Mark { object, then_remove: false } => {
                assert_eq!(object["metadata"]["finalizers"], json!(["a/b", "foregroundDeletion"]));
                assert_eq!(object["metadata"]["deletionTimestamp"], "1970-01-01T00:00:00Z");
                assert_eq!(object["metadata"]["generation"], 2);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_namespace_stays_until_it_is_finalized() {
        let object =
            json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        match plan(&resource("namespaces"), &object, &DeleteOptions::default(), Timestamp::UNIX_EPOCH) {
            Plan::Mark { object, then_remove: false } => assert_eq!(object["status"]["phase"], "Terminating"),
            other => panic!("{other:?}"),
        }
    }
}
