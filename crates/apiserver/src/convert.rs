//! Converts objects from one version of their kind to another.
//!
//! Built-in kinds are converted by their rules. Custom resources keep their fields and change only their apiVersion,
//! unless their definition names a conversion webhook. The webhook converts many objects in one request.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_store::{Entry, Event};
use serde_json::Value;

use crate::kinds::Resource;
use crate::resource_request::Backend;
use crate::stored::{self, stored_api_version};

/// Converts objects of a resource to one version. Null stays null.
pub async fn to_version(
    backend: &Backend,
    resource: &Resource,
    mut objects: Vec<Value>,
    to: &str,
) -> Result<Vec<Value>, Status> {
    let converter = resource.custom.as_ref().and_then(|custom| custom.converter.as_deref());
    let Some(converter) = converter else {
        for object in objects.iter_mut().filter(|object| object.is_object()) {
            let from = object.text(&["apiVersion"]).to_owned();
            stored::convert_between(resource, object, &from, to);
        }
        return Ok(objects);
    };
    let differs = |object: &Value| object.is_object() && object.text(&["apiVersion"]) != to;
    let places: Vec<usize> = (0..objects.len()).filter(|at| differs(&objects[*at])).collect();
    if places.is_empty() {
        return Ok(objects);
    }
    let mut sent: Vec<Value> = places.iter().map(|at| objects[*at].take()).collect();
    converter.convert(backend.webhook_caller(), &mut sent, to).await.map_err(|why| Status::new(500, "", why))?;
    for (at, object) in places.into_iter().zip(sent) {
        objects[at] = object;
    }
    Ok(objects)
}

/// Converts one object to a version.
pub async fn one(backend: &Backend, resource: &Resource, object: Value, to: &str) -> Result<Value, Status> {
    let made = to_version(backend, resource, vec![object], to).await?;
    made.into_iter().next().ok_or_else(|| Status::internal("the conversion returned no object"))
}

/// The object of an entry in the version that is stored now; it may have been written in another one.
pub async fn parse_stored(backend: &Backend, resource: &Resource, entry: &Entry) -> Result<Value, Status> {
    let object = stored::parse(entry)?;
    if resource.custom.is_none() {
        return Ok(object);
    }
    one(backend, resource, object, &stored_api_version(resource)).await
}

/// Whether objects of the resource are converted by a webhook.
pub fn needs_webhook(resource: &Resource) -> bool {
    resource.custom.as_ref().is_some_and(|custom| custom.converter.is_some())
}

/// Entries in the served version, where a webhook is needed to convert them.
pub async fn entries(
    backend: &Backend,
    resource: &Resource,
    entries: Vec<Arc<Entry>>,
) -> Result<Vec<Arc<Entry>>, Status> {
    if !needs_webhook(resource) {
        return Ok(entries);
    }
    let objects = entries.iter().map(|entry| stored::parse(entry)).collect::<Result<Vec<_>, _>>()?;
    let objects = to_version(backend, resource, objects, &resource.kind.api_version()).await?;
    Ok(entries.iter().zip(objects).map(|(entry, object)| served_entry(entry, &object)).collect())
}

/// One entry in the served version, where a webhook is needed to convert it.
pub async fn entry(backend: &Backend, resource: &Resource, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
    let made = entries(backend, resource, vec![entry]).await?;
    made.into_iter().next().ok_or_else(|| Status::internal("the conversion returned no object"))
}

/// Watch events in the served version, where a webhook is needed to convert them.
pub async fn events(backend: &Backend, resource: &Resource, events: Vec<Event>) -> Result<Vec<Event>, Status> {
    if !needs_webhook(resource) {
        return Ok(events);
    }
    let mut made = Vec::with_capacity(events.len());
    for event in events {
        let both: Vec<Arc<Entry>> = [&event.previous, &event.current].into_iter().flatten().cloned().collect();
        let mut both = entries(backend, resource, both).await?.into_iter();
        let previous = event.previous.as_ref().and_then(|_| both.next());
        let current = event.current.as_ref().and_then(|_| both.next());
        made.push(Event { previous, current, ..event });
    }
    Ok(made)
}

fn served_entry(entry: &Entry, object: &Value) -> Arc<Entry> {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    Arc::new(Entry::new(entry.key.clone(), Bytes::from(object.to_string()), entry.created, entry.revision))
}
