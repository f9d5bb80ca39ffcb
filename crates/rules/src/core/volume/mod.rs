//! Where a volume's data comes from: the sources that pods' volumes and PersistentVolumes name.

pub mod projected;
pub mod sources;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

/// One kind of source: its field, and how what it holds is checked.
pub struct Source {
    pub field: &'static str,
    /// What Kubernetes calls it when a volume already has another source, and when it looks inside.
    pub name_when_second: &'static str,
    pub name_inside: &'static str,
    pub check: fn(&mut Errors, &Value, &Path<'_>, &Surroundings<'_>),
}

impl Source {
    pub const fn new(field: &'static str, check: fn(&mut Errors, &Value, &Path<'_>, &Surroundings<'_>)) -> Self {
        Source { field, name_when_second: field, name_inside: field, check }
    }

    pub const fn named(mut self, name_when_second: &'static str, name_inside: &'static str) -> Self {
        self.name_when_second = name_when_second;
        self.name_inside = name_inside;
        self
    }
}

/// What a source's check may depend on.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    pub volume_name: &'a str,
    /// The pod's own name, where a pod and not a template holds the volume.
    pub pod_name: &'a str,
    pub is_pod: bool,
    /// Set where the stored object already has such a path.
    pub allow_non_local_token_path: bool,
    /// Whether a pod's spec holds the volume, and not a PersistentVolume.
    pub in_pod_spec: bool,
    /// Set where a PersistentVolume says which nodes reach it.
    pub has_node_affinity: bool,
}

/// Checks that a volume has one source, and that it is right.
pub fn validate_source(
    errors: &mut Errors,
    volume: &Value,
    sources: &[Source],
    path: &Path<'_>,
    surroundings: &Surroundings<'_>,
) {
    let mut count = 0;
    for source in sources {
        let Some(value) = volume.get(source.field).filter(|value| !value.is_null()) else { continue };
        // Kubernetes never counts a PersistentVolume's flexVolume as one too many.
        let is_counted = source.field != "flexVolume" || surroundings.in_pod_spec;
        if count > 0 && is_counted {
            errors.forbidden(&path.child(source.name_when_second), "may not specify more than 1 volume type");
        } else {
            count += 1;
            (source.check)(errors, value, &path.child(source.name_inside), surroundings);
        }
        if source.field == "iscsi" && surroundings.in_pod_spec {
            sources::iscsi_names_length(errors, value, path, surroundings);
        }
    }
    if count == 0 {
        errors.required(path, "must specify a volume type");
    }
}

/// Requires fields that hold a text or a list.
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
