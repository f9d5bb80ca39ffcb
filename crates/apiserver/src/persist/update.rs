//! Changing objects: read what is there, make the change, store it unless somebody else was faster, and then again.

use std::sync::Arc;
use std::time::Instant;

use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_store::{Entry, Error};
use serde_json::Value;

use super::options::WriteOptions;
use super::pipeline::{self, Phase};
use super::{Call, Outcome, convert, create, fields, store_error, stored};
use crate::admit::Operation;
use crate::trail::{self, Written};

/// Makes the new object from the current one, both in the served version; the current one is absent where the object
/// is to be made. It is called again when another writer was faster.
pub type Change<'c> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'c;

/// What an update did.
pub struct Updated {
    pub outcome: Outcome,
    pub created: bool,
}

/// Changes the object that the call names.
pub async fn update(
    call: &Call<'_>,
    options: &WriteOptions,
    may_create: bool,
    change: &mut Change<'_>,
) -> Result<Updated, Status> {
    let key = call.key();
    let mut current = call.server.store.peek(&key);
    let mut fresh = false;
    loop {
        let attempt = match &current {
            Some(entry) => change_once(call, options, &key, entry, change).await,
            None if may_create => match change(None) {
                Ok(object) => make(call, options, object).await,
                Err(status) => Err(Failure::Refused(status)),
            },
            None => Err(Failure::Refused(call.not_found())),
        };
        match attempt {
            Ok(updated) => return Ok(updated),
            Err(Failure::Overtaken(newer)) => current = newer,
            Err(Failure::Refused(status)) if fresh => return Err(status),
            Err(Failure::Refused(status)) => {
                // The refusal may come from reading an old state; it counts once the state is known to be current.
                call.server.store.sync().await.map_err(store_error)?;
                let newest = call.server.store.peek(&key);
                if newest.as_ref().map(|entry| entry.revision) == current.as_ref().map(|entry| entry.revision) {
                    return Err(status);
                }
                (current, fresh) = (newest, true);
            }
        }
    }
}

enum Failure {
    Refused(Status),
    /// Another writer stored this in the meantime.
    Overtaken(Option<Arc<Entry>>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Refused(status)
    }
}

async fn make(call: &Call<'_>, options: &WriteOptions, mut object: Value) -> Result<Updated, Failure> {
    if !object.text(&["metadata", "uid"]).is_empty() {
        let why = another_object(call, object.text(&["metadata", "uid"]), "");
        return Err(Status::conflict(call.resource.named(), &call.target.name, &why).into());
    }
    object.remove(&["metadata", "resourceVersion"]);
    pipeline::match_namespace(call, &mut object)?;
    match create::insert(call, object, options).await {
        Ok(outcome) => Ok(Updated { outcome, created: true }),
        Err(status) if status.reason == "AlreadyExists" => Err(Failure::Overtaken(call.server.store.peek(&call.key()))),
        Err(status) => Err(status.into()),
    }
}

async fn change_once(
    call: &Call<'_>,
    options: &WriteOptions,
    key: &str,
    entry: &Arc<Entry>,
    change: &mut Change<'_>,
) -> Result<Updated, Failure> {
    let resource = call.resource;
    let old = convert::parse_stored(call.server, resource, entry).await?;
    let mut object = if resource.is_stored_version() {
        change(Some(&old))?
    } else {
        let served = convert::one(call.server, resource, old.clone(), &resource.kind.api_version()).await?;
        let changed = change(Some(&served))?;
        convert::one(call.server, resource, changed, &stored::stored_api_version(resource)).await?
    };
    call.admit(Phase::Mutate, Operation::Update, &mut object, Some(&old), options.dry_run).await?;
    if call.target.subresource.is_empty() {
        pipeline::deduplicate_owners(call, &mut object, true);
    }
    check_version(call, &mut object, &old)?;
    let reservation = call.server.services.begin_update(call, &mut object, &old, options.dry_run).await?;
    pipeline::match_namespace(call, &mut object)?;
    pipeline::prepare_update(call, &mut object, &old);
    pipeline::validate_update(call, &object, &old)?;
    fields::keep_times_if_unchanged(&old, &mut object);
    call.admit(Phase::Validate, Operation::Update, &mut object, Some(&old), options.dry_run).await?;
    if deletes(call, &object, &old) {
        if !options.dry_run {
            remove(call, key, entry, &old).await?;
        }
        return Ok(Updated { outcome: Outcome::Made(object), created: false });
    }
    if options.dry_run {
        return Ok(Updated { outcome: Outcome::Made(object), created: false });
    }
    let value = stored::encode(resource, &object);
    if value == entry.value {
        return Ok(Updated { outcome: Outcome::Stored(entry.clone()), created: false });
    }
    let storing = Instant::now();
    match call.server.store.update(key, value, entry.revision, create::ttl(resource)).await {
        Ok(entry) => {
            reservation.keep();
            let (verb, revision) = (call.target.verb.as_str(), entry.revision);
            trail::leave(call, &Written { verb, resource, object: &object, revision, storing });
            Ok(Updated { outcome: Outcome::Stored(entry), created: false })
        }
        Err(Error::Conflict { current, .. }) => Err(Failure::Overtaken(current)),
        Err(error) => Err(store_error(error).into()),
    }
}

/// The object a client means to replace must be the one that is there.
pub fn check_identity(call: &Call<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    let (given, own) = (object.text(&["metadata", "uid"]), old.text(&["metadata", "uid"]));
    if !given.is_empty() && given != own {
        let why = another_object(call, given, own);
        return Err(Status::conflict(call.resource.named(), &call.target.name, &why));
    }
    Ok(())
}

/// How a store tells that the object under a key is not the one that was meant.
fn another_object(call: &Call<'_>, given: &str, own: &str) -> String {
    format!(
        "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
         UID in precondition: {given}, UID in object meta: {own}",
        call.key()
    )
}

/// An object that carries a resource version must have been made from the newest one.
fn check_version(call: &Call<'_>, object: &mut Value, old: &Value) -> Result<(), Status> {
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

/// Whether this update takes away the last reason to keep an object that is being deleted.
fn deletes(call: &Call<'_>, object: &Value, old: &Value) -> bool {
    if !object.items(&["metadata", "finalizers"]).is_empty() || !old.has(&["metadata", "deletionTimestamp"]) {
        return false;
    }
    if call.resource.is("", "namespaces") && !object.items(&["spec", "finalizers"]).is_empty() {
        return false;
    }
    old.integer(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
}

async fn remove(call: &Call<'_>, key: &str, entry: &Arc<Entry>, old: &Value) -> Result<(), Failure> {
    let storing = Instant::now();
    match call.server.store.delete(key, entry.revision).await {
        Ok(revision) => {
            let resource = call.resource;
            trail::leave(call, &Written { verb: "removed", resource, object: old, revision, storing });
            call.server.services.after_delete(call, old).await;
            Ok(())
        }
        Err(Error::Conflict { current: Some(current), .. }) => Err(Failure::Overtaken(Some(current))),
        Err(Error::Conflict { current: None, .. }) => Ok(()),
        Err(error) => Err(store_error(error).into()),
    }
}
