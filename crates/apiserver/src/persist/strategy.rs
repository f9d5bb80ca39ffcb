//! The steps of a write between decoding and the store: system metadata, the rules of the kind, admission.

use std::collections::HashMap;

use jiff::Timestamp;
use knarr_api::field::Errors;
use knarr_api::status::Status;
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use knarr_rules::metadata;
use serde_json::Value;

use crate::kinds::Resource;
use crate::request::Operation;
use crate::resource_request::{ResourceRequest, Write};

/// The phases of admission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Mutate,
    Validate,
}

/// The kind that admission sees, where it is not the kind of the resource.
#[derive(Clone, Copy)]
pub struct AdmissionKind<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
}

impl ResourceRequest<'_> {
    /// Runs one phase of admission for a write.
    pub async fn admit(
        &self,
        phase: Phase,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<(), Status> {
        let kind = &self.resource.kind;
        let kind = AdmissionKind { group: &kind.group, version: &kind.version, kind: &kind.kind };
        self.admit_as(kind, phase, operation, object, old, dry_run).await
    }

    /// Like `admit`, for subresources whose objects are of another kind.
    pub async fn admit_as(
        &self,
        kind: AdmissionKind<'_>,
        phase: Phase,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<(), Status> {
        let mut warnings = Vec::new();
        let name = match self.target.name.as_str() {
            // A delete of a collection names none of its objects.
            "" => old.map_or("", |old| old.text(&["metadata", "name"])).to_owned(),
            name => name.to_owned(),
        };
        let mut write = Write {
            operation,
            group: &self.resource.kind.group,
            version: &self.resource.kind.version,
            object_group: kind.group,
            object_version: kind.version,
            kind: kind.kind,
            resource: &self.resource.kind.plural,
            subresource: &self.target.subresource,
            namespace: if self.resource.kind.namespaced { &self.target.namespace } else { "" },
            name: &name,
            object,
            old,
            user: self.user,
            dry_run,
            warnings: &mut warnings,
            call: Some(self),
            reinvocation: Default::default(),
        };
        let objects = &*self.backend.objects;
        let result = match phase {
            Phase::Mutate => self.backend.admission.admit(&mut write, objects).await,
            Phase::Validate => self.backend.admission.validate(&mut write, objects).await,
        };
        self.warnings.lock().append(&mut warnings);
        result
    }
}

/// Sets the namespace of the request, or refuses an object that names another one.
pub fn match_namespace(call: &ResourceRequest<'_>, object: &mut Value) -> Result<(), Status> {
    let expected = if call.resource.kind.namespaced { call.target.namespace.as_str() } else { "" };
    let given = object.text(&["metadata", "namespace"]);
    if given == expected {
        return Ok(());
    }
    if expected.is_empty() {
        object.remove(&["metadata", "namespace"]);
    } else if given.is_empty() {
        object.set(&["metadata", "namespace"], expected);
    } else {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    Ok(())
}

/// Removes the fields that only the server sets.
pub fn wipe_system_fields(object: &mut Value) {
    let metadata = object.object(&["metadata"]);
    for field in ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(field);
    }
}

/// Sets the UID and the creation time of a new object.
pub fn fill_system_fields(object: &mut Value, now: Timestamp) {
    object.set(&["metadata", "creationTimestamp"], time::seconds(now));
    object.set(&["metadata", "uid"], uuid::Uuid::new_v4().to_string());
}

/// Removes duplicate owner references, with a warning.
pub fn deduplicate_owners(call: &ResourceRequest<'_>, object: &mut Value, after_admission: bool) {
    let Some(owners) = object.find(&["metadata", "ownerReferences"]).and_then(Value::as_array_mut) else { return };
    let doubled = remove_duplicates(owners);
    if !doubled.is_empty() {
        let when = if after_admission { "after mutating admission " } else { "" };
        call.warn(format!(
            ".metadata.ownerReferences contains duplicate entries{}{when}; API server dedups owner references in 1.20+, \
             and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            if when.is_empty() { "" } else { " " },
            doubled.join(", ")
        ));
    }
}

/// Removes owners that occur again, and returns their UIDs. Each is compared only with the last one of its UID.
fn remove_duplicates(owners: &mut Vec<Value>) -> Vec<String> {
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    let mut last_of: HashMap<String, usize> = HashMap::with_capacity(owners.len());
    let mut doubled = Vec::new();
    for owner in owners.drain(..) {
        let uid = owner.text(&["uid"]).to_owned();
        if last_of.get(&uid).is_some_and(|last| kept[*last] == owner) {
            doubled.push(uid);
            continue;
        }
        last_of.insert(uid, kept.len());
        kept.push(owner);
    }
    *owners = kept;
    doubled
}

/// Sets the fields that the rules of the kind set on create.
pub fn prepare_create(call: &ResourceRequest<'_>, object: &mut Value) {
    let resource = call.resource;
    match &resource.custom {
        Some(custom) => custom.prepare_create(object),
        None => {
            let context = call.rules_context();
            context.features.drop_disabled(&resource.kind.group, &resource.kind.kind, object, None);
            resource.rules.prepare_create(object, &context);
            if resource.rules.has_generation() {
                object.set(&["metadata", "generation"], 1);
            } else if object.integer(&["metadata", "generation"]) == Some(0) {
                object.remove(&["metadata", "generation"]);
            }
        }
    }
}

/// Validates a new object.
pub fn validate_create(call: &ResourceRequest<'_>, object: &Value) -> Result<(), Status> {
    let resource = call.resource;
    let context = call.rules_context();
    let errors_of = |object: &Value| {
        let mut errors = metadata::validate_create(object, resource.kind.namespaced, resource.rules);
        match &resource.custom {
            Some(custom) => errors = custom.validate(object, None, "", errors),
            None => errors.extend(resource.rules.validate(object, None, &context)),
        }
        errors
    };
    let errors = as_given(call, object, errors_of(object), errors_of);
    refuse(resource, object.text(&["metadata", "name"]), errors)?;
    if resource.custom.is_none() {
        call.warnings.lock().extend(resource.rules.warnings(object, None, &context));
    }
    Ok(())
}

/// Restores the fields that an update cannot change, and counts the generation.
pub fn prepare_update(call: &ResourceRequest<'_>, object: &mut Value, old: &Value) {
    keep_generation(object, old);
    match &call.resource.custom {
        Some(custom) => custom.prepare_update(object, old, &call.target.subresource),
        None => {
            let context = call.rules_context();
            let kind = &call.resource.kind;
            context.features.drop_disabled(&kind.group, &kind.kind, object, Some(old));
            call.resource.rules.prepare_update(object, old, &context);
            if context.subresource != "status" && call.resource.rules.increments_generation(object, old) {
                let generation = old.integer(&["metadata", "generation"]).unwrap_or(0);
                object.set(&["metadata", "generation"], generation + 1);
            }
        }
    }
    keep_identity(object, old);
}

fn keep_generation(object: &mut Value, old: &Value) {
    match old.integer(&["metadata", "generation"]) {
        Some(generation) => object.set(&["metadata", "generation"], generation),
        None => drop(object.remove(&["metadata", "generation"])),
    }
}

fn keep_identity(object: &mut Value, old: &Value) {
    if object.text(&["metadata", "uid"]).is_empty() {
        object.set(&["metadata", "uid"], old.text(&["metadata", "uid"]));
    }
    for field in ["creationTimestamp", "deletionTimestamp"] {
        if old.has(&["metadata", field]) {
            object.set(&["metadata", field], old.at(&["metadata", field]).clone());
        }
    }
    let grace = &["metadata", "deletionGracePeriodSeconds"];
    if old.has(grace) && !object.has(grace) {
        object.set(grace, old.at(grace).clone());
    }
}

/// Validates an update.
pub fn validate_update(call: &ResourceRequest<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    let resource = call.resource;
    let context = call.rules_context();
    let errors_of = |object: &Value| {
        let mut errors = metadata::validate_update(object, old, resource.kind.namespaced, resource.rules);
        match &resource.custom {
            Some(custom) => errors = custom.validate(object, Some(old), &call.target.subresource, errors),
            None => {
                errors.extend(resource.rules.validate(object, Some(old), &context));
                errors.extend(resource.rules.validate_update(object, old, &context));
            }
        }
        errors
    };
    let errors = as_given(call, object, errors_of(object), errors_of);
    refuse(resource, object.text(&["metadata", "name"]), errors)?;
    if resource.custom.is_none() {
        call.warnings.lock().extend(resource.rules.warnings(object, Some(old), &context));
    }
    Ok(())
}

/// The errors for the object as the client sent it: with its empty lists and maps.
fn as_given(
    call: &ResourceRequest<'_>,
    object: &Value,
    errors: Errors,
    errors_of: impl Fn(&Value) -> Errors,
) -> Errors {
    let emptied = call.emptied.lock();
    if errors.is_empty() || emptied.is_empty() {
        return errors;
    }
    let mut given = object.clone();
    emptied.iter().for_each(|empty| empty.put_back(&mut given));
    let given_errors = errors_of(&given);
    let alike = given_errors.0.len() == errors.0.len()
        && given_errors
            .0
            .iter()
            .zip(&errors.0)
            .all(|(given, own)| (&given.field, given.error_type) == (&own.field, own.error_type));
    if alike { given_errors } else { errors }
}

fn refuse(resource: &Resource, name: &str, errors: Errors) -> Result<(), Status> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(resource.kind_named(), name, &errors)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn owners_that_occur_again_are_removed() {
        let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "A", "name": name, "uid": uid});
        let mut owners =
            vec![owner("1", "a"), owner("2", "a"), owner("1", "a"), owner("1", "b"), owner("1", "b"), owner("1", "a")];
        assert_eq!(remove_duplicates(&mut owners), ["1", "1"]);
        assert_eq!(owners, [owner("1", "a"), owner("2", "a"), owner("1", "b"), owner("1", "a")]);
    }
}
