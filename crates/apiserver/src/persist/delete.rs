//! Deletes objects: at once, after their grace period, or when their finalizers are gone.

use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use knarr_api::status::Status;
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use knarr_store::{Entry, Error};
use serde_json::{Value, json};

use super::strategy::Phase;
use super::{Outcome, convert, store_error, stored};
use crate::journey_events::{self, WriteEvent};
use crate::kinds::Resource;
use crate::request::Operation;
use crate::resource_request::ResourceRequest;
use crate::route::options::{DeleteOptions, Propagation};

/// The finalizer that makes the garbage collector orphan dependents.
pub const ORPHAN: &str = "orphan";
/// The finalizer that makes the garbage collector delete dependents first.
pub const FOREGROUND: &str = "foregroundDeletion";

/// The result of a delete.
pub struct Deleted {
    pub response: DeleteResponse,
    /// Whether the object is gone, or only being deleted.
    pub gone: bool,
}

/// The body of the response: the object, or a Status of success.
pub enum DeleteResponse {
    Object(Outcome),
    Status(Value),
}

/// Deletes one object of the resource.
pub async fn delete(call: &ResourceRequest<'_>, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
    let key = call.resource.key(&call.target.namespace, name);
    let missing = || Status::not_found(call.resource.named(), name);
    if options.propagation.is_none()
        && options.orphan_dependents.is_none()
        && let Some(warning) = call.resource.rules.orphan_warning().filter(|_| call.resource.custom.is_none())
    {
        call.warn(warning);
    }
    let mut current = match call.server.store.peek(&key) {
        Some(entry) => entry,
        None => {
            call.server.store.sync().await.map_err(store_error)?;
            call.server.store.peek(&key).ok_or_else(missing)?
        }
    };
    let mut fresh = false;
    let mut admitted = false;
    loop {
        let old = convert::parse_stored(call.server, call.resource, &current).await?;
        if let Err(status) = check_preconditions(call.resource, &old, options) {
            if fresh {
                return Err(status);
            }
            call.server.store.sync().await.map_err(store_error)?;
            let newest = call.server.store.peek(&key).ok_or_else(missing)?;
            if newest.revision == current.revision {
                return Err(status);
            }
            (current, fresh) = (newest, true);
            continue;
        }
        if !admitted {
            admit(call, &old, options).await?;
            admitted = true;
        }
        match plan(call.resource, &old, options, call.now) {
            Plan::Nothing => {
                return Ok(Deleted { response: response_for(call, Outcome::Stored(current), &old), gone: false });
            }
            Plan::Mark { object, then_remove } => {
                let then_remove = then_remove && stays_until_finalized(call.resource, &object).is_none();
                if options.dry_run {
                    let response = if then_remove {
                        response_for(call, Outcome::Unstored(object.clone()), &object)
                    } else {
                        DeleteResponse::Object(Outcome::Unstored(object))
                    };
                    return Ok(Deleted { response, gone: then_remove });
                }
                let value = stored::encode(call.resource, &object);
                let storing = Instant::now();
                let marked = if value == current.value {
                    Ok(current.clone())
                } else {
                    call.server.store.update(&key, value, current.revision, None).await
                };
                if let Ok(entry) = &marked {
                    let (resource, revision) = (call.resource, entry.revision);
                    journey_events::record_write(
                        call,
                        &WriteEvent { verb: "delete", resource, object: &object, revision, storing },
                    );
                }
                match marked {
                    Ok(entry) if then_remove => {
                        let object = stored::parse(&entry)?;
                        remove(call, &key, entry.clone(), &object).await?;
                        return Ok(Deleted {
                            response: response_for(call, Outcome::Stored(entry), &object),
                            gone: true,
                        });
                    }
                    Ok(entry) => {
                        return Ok(Deleted { response: DeleteResponse::Object(Outcome::Stored(entry)), gone: false });
                    }
                    Err(Error::Conflict { current: newer, .. }) => current = newer.ok_or_else(missing)?,
                    Err(error) => return Err(store_error(error)),
                }
            }
            Plan::Remove => {
                if options.dry_run {
                    return Ok(Deleted { response: response_for(call, Outcome::Stored(current), &old), gone: true });
                }
                let storing = Instant::now();
                match call.server.store.delete(&key, current.revision).await {
                    Ok(revision) => {
                        let resource = call.resource;
                        journey_events::record_write(
                            call,
                            &WriteEvent { verb: "removed", resource, object: &old, revision, storing },
                        );
                        call.server.services.release_deleted(call, &old).await;
                        let mut gone = old.clone();
                        stored::set_revision(&mut gone, revision);
                        return Ok(Deleted { response: response_for(call, Outcome::Unstored(gone), &old), gone: true });
                    }
                    Err(Error::Conflict { current: newer, .. }) => current = newer.ok_or_else(missing)?,
                    Err(error) => return Err(store_error(error)),
                }
            }
        }
    }
}

