//! Updates objects: read the current one, change it, store it; retry when another writer was faster.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_store::{Entry, Error, Range};
use serde_json::Value;

use super::strategy::{self, Phase};
use super::{Outcome, create, managed_fields, patch, store_error};
use crate::convert;
use crate::decode;
use crate::journey_events::{self, WriteEvent};
use crate::request::{Operation, Target};
use crate::resource_request::{Reservation, ResourceRequest};
use crate::route::options::{WriteKind, WriteOptions};
use crate::stored;

/// Builds the new object from the current one, both in the served version. There is no current one when the object is to
/// be created. It is called again when another writer was faster.
pub type Change<'c> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'c;

/// The result of an update.
pub struct Updated {
    pub outcome: Outcome,
    pub created: bool,
}

/// Updates the object that the request names.
pub async fn update(
    call: &ResourceRequest<'_>,
    options: &WriteOptions,
    may_create: bool,
    change: &mut Change<'_>,
) -> Result<Updated, Status> {
    let key = call.key();
    call.backend.store.prepare_read(&Range::key(&key)).await;
    let mut current = call.backend.store.peek(&key);
    let mut fresh = false;
    loop {
        let attempt = match &current {
            Some(entry) => change_once(call, options, &key, entry, change).await,
            None if may_create => match change(None) {
                Ok(object) => create_missing(call, options, object).await,
                Err(status) => Err(Failure::Refused(status)),
            },
            None => Err(Failure::Refused(call.not_found())),
        };
        match attempt {
            Ok(updated) => return Ok(updated),
            Err(Failure::Overtaken(newer)) => current = newer,
            Err(Failure::Refused(status)) if fresh => return Err(status),
            Err(Failure::Refused(status)) => {
                // The refusal may stem from stale state; it stands once the state is known to be current.
                call.backend.store.sync().await.map_err(store_error)?;
                call.backend.store.prepare_read(&Range::key(&key)).await;
                let newest = call.backend.store.peek(&key);
                if newest.as_ref().map(|entry| entry.revision) == current.as_ref().map(|entry| entry.revision) {
                    return Err(status);
                }
                (current, fresh) = (newest, true);
            }
        }
    }
}

/// Replaces the object that the request names by the one in the body.
pub async fn replace(call: &ResourceRequest<'_>, body: &Bytes) -> Result<Updated, Status> {
    let options = WriteOptions::parse(call.query, call.headers, WriteKind::Update)?;
    let mut object = decode::object(call, body, options.field_validation)?;
    patch::check_name(call, &object)?;
    strategy::match_namespace(call, &mut object)?;
    strategy::deduplicate_owners(call, &mut object, false);
    let may_create = call.resource.custom.is_none()
        && call.resource.rules.allows_create_on_update()
        && call.target.subresource.is_empty();
    update(call, &options, may_create, &mut |current| {
        let mut object = object.clone();
        if let Some(current) = current {
            check_identity(call, &object, current)?;
        }
        managed_fields::record(call, current, &mut object, &options)?;
        Ok(object)
    })
    .await
}

enum Failure {
    Refused(Status),
    /// Another writer stored this entry in the meantime.
    Overtaken(Option<Arc<Entry>>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Refused(status)
    }
}

async fn create_missing(
    call: &ResourceRequest<'_>,
    options: &WriteOptions,
    mut object: Value,
) -> Result<Updated, Failure> {
    // The request was authorized to change an object, and not to create one.
    let create = Target { verb: "create".to_owned(), ..call.target.clone() };
    call.backend.authorize(call.user, &create).await?;
    if !object.text(&["metadata", "uid"]).is_empty() {
        let why = another_object(call, object.text(&["metadata", "uid"]), "");
        return Err(Status::conflict(call.resource.named(), &call.target.name, &why).into());
    }
    object.remove(&["metadata", "resourceVersion"]);
    strategy::match_namespace(call, &mut object)?;
    match create::insert(call, object, options).await {
        Ok(outcome) => Ok(Updated { outcome, created: true }),
        Err(status) if status.reason == "AlreadyExists" => {
            Err(Failure::Overtaken(call.backend.store.peek(&call.key())))
        }
        Err(status) => Err(status.into()),
    }
}

