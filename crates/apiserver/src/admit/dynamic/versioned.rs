//! The objects of a write, converted to the version that a rule matches.

use knarr_api::status::Status;
use serde_json::Value;

use super::criteria::Matched;
use crate::admit::Write;
use crate::convert;
use crate::decode::{Expected, set_defaults};
use crate::kinds::Resource;
use crate::resource_request::ResourceRequest;
use crate::stored;

/// The objects of a write in the version of one kind; null if absent.
#[derive(Clone, Debug)]
pub struct Versioned {
    pub matched: Matched,
    pub object: Value,
    pub old: Value,
}

impl Versioned {
    pub async fn new(write: &Write<'_>, call: &ResourceRequest<'_>, matched: Matched) -> Result<Versioned, Status> {
        let mut objects = vec![write.object.clone(), write.old.cloned().unwrap_or(Value::Null)];
        if is_own_kind(write, call) {
            let version = matched.kind.api_version();
            objects = convert::to_version(call.backend, call.resource, objects, &version).await?;
        } else if let ("scale", Some(scaled)) =
            (write.subresource, crate::subresource::scale::as_scales(call, &objects))
        {
            objects = scaled;
        }
        let old = objects.pop().unwrap_or_default();
        let object = objects.pop().unwrap_or_default();
        Ok(Versioned { matched, object, old })
    }

    /// Accepts an object that a webhook or policy changed: decodes it by its schema and sets its defaults.
    pub fn accept(&mut self, write: &Write<'_>, call: &ResourceRequest<'_>, changed: &Value) -> Result<(), Status> {
        let unreadable = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
        if !is_own_kind(write, call) {
            let expected = Expected::built_in(self.matched.kind.clone())?;
            self.object = expected.decode_value(changed).map_err(|error| unreadable(&error))?.value;
            return Ok(());
        }
        let kinds = call.backend.kinds.load();
        let resource = kinds.resource(&self.matched.group, &self.matched.version, &self.matched.resource);
        let resource: &Resource = resource.unwrap_or(call.resource);
        let expected = Expected::of(resource)?;
        let mut object = expected.decode_value(changed).map_err(|error| unreadable(&error))?.value;
        object["kind"] = self.matched.kind.kind.as_str().into();
        object["apiVersion"] = self.matched.kind.api_version().into();
        set_defaults(resource, &mut object)?;
        self.object = object;
        Ok(())
    }

    /// Writes a changed object back into the write.
    pub async fn write_back(&self, write: &mut Write<'_>, call: &ResourceRequest<'_>) -> Result<(), Status> {
        if is_own_kind(write, call) {
            let version = stored::stored_api_version(call.resource);
            let made = convert::to_version(call.backend, call.resource, vec![self.object.clone()], &version).await?;
            *write.object = made.into_iter().next().unwrap_or_default();
        } else if write.subresource == "scale" {
            crate::subresource::scale::set_replicas(call, write.object, &self.object);
        } else {
            *write.object = self.object.clone();
        }
        Ok(())
    }
}

/// Whether the objects are of the resource's own kind, which has versions to convert between.
fn is_own_kind(write: &Write<'_>, call: &ResourceRequest<'_>) -> bool {
    let kind = &call.resource.kind;
    kind.kind == write.kind && kind.group == write.object_group && write.subresource != "scale"
}
