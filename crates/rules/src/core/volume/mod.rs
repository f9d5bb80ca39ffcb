//! Validation of volume sources, in pods and in PersistentVolumes.

mod csi;
mod iscsi;
pub mod projected;
pub mod sources;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

/// A type of volume source: its field and its check.
pub struct Source {
    /// The field of the source in a volume.
    pub field: &'static str,
    /// The path in the error about a second source, and in errors of the source itself; upstream's differ for some.
    pub name_when_second: &'static str,
    pub name_inside: &'static str,
    /// Validates the content of the field.
    pub check: fn(&mut Errors, &Value, &Path<'_>, &VolumeContext<'_>),
}

impl Source {
    /// Returns a source whose errors name its field.
    pub const fn new(field: &'static str, check: fn(&mut Errors, &Value, &Path<'_>, &VolumeContext<'_>)) -> Self {
        Source { field, name_when_second: field, name_inside: field, check }
    }

    /// Returns the source with other names in errors.
    pub const fn named(mut self, name_when_second: &'static str, name_inside: &'static str) -> Self {
        self.name_when_second = name_when_second;
        self.name_inside = name_inside;
        self
    }
}

/// The volume, as far as the checks of its source depend on it.
#[derive(Clone, Copy, Default)]
pub struct VolumeContext<'a> {
    /// The name of the volume.
    pub volume_name: &'a str,
    /// The name of the pod; empty for templates and PersistentVolumes.
    pub pod_name: &'a str,
    /// Whether a pod contains the volume, not a template.
    pub is_pod: bool,
    /// Whether the stored object already has such a path.
    pub allow_non_local_token_path: bool,
    /// Whether the volume is in the spec of a pod or template, not a PersistentVolume.
    pub in_pod_spec: bool,
    /// Whether a PersistentVolume has a node affinity.
    pub has_node_affinity: bool,
}

/// Validates that a volume has exactly one source, and validates that source.
pub fn validate_source(
    errors: &mut Errors,
    volume: &Value,
    sources: &[Source],
    path: &Path<'_>,
    volume_context: &VolumeContext<'_>,
) {
    let mut count = 0;
    for source in sources {
        let Some(value) = volume.get(source.field).filter(|value| !value.is_null()) else { continue };
        // Upstream does not report a flexVolume of a PersistentVolume as a second source.
        let is_counted = source.field != "flexVolume" || volume_context.in_pod_spec;
        if count > 0 && is_counted {
            errors.forbidden(&path.child(source.name_when_second), "may not specify more than 1 volume type");
        } else {
            count += 1;
            (source.check)(errors, value, &path.child(source.name_inside), volume_context);
        }
        if source.field == "iscsi" && volume_context.in_pod_spec {
            sources::iscsi_names_length(errors, value, path, volume_context);
        }
    }
    if count == 0 {
        errors.required(path, "must specify a volume type");
    }
}

/// Requires that strings or lists are not empty.
pub fn require(errors: &mut Errors, value: &Value, path: &Path<'_>, fields: &[&str]) {
    for field in fields {
        let empty = match value.at(&[field]) {
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Null => true,
            _ => false,
        };
        if empty {
            errors.required(&path.child(field), "");
        }
    }
}

#[cfg(test)]
mod tests;