async fn admit(call: &ResourceRequest<'_>, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    for phase in [Phase::Mutate, Phase::Validate] {
        call.admit(phase, Operation::Delete, &mut Value::Null, Some(old), options.dry_run).await?;
    }
    Ok(())
}

/// Removes an object that was just marked. It is no failure if another writer removed it first.
async fn remove(call: &ResourceRequest<'_>, key: &str, mut entry: Arc<Entry>, object: &Value) -> Result<(), Status> {
    let storing = Instant::now();
    loop {
        match call.server.store.delete(key, entry.revision).await {
            Ok(revision) => {
                let resource = call.resource;
                journey_events::record_write(
                    call,
                    &WriteEvent { verb: "removed", resource, object, revision, storing },
                );
                break;
            }
            Err(Error::Conflict { current: Some(newer), .. }) if newer.created == entry.created => entry = newer,
            Err(Error::Conflict { .. }) => return Ok(()),
            Err(error) => return Err(store_error(error)),
        }
    }
    call.server.services.release_deleted(call, object).await;
    Ok(())
}

fn check_preconditions(resource: &Resource, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    let is_namespace = resource.is("", "namespaces");
    let of = if is_namespace { resource.named() } else { resource.kind_named() };
    let name = old.text(&["metadata", "name"]);
    let own = old.text(&["metadata", "uid"]);
    if let Some(uid) = options.uid.as_ref().filter(|uid| *uid != own) {
        if is_namespace {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {own}");
            return Err(Status::conflict(of, name, &why));
        }
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({own}). The object might have been \
             deleted and then recreated"
        );
        return Err(Status::conflict(of, name, &why));
    }
    let own = old.text(&["metadata", "resourceVersion"]);
    if let Some(version) = options.resource_version.as_ref().filter(|version| *version != own) {
        if is_namespace {
            let why = format!(
                "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {own}"
            );
            return Err(Status::conflict(of, name, &why));
        }
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({own}). \
             The object might have been modified"
        );
        return Err(Status::conflict(of, name, &why));
    }
    Ok(())
}

/// What a delete does to an object.
#[derive(Debug, PartialEq)]
enum Plan {
    /// It is being deleted already.
    Nothing,
    /// Store it as being deleted; `then_remove` when nothing keeps it.
    Mark {
        object: Value,
        then_remove: bool,
    },
    Remove,
}

fn plan(resource: &Resource, old: &Value, options: &DeleteOptions, now: Timestamp) -> Plan {
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
fn stays_until_finalized(resource: &Resource, object: &Value) -> Option<fn(&mut Value)> {
    if resource.is("", "namespaces") && !object.items(&["spec", "finalizers"]).is_empty() {
        return Some(terminate_namespace);
    }
    // The first request to delete a definition makes it wait for its objects.
    let first =
        !object.has(&["metadata", "deletionTimestamp"]) || !object.items(&["metadata", "finalizers"]).is_empty();
    if first && resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        return Some(crate::custom::terminate);
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

/// Some kinds respond to a delete with the deleted object, most with a Status.
fn response_for(call: &ResourceRequest<'_>, outcome: Outcome, object: &Value) -> DeleteResponse {
    if returns_deleted(call.resource) {
        return DeleteResponse::Object(outcome);
    }
    let mut details = json!({
        "name": object.text(&["metadata", "name"]),
        "kind": call.resource.kind.plural,
        "uid": object.text(&["metadata", "uid"]),
    });
    if !call.resource.kind.group.is_empty() {
        details["group"] = call.resource.kind.group.as_str().into();
    }
    DeleteResponse::Status(
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
    )
}

fn returns_deleted(resource: &Resource) -> bool {
    const CORE: [&str; 8] = [
        "namespaces",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "podtemplates",
        "resourcequotas",
        "serviceaccounts",
        "services",
    ];
    const STORAGE: [&str; 5] =
        ["csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"];
    let plural = resource.kind.plural.as_str();
    match resource.kind.group.as_str() {
        _ if resource.custom.is_some() => false,
        "" => CORE.contains(&plural),
        "storage.k8s.io" => STORAGE.contains(&plural),
        "resource.k8s.io" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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
