//! Deletes objects: at once, after their grace period, or when their finalizers are gone.

mod plan;

use std::sync::Arc;
use std::time::Instant;

use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_store::{Entry, Error, Range};
use serde_json::{Value, json};

use super::strategy::Phase;
use super::{Outcome, store_error};
use crate::convert;
use crate::journey_events::{self, WriteEvent};
use crate::kinds::Resource;
use crate::request::Operation;
use crate::resource_request::ResourceRequest;
use crate::route::options::DeleteOptions;
use crate::stored;
use plan::{Plan, plan, stays_until_finalized};

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
    call.backend.store.prepare_read(&Range::key(&key)).await;
    let mut current = match call.backend.store.peek(&key) {
        Some(entry) => entry,
        None => {
            call.backend.store.sync().await.map_err(store_error)?;
            call.backend.store.prepare_read(&Range::key(&key)).await;
            call.backend.store.peek(&key).ok_or_else(missing)?
        }
    };
    let mut fresh = false;
    loop {
        let old = convert::parse_stored(call.backend, call.resource, &current).await?;
        if let Err(status) = check_preconditions(call.resource, &old, options) {
            if fresh {
                return Err(status);
            }
            call.backend.store.sync().await.map_err(store_error)?;
            call.backend.store.prepare_read(&Range::key(&key)).await;
            let newest = call.backend.store.peek(&key).ok_or_else(missing)?;
            if newest.revision == current.revision {
                return Err(status);
            }
            (current, fresh) = (newest, true);
            continue;
        }
        // Again if it changed meanwhile, or is another object of the same name: what is deleted is what was admitted.
        admit(call, &old, options).await?;
        let attempt = match plan(call.resource, &old, options, call.now) {
            Plan::Nothing => {
                return Ok(Deleted { response: response_for(call, Outcome::Stored(current), &old), gone: false });
            }
            Plan::Mark { object, then_remove } => {
                let then_remove = then_remove && stays_until_finalized(call.resource, &object).is_none();
                mark(call, &key, &current, object, then_remove, options.dry_run).await?
            }
            Plan::Remove if options.dry_run => {
                return Ok(Deleted { response: response_for(call, Outcome::Stored(current), &old), gone: true });
            }
            Plan::Remove => remove(call, &key, &current, &old).await?,
        };
        match attempt {
            Attempt::Done(deleted) => return Ok(deleted),
            Attempt::Conflict(newer) => current = newer.ok_or_else(missing)?,
        }
    }
}

/// What came of an attempt to write a deletion.
enum Attempt {
    Done(Deleted),
    /// Another writer was faster; the object as it is now, if it exists.
    Conflict(Option<Arc<Entry>>),
}

/// Stores the object as being deleted, and removes it if nothing keeps it.
async fn mark(
    call: &ResourceRequest<'_>,
    key: &str,
    current: &Arc<Entry>,
    object: Value,
    then_remove: bool,
    dry_run: bool,
) -> Result<Attempt, Status> {
    if dry_run {
        let response = if then_remove {
            response_for(call, Outcome::Unstored(object.clone()), &object)
        } else {
            DeleteResponse::Object(Outcome::Unstored(object))
        };
        return Ok(Attempt::Done(Deleted { response, gone: then_remove }));
    }
    let value = stored::encode(call.resource, &object);
    let storing = Instant::now();
    let marked = if value == current.value() {
        Ok(current.clone())
    } else {
        call.backend.store.update(key, value, current.revision, None).await
    };
    let entry = match marked {
        Ok(entry) => entry,
        Err(Error::Conflict { current, .. }) => return Ok(Attempt::Conflict(current)),
        Err(error) => return Err(store_error(error)),
    };
    let (resource, revision) = (call.resource, entry.revision);
    journey_events::record_write(call, &WriteEvent { verb: "delete", resource, object: &object, revision, storing });
    if !then_remove {
        let response = DeleteResponse::Object(Outcome::Stored(entry));
        return Ok(Attempt::Done(Deleted { response, gone: false }));
    }
    let object = stored::parse(&entry)?;
    remove_marked(call, key, entry.clone(), &object).await?;
    Ok(Attempt::Done(Deleted { response: response_for(call, Outcome::Stored(entry), &object), gone: true }))
}

/// Removes an object at once.
async fn remove(call: &ResourceRequest<'_>, key: &str, current: &Arc<Entry>, old: &Value) -> Result<Attempt, Status> {
    let storing = Instant::now();
    let revision = match call.backend.store.delete(key, current.revision).await {
        Ok(revision) => revision,
        Err(Error::Conflict { current, .. }) => return Ok(Attempt::Conflict(current)),
        Err(error) => return Err(store_error(error)),
    };
    let resource = call.resource;
    journey_events::record_write(call, &WriteEvent { verb: "removed", resource, object: old, revision, storing });
    call.backend.hooks.after_delete(call, old).await;
    let mut gone = old.clone();
    stored::set_revision(&mut gone, revision);
    Ok(Attempt::Done(Deleted { response: response_for(call, Outcome::Unstored(gone), old), gone: true }))
}

async fn admit(call: &ResourceRequest<'_>, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    for phase in [Phase::Mutate, Phase::Validate] {
        call.admit(phase, Operation::Delete, &mut Value::Null, Some(old), options.dry_run).await?;
    }
    Ok(())
}

/// Removes an object that was just marked. It is no failure if another writer removed it first.
async fn remove_marked(
    call: &ResourceRequest<'_>,
    key: &str,
    mut entry: Arc<Entry>,
    object: &Value,
) -> Result<(), Status> {
    let storing = Instant::now();
    loop {
        match call.backend.store.delete(key, entry.revision).await {
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
    call.backend.hooks.after_delete(call, object).await;
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
