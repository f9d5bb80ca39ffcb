//! The four kinds of patches.

use bytes::Bytes;
use knarr_api::patch::{JsonPatch, PatchError, merge, read_merge_patch, strategic_merge};
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::options::{WriteKind, WriteOptions};
use super::update::{Updated, update};
use super::{Call, fields};
use crate::route::accept;
use crate::route::decode::{Expected, judge, set_defaults};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// Reads the content type. Custom resources have no strategic merge.
    pub fn of(call: &Call<'_>) -> Result<PatchKind, Status> {
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

/// Patches the object that the call names; apply makes it where it is missing.
pub async fn patch(call: &Call<'_>, body: &Bytes) -> Result<(Updated, WriteOptions), Status> {
    let kind = PatchKind::of(call)?;
    let options = WriteOptions::parse(call.query, call.headers, WriteKind::Patch { apply: kind == PatchKind::Apply })?;
    let updated = match kind {
        PatchKind::Apply => apply(call, body, &options).await?,
        _ => {
            let change = Patch::read(call, kind, body, &options)?;
            update(call, &options, false, &mut |current| match current {
                Some(current) => patched(call, &options, &change, current),
                None => Err(call.not_found()),
            })
            .await?
        }
    };
    Ok((updated, options))
}

async fn apply(call: &Call<'_>, body: &Bytes, options: &WriteOptions) -> Result<Updated, Status> {
    let configuration = fields::Configuration::read(call, body, options)?;
    let may_create = call.target.subresource.is_empty();
    update(call, options, may_create, &mut |current| configuration.apply(call, current, options)).await
}

/// A patch that was read.
pub enum Patch {
    Json(JsonPatch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    /// Reads a patch; what strict field validation objects to in it is judged at once.
    pub fn read(call: &Call<'_>, kind: PatchKind, body: &Bytes, options: &WriteOptions) -> Result<Patch, Status> {
        let expected = Expected::of(call.resource)?;
        let judged = |problems| judge(call, &expected, &expected.kind, problems, options.field_validation);
        match kind {
            PatchKind::Json => {
                let mut patch = JsonPatch::read(body).map_err(unreadable)?;
                judged(std::mem::take(&mut patch.problems))?;
                Ok(Patch::Json(patch))
            }
            PatchKind::Merge => {
                let decoded = read_merge_patch(body).map_err(unreadable)?;
                judged(decoded.problems)?;
                Ok(Patch::Merge(decoded.value))
            }
            PatchKind::Strategic | PatchKind::Apply => {
                let decoded = read_merge_patch(body).map_err(unreadable)?;
                judged(decoded.problems)?;
                Ok(Patch::Strategic(decoded.value))
            }
        }
    }

    /// The object with the patch, not yet checked.
    pub fn on(&self, expected: &Expected<'_>, current: &Value) -> Result<Value, Status> {
        let mut object = current.clone();
        match self {
            Patch::Json(patch) => patch.apply(&mut object).map_err(patch_status)?,
            Patch::Merge(patch) => merge(&mut object, patch.clone()),
            Patch::Strategic(patch) => {
                object = strategic_merge(object, patch.clone(), expected.node).map_err(patch_status)?;
            }
        }
        Ok(object)
    }
}

fn patched(call: &Call<'_>, options: &WriteOptions, patch: &Patch, current: &Value) -> Result<Value, Status> {
    let expected = Expected::of(call.resource)?;
    let changed = patch.on(&expected, current)?;
    let mut object = recheck(call, &expected, options, &changed)?;
    set_defaults(call.resource, &mut object);
    check_name(call, &object)?;
    super::pipeline::deduplicate_owners(call, &mut object, false);
    fields::record(call, Some(current), &mut object, options)?;
    Ok(object)
}

/// Decodes what a patch made, as if it had come from a client.
pub fn recheck(
    call: &Call<'_>,
    expected: &Expected<'_>,
    options: &WriteOptions,
    changed: &Value,
) -> Result<Value, Status> {
    let decoded = expected.decode_value(changed).map_err(|error| {
        let mut errors = knarr_api::field::Errors::new();
        errors.invalid_shown(
            &knarr_api::field::Path::root("patch"),
            knarr_api::patch::shown(changed).to_string(),
            error.to_string(),
        );
        Status::invalid(call.resource.kind_named(), &call.target.name, &errors)
    })?;
    judge(call, expected, &expected.kind, decoded.problems, options.field_validation)?;
    let mut object = decoded.value;
    if object["kind"].as_str().is_none_or(str::is_empty) {
        object["kind"] = expected.kind.kind.as_str().into();
    }
    if object["apiVersion"].as_str().is_none_or(str::is_empty) {
        object["apiVersion"] = expected.kind.api_version().into();
    }
    Ok(object)
}

/// A write cannot rename an object.
pub fn check_name(call: &Call<'_>, object: &Value) -> Result<(), Status> {
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

fn unreadable(error: PatchError) -> Status {
    match error {
        PatchError::Malformed(why) => Status::bad_request(format!("error decoding patch: {why}")),
        other => patch_status(other),
    }
}

pub fn patch_status(error: PatchError) -> Status {
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
