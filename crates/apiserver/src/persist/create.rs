//! Making objects.

use std::time::{Duration, Instant};

use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_store::Error;
use serde_json::Value;

use super::options::WriteOptions;
use super::pipeline::{self, Phase};
use super::{Call, Outcome, convert, fields, name, store_error, stored};
use crate::admit::Operation;
use crate::kinds::Resource;
use crate::trail::{self, Written};

/// How long events are kept.
const EVENT_LIFE: Duration = Duration::from_secs(60 * 60);

/// Makes a new object from one that was decoded in the served version, with defaults set.
pub async fn create(call: &Call<'_>, mut object: Value, options: &WriteOptions) -> Result<Outcome, Status> {
    pipeline::match_namespace(call, &mut object)?;
    pipeline::wipe_system_fields(&mut object);
    pipeline::deduplicate_owners(call, &mut object, false);
    fields::record(call, None, &mut object, options)?;
    insert(call, object, options).await
}

/// The part of making an object that comes after its fields were given to their managers.
pub async fn insert(call: &Call<'_>, mut object: Value, options: &WriteOptions) -> Result<Outcome, Status> {
    object = convert::one(call.server, call.resource, object, &stored::stored_api_version(call.resource)).await?;
    call.admit(Phase::Mutate, Operation::Create, &mut object, None, options.dry_run).await?;
    pipeline::deduplicate_owners(call, &mut object, true);
    if !object.text(&["metadata", "name"]).is_empty() {
        return insert_once(call, object, options).await;
    }
    let mut attempt = 1;
    loop {
        match insert_once(call, object.clone(), options).await {
            Err(status) if status.reason == "AlreadyExists" && attempt < name::ATTEMPTS => attempt += 1,
            Err(status) if status.reason == "AlreadyExists" => {
                return Err(generated_conflict(call, &status));
            }
            result => return result,
        }
    }
}

async fn insert_once(call: &Call<'_>, mut object: Value, options: &WriteOptions) -> Result<Outcome, Status> {
    let resource = call.resource;
    pipeline::fill_system_fields(&mut object, call.now);
    if resource.is("", "limitranges") && !object.has(&["metadata", "generateName"]) {
        // Only these get a name without asking for one.
        if object.text(&["metadata", "name"]).is_empty() {
            object.set(&["metadata", "name"], uuid::Uuid::new_v4().to_string());
        }
    }
    if object.text(&["metadata", "name"]).is_empty() {
        let base = object.text(&["metadata", "generateName"]).to_owned();
        if !base.is_empty() {
            // An address is its own name: nothing can be added to it.
            let generated = if resource.is("networking.k8s.io", "ipaddresses") { base } else { name::generate(&base) };
            object.set(&["metadata", "name"], generated);
        }
    }
    let reservation = call.server.services.begin_create(call, &mut object, options.dry_run).await?;
    pipeline::prepare_create(call, &mut object);
    pipeline::validate_create(call, &object)?;
    call.admit(Phase::Validate, Operation::Create, &mut object, None, options.dry_run).await?;
    let object_name = object.text(&["metadata", "name"]).to_owned();
    let key = resource.key(object.text(&["metadata", "namespace"]), &object_name);
    if options.dry_run {
        if call.server.store.peek(&key).is_some() {
            return Err(exists(call, &key, &object_name));
        }
        return Ok(Outcome::Made(object));
    }
    // What is no number was no version either, and is passed over.
    if object.text(&["metadata", "resourceVersion"]).parse::<u64>().is_ok_and(|version| version != 0) {
        return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    let value = stored::encode(resource, &object);
    let storing = Instant::now();
    match call.server.store.create(&key, value, ttl(resource)).await {
        Ok(entry) => {
            reservation.keep();
            let revision = entry.revision;
            trail::leave(call, &Written { verb: "create", resource, object: &object, revision, storing });
            Ok(Outcome::Stored(entry))
        }
        Err(Error::Exists(_)) => Err(exists(call, &key, &object_name)),
        Err(error) => Err(store_error(error)),
    }
}

/// How long an object of this kind lives, where it does not live for ever.
pub fn ttl(resource: &Resource) -> Option<Duration> {
    let events = resource.kind.plural == "events" && matches!(resource.kind.group.as_str(), "" | "events.k8s.io");
    events.then_some(EVENT_LIFE)
}

fn exists(call: &Call<'_>, key: &str, name: &str) -> Status {
    let mut status = Status::already_exists(call.resource.named(), name);
    let deleting = call.server.store.peek(key).and_then(|entry| stored::parse(&entry).ok());
    if deleting.is_some_and(|object| object.has(&["metadata", "deletionTimestamp"])) {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}

fn generated_conflict(call: &Call<'_>, status: &Status) -> Status {
    let name = status.details.as_ref().map_or("", |details| details.name.as_str());
    let mut conflict = Status::already_exists(call.resource.named(), name).retry_after(1);
    conflict.message = format!(
        "{} {name:?} already exists, the server was not able to generate a unique name for the object",
        call.resource.named()
    );
    conflict
}
