//! Patches objects: JSON patch, merge patch, strategic merge patch and server-side apply.

use bytes::Bytes;
use knarr_api::field::{Errors, Path};
use knarr_api::patch::{
    self, JsonPatch, PatchError, TouchedFields, cannot_restore, merge, read_merge_patch, strategic_merge,
};
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::{Map, Value};

use super::managed_fields;
use super::update::{Updated, update};
use crate::decode::{Expected, list_items, set_defaults};
use crate::resource_request::ResourceRequest;
use crate::route::accept;
use crate::route::options::{FieldValidation, WriteKind, WriteOptions};

/// The type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// Reads the content type. Custom resources have no strategic merge.
    pub fn of(call: &ResourceRequest<'_>) -> Result<PatchKind, Status> {
        let custom = call.resource.custom.is_some();
        match accept::media_type(call.headers) {
            "application/json-patch+json" => Ok(PatchKind::Json),
            "application/merge-patch+json" => Ok(PatchKind::Merge),
            "application/strategic-merge-patch+json" if !custom => Ok(PatchKind::Strategic),
            "application/apply-patch+yaml" => Ok(PatchKind::Apply),
            _ if custom => Err(accept::unknown_format(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
            _ => {
                let status = Status::unsupported_media_type("415: Unsupported Media Type");
                Err(status.with_empty_details())
            }
        }
    }
}

/// Patches the object that the request names; apply creates a missing one.
pub async fn patch(call: &ResourceRequest<'_>, body: &Bytes) -> Result<(Updated, WriteOptions), Status> {
    let kind = PatchKind::of(call)?;
    let options = WriteOptions::parse(call.query, call.headers, WriteKind::Patch { apply: kind == PatchKind::Apply })?;
    let updated = match kind {
        PatchKind::Apply => apply(call, body, &options).await?,
        _ => {
            let mut read = None;
            update(call, &options, false, &mut |current| {
                let current = current.ok_or_else(|| call.not_found())?;
                // The patch is parsed only if the object exists: "not found" comes before errors in the patch.
                if read.is_none() {
                    read = Some(Patch::read(kind, body, &options)?);
                }
                match &read {
                    Some(patch) => patched(call, &options, patch, current),
                    None => Err(Status::internal("the patch was not read")),
                }
            })
            .await?
        }
    };
    Ok((updated, options))
}

async fn apply(call: &ResourceRequest<'_>, body: &Bytes, options: &WriteOptions) -> Result<Updated, Status> {
    let may_create = call.target.subresource.is_empty();
    let mut read = None;
    update(call, options, may_create, &mut |current| {
        if read.is_none() {
            read = Some(managed_fields::Configuration::read(body)?);
        }
        match &read {
            Some(configuration) => configuration.apply(call, current, options),
            None => Err(Status::internal("the configuration was not read")),
        }
    })
    .await
}

/// A parsed patch.
pub struct Patch {
    change: Change,
    /// The errors of strict field validation in the patch itself.
    problems: Vec<String>,
}

enum Change {
    Json(JsonPatch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub fn read(kind: PatchKind, body: &Bytes, options: &WriteOptions) -> Result<Patch, Status> {
        let lenient = options.field_validation == FieldValidation::Ignore;
        match kind {
            PatchKind::Json if lenient => {
                let patch = JsonPatch::read_leniently(body).map_err(patch_status)?;
                Ok(Patch { change: Change::Json(patch), problems: Vec::new() })
            }
            PatchKind::Json => {
                let patch = JsonPatch::read(body).map_err(undecodable)?;
                let problems = patch.problems.iter().map(|problem| format!("json patch {problem}")).collect();
                Ok(Patch { change: Change::Json(patch), problems })
            }
            PatchKind::Merge => {
                let decoded = match read_merge_patch(body) {
                    Ok(decoded) if !decoded.value.is_null() => decoded,
                    Err(error) if !lenient => return Err(undecodable(error)),
                    _ => return Err(Status::bad_request("Invalid JSON Patch")),
                };
                let problems = decoded.problems.iter().map(ToString::to_string).collect();
                Ok(Patch { change: Change::Merge(decoded.value), problems })
            }
            PatchKind::Strategic | PatchKind::Apply => {
                let decoded = read_merge_patch(body).map_err(patch_status)?;
                let patch = if decoded.value.is_null() { Value::Object(Map::new()) } else { decoded.value };
                let problems = decoded.problems.iter().map(ToString::to_string).collect();
                Ok(Patch { change: Change::Strategic(patch), problems })
            }
        }
    }

    /// The patched object, decoded as if a client had sent it.
    pub fn on(
        &self,
        call: &ResourceRequest<'_>,
        expected: &Expected<'_>,
        options: &WriteOptions,
        current: &Value,
    ) -> Result<Value, Status> {
        let mut changed = current.clone();
        match &self.change {
            Change::Json(patch) => patch.apply(&mut changed).map_err(patch_status)?,
            Change::Merge(patch) => merge(&mut changed, patch.clone()),
            Change::Strategic(patch) => {
                changed = strategic_merge(changed, patch.clone(), expected.node).map_err(patch_status)?;
            }
        }
        list_items::check(&changed)?;
        let refused = |why: &str| self.refused(expected, current, &changed, why);
        self.check_type(expected, &changed).map_err(|why| refused(&why))?;
        let decoded = expected.decode_value(&changed).map_err(|error| refused(&error.to_string()))?;
        let mut problems = self.problems.clone();
        problems.extend(decoded.problems.iter().map(ToString::to_string));
        match options.field_validation {
            FieldValidation::Strict if !problems.is_empty() => {
                return Err(refused(&format!("strict decoding error: {}", problems.join(", "))));
            }
            FieldValidation::Warn => call.warnings.lock().extend(problems),
            _ => {}
        }
        if let Some(status) = expected.custom.and_then(|_| expected.not_this_kind(&changed)) {
            return Err(status);
        }
        call.emptied.lock().clone_from(&decoded.emptied);
        let mut object = decoded.value;
        object["kind"] = expected.kind.kind.as_str().into();
        object["apiVersion"] = expected.kind.api_version().into();
        Ok(object)
    }

    fn check_type(&self, expected: &Expected<'_>, changed: &Value) -> Result<(), String> {
        match &self.change {
            Change::Strategic(_) => cannot_restore(changed, expected.node).map_or(Ok(()), Err),
            _ if expected.custom.is_some() && changed.is_object() => Ok(()),
            _ => expected.check_type(changed),
        }
    }

    /// The refusal of a patched object. It shows the patch if it is strategic, else the whole patched object.
    fn refused(&self, expected: &Expected<'_>, current: &Value, changed: &Value, why: &str) -> Status {
        let node = expected.custom.is_none().then_some(expected.node);
        let text = match &self.change {
            Change::Strategic(patch) => patch::go_format(patch).to_string(),
            Change::Merge(patch) => patch::text(changed, node, &TouchedFields::by_merge(current, patch)),
            Change::Json(patch) => patch::text(changed, node, &TouchedFields::by_pointers(changed, patch.pointers())),
        };
        let mut errors = Errors::new();
        errors.invalid(&Path::root("patch"), text, why);
        Status::invalid(GroupResource { group: "", name: "" }, "", &errors)
    }
}

fn patched(
    call: &ResourceRequest<'_>,
    options: &WriteOptions,
    patch: &Patch,
    current: &Value,
) -> Result<Value, Status> {
    let expected = Expected::of(call.resource)?;
    let mut object = patch.on(call, &expected, options, current)?;
    set_defaults(call.resource, &mut object)?;
    check_name(call, &object)?;
    super::strategy::deduplicate_owners(call, &mut object, false);
    managed_fields::record(call, Some(current), &mut object, options)?;
    Ok(object)
}

/// A write cannot rename an object.
pub fn check_name(call: &ResourceRequest<'_>, object: &Value) -> Result<(), Status> {
    let name = object.text(&["metadata", "name"]);
    if name == call.target.name {
        return Ok(());
    }
    if name.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            call.target.name
        )));
    }
    Err(Status::bad_request(format!(
        "the name of the object ({name}) does not match the name on the URL ({})",
        call.target.name
    )))
}

fn undecodable(error: PatchError) -> Status {
    match error {
        PatchError::Malformed(why) => Status::bad_request(format!("error decoding patch: {why}")),
        other => patch_status(other),
    }
}

fn patch_status(error: PatchError) -> Status {
    match error {
        PatchError::Malformed(why) => Status::bad_request(why),
        PatchError::TooManyOperations(_) => Status::new(413, "RequestEntityTooLarge", error.to_string()),
        PatchError::Unprocessable(_) => {
            let text = "the server rejected our request due to an error in our request";
            Status::new(422, "Invalid", text).with_empty_details()
        }
        PatchError::Internal(why) => Status::new(500, "", why),
    }
}