async fn change_once(
    call: &ResourceRequest<'_>,
    options: &WriteOptions,
    key: &str,
    entry: &Arc<Entry>,
    change: &mut Change<'_>,
) -> Result<Updated, Failure> {
    let resource = call.resource;
    let old = convert::parse_stored(call.backend, resource, entry).await?;
    let mut object = if resource.is_stored_version() {
        change(Some(&old))?
    } else {
        let served = convert::one(call.backend, resource, old.clone(), &resource.kind.api_version()).await?;
        let changed = change(Some(&served))?;
        convert::one(call.backend, resource, changed, &stored::stored_api_version(resource)).await?
    };
    call.admit(Phase::Mutate, Operation::Update, &mut object, Some(&old), options.dry_run).await?;
    if call.target.subresource.is_empty() {
        strategy::deduplicate_owners(call, &mut object, true);
    }
    check_version(call, &mut object, &old)?;
    let reservation = call.backend.hooks.before_update(call, &mut object, &old, options.dry_run).await?;
    strategy::match_namespace(call, &mut object)?;
    strategy::prepare_update(call, &mut object, &old);
    strategy::validate_update(call, &object, &old)?;
    managed_fields::keep_times_if_unchanged(&old, &mut object);
    call.admit(Phase::Validate, Operation::Update, &mut object, Some(&old), options.dry_run).await?;
    if deletes(call, &object, &old) {
        if !options.dry_run {
            remove(call, key, entry, &old).await?;
        }
        return Ok(Updated { outcome: Outcome::Unstored(object), created: false });
    }
    if options.dry_run {
        return Ok(Updated { outcome: Outcome::Unstored(object), created: false });
    }
    let value = stored::encode(resource, &object);
    if value == entry.value() {
        return Ok(Updated { outcome: Outcome::Stored(entry.clone()), created: false });
    }
    let storing = Instant::now();
    match call.backend.store.update(key, value, entry.revision, create::ttl(call)).await {
        Ok(entry) => {
            reservation.into_iter().for_each(Reservation::commit);
            let (verb, revision) = (call.target.verb.as_str(), entry.revision);
            journey_events::record_write(call, &WriteEvent { verb, resource, object: &object, revision, storing });
            Ok(Updated { outcome: Outcome::Stored(entry), created: false })
        }
        Err(Error::Conflict { current, .. }) => Err(Failure::Overtaken(current)),
        Err(error) => Err(store_error(error).into()),
    }
}

/// Refuses to replace an object that has another UID.
pub fn check_identity(call: &ResourceRequest<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    let (given, own) = (object.text(&["metadata", "uid"]), old.text(&["metadata", "uid"]));
    if !given.is_empty() && given != own {
        let why = another_object(call, given, own);
        return Err(Status::conflict(call.resource.named(), &call.target.name, &why));
    }
    Ok(())
}

/// The message for an object under the key with another UID than the request names.
fn another_object(call: &ResourceRequest<'_>, given: &str, own: &str) -> String {
    format!(
        "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
         UID in precondition: {given}, UID in object meta: {own}",
        call.key()
    )
}

/// Refuses an object with an outdated resource version.
fn check_version(call: &ResourceRequest<'_>, object: &mut Value, old: &Value) -> Result<(), Status> {
    let own = old.text(&["metadata", "resourceVersion"]);
    match object.text(&["metadata", "resourceVersion"]) {
        "" | "0" if call.resource.custom.is_none() && call.resource.rules.allows_unconditional_update() => {
            object.set(&["metadata", "resourceVersion"], own);
            Ok(())
        }
        "" | "0" => {
            let mut errors = knarr_api::field::Errors::new();
            let path = knarr_api::field::Path::root("metadata");
            errors.invalid(&path.child("resourceVersion"), 0, "must be specified for an update");
            Err(Status::invalid(call.resource.named(), &call.target.name, &errors))
        }
        given if given == own => Ok(()),
        given if given.parse::<u64>().is_err() => {
            Err(Status::new(500, "", format!("strconv.ParseUint: parsing {given:?}: invalid syntax")))
        }
        _ => Err(Status::stale(call.resource.named(), &call.target.name)),
    }
}

/// Whether this update removes the last reason to keep an object that is being deleted.
fn deletes(call: &ResourceRequest<'_>, object: &Value, old: &Value) -> bool {
    if !object.items(&["metadata", "finalizers"]).is_empty() || !old.has(&["metadata", "deletionTimestamp"]) {
        return false;
    }
    if call.resource.is("", "namespaces") && !object.items(&["spec", "finalizers"]).is_empty() {
        return false;
    }
    old.integer(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
}

async fn remove(call: &ResourceRequest<'_>, key: &str, entry: &Arc<Entry>, old: &Value) -> Result<(), Failure> {
    let storing = Instant::now();
    match call.backend.store.delete(key, entry.revision).await {
        Ok(revision) => {
            let resource = call.resource;
            journey_events::record_write(
                call,
                &WriteEvent { verb: "removed", resource, object: old, revision, storing },
            );
            call.backend.hooks.after_delete(call, old).await;
            Ok(())
        }
        Err(Error::Conflict { current: Some(current), .. }) => Err(Failure::Overtaken(Some(current))),
        Err(Error::Conflict { current: None, .. }) => Ok(()),
        Err(error) => Err(store_error(error).into()),
    }
}
