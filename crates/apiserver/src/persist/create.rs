//! Creates objects.

use std::time::{Duration, Instant};

use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_store::Error;
use serde_json::Value;

use super::strategy::{self, Phase};
use super::{Outcome, generated_name, managed_fields, store_error};
use crate::convert;
use crate::journey_events::{self, WriteEvent};
use crate::request::Operation;
use crate::resource_request::{Reservation, ResourceRequest};
use crate::route::options::WriteOptions;
use crate::stored;

/// Creates an object that was decoded in the served version, with defaults set.
pub async fn create(call: &ResourceRequest<'_>, mut object: Value, options: &WriteOptions) -> Result<Outcome, Status> {
    strategy::match_namespace(call, &mut object)?;
    strategy::wipe_system_fields(&mut object);
    strategy::deduplicate_owners(call, &mut object, false);
    managed_fields::record(call, None, &mut object, options)?;
    insert(call, object, options).await
}

/// The steps of a create after its managed fields are recorded.
pub async fn insert(call: &ResourceRequest<'_>, mut object: Value, options: &WriteOptions) -> Result<Outcome, Status> {
    object = convert::one(call.backend, call.resource, object, &stored::stored_api_version(call.resource)).await?;
    call.admit(Phase::Mutate, Operation::Create, &mut object, None, options.dry_run).await?;
    strategy::deduplicate_owners(call, &mut object, true);
    if !object.text(&["metadata", "name"]).is_empty() {
        return insert_once(call, object, options).await;
    }
    let mut attempt = 1;
    loop {
        match insert_once(call, object.clone(), options).await {
            Err(status) if status.reason == "AlreadyExists" && attempt < generated_name::MAX_ATTEMPTS => attempt += 1,
            Err(status) if status.reason == "AlreadyExists" => {
                return Err(generated_conflict(call, &status));
            }
            result => return result,
        }
    }
}

async fn insert_once(call: &ResourceRequest<'_>, mut object: Value, options: &WriteOptions) -> Result<Outcome, Status> {
    let resource = call.resource;
    strategy::fill_system_fields(&mut object, call.now);
    if resource.is("", "limitranges") && !object.has(&["metadata", "generateName"]) {
        // Only limit ranges get a name without `generateName`.
        if object.text(&["metadata", "name"]).is_empty() {
            object.set(&["metadata", "name"], uuid::Uuid::new_v4().to_string());
        }
    }
    if object.text(&["metadata", "name"]).is_empty() {
        let base = object.text(&["metadata", "generateName"]).to_owned();
        if !base.is_empty() {
            // The name of an IPAddress is the address itself: no suffix can be added.
            let generated =
                if resource.is("networking.k8s.io", "ipaddresses") { base } else { generated_name::generate(&base) };
            object.set(&["metadata", "name"], generated);
        }
    }
    let reservation = call.backend.hooks.before_create(call, &mut object, options.dry_run).await?;
    strategy::prepare_create(call, &mut object);
    strategy::validate_create(call, &object)?;
    call.admit(Phase::Validate, Operation::Create, &mut object, None, options.dry_run).await?;
    let object_name = object.text(&["metadata", "name"]).to_owned();
    let key = resource.key(object.text(&["metadata", "namespace"]), &object_name);
    if options.dry_run {
        if call.backend.store.peek(&key).is_some() {
            return Err(exists(call, &key, &object_name));
        }
        return Ok(Outcome::Unstored(object));
    }
    // Text that is no number is ignored.
    if object.text(&["metadata", "resourceVersion"]).parse::<u64>().is_ok_and(|version| version != 0) {
        return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    let value = stored::encode(resource, &object);
    let storing = Instant::now();
    match call.backend.store.create(&key, value, ttl(call)).await {
        Ok(entry) => {
            reservation.into_iter().for_each(Reservation::commit);
            let revision = entry.revision;
            journey_events::record_write(
                call,
                &WriteEvent { verb: "create", resource, object: &object, revision, storing },
            );
            Ok(Outcome::Stored(entry))
        }
        Err(Error::Exists(_)) => Err(exists(call, &key, &object_name)),
        Err(error) => Err(store_error(error)),
    }
}

/// How long an object of this kind is kept; `None` for ever.
pub fn ttl(call: &ResourceRequest<'_>) -> Option<Duration> {
    let kind = &call.resource.kind;
    let events = kind.plural == "events" && matches!(kind.group.as_str(), "" | "events.k8s.io");
    events.then_some(call.backend.behaviour.event_lifetime)
}

fn exists(call: &ResourceRequest<'_>, key: &str, name: &str) -> Status {
    let mut status = Status::already_exists(call.resource.named(), name);
    let deleting = call.backend.store.peek(key).and_then(|entry| stored::parse(&entry).ok());
    if deleting.is_some_and(|object| object.has(&["metadata", "deletionTimestamp"])) {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}

fn generated_conflict(call: &ResourceRequest<'_>, status: &Status) -> Status {
    let name = status.details.as_ref().map_or("", |details| details.name.as_str());
    let mut conflict = Status::already_exists(call.resource.named(), name).retry_after(1);
    conflict.message = format!(
        "{} {name:?} already exists, the server was not able to generate a unique name for the object",
        call.resource.named()
    );
    conflict
}
