//! Custom resources: kinds defined by CustomResourceDefinitions, served like built-in ones.

pub mod columns;
mod converter;
pub mod definition;
mod json_path;

pub use columns::ColumnDescription;
pub use converter::{Converter, WebhookCaller};
pub use definition::without_storage;

use std::sync::Arc;

use jiff::Timestamp;
use knarr_api::custom::{CustomSchema, ScalePaths};
use knarr_api::field::Errors;
use knarr_api::schema::NodeRef;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use columns::PrinterColumn;

/// The fields of a kind that its scale shows.
pub struct ScaleFields {
    pub replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    /// A label selector as an object, a map of labels, or, in custom resources, a text.
    pub selector: Option<Vec<String>>,
}

/// One served version of a custom resource.
pub struct CustomType {
    pub schema: CustomSchema,
    /// The version's `openAPIV3Schema`, for OpenAPI.
    pub open_api: Value,
    scale: Option<ScalePaths>,
    has_status: bool,
    columns: Vec<PrinterColumn>,
    /// The conversion webhook, if there is one.
    pub converter: Option<Arc<Converter>>,
    /// The warning to clients of a deprecated version.
    pub deprecation: Option<String>,
    /// Objects stored before this revision may violate the schema.
    pub fits_since: u64,
}

impl CustomType {
    pub fn node(&self) -> NodeRef<'_> {
        self.schema.node()
    }

    pub fn prepare_create(&self, object: &mut Value) {
        if self.has_status {
            object.remove(&["status"]);
        }
        object.set(&["metadata", "generation"], 1);
    }

    /// A write to the object keeps its status; a write to its status keeps everything else.
    pub fn prepare_update(&self, object: &mut Value, old: &Value, subresource: &str) {
        if subresource == "status" {
            let status = object.remove(&["status"]);
            let managed = object.at(&["metadata", "managedFields"]).clone();
            *object = old.clone();
            match status {
                Some(status) => object.set(&["status"], status),
                None => drop(object.remove(&["status"])),
            }
            if managed.is_null() {
                object.remove(&["metadata", "managedFields"]);
            } else {
                object.set(&["metadata", "managedFields"], managed);
            }
            return;
        }
        if self.has_status && subresource != "scale" {
            match old.get("status") {
                Some(status) => object.set(&["status"], status.clone()),
                None => drop(object.remove(&["status"])),
            }
        }
        if self.body_changed(object, old) {
            let generation = old.integer(&["metadata", "generation"]).unwrap_or(0);
            object.set(&["metadata", "generation"], generation + 1);
        }
    }

    /// Whether a change increments the generation.
    fn body_changed(&self, object: &Value, old: &Value) -> bool {
        let skip = |key: &str| key == "metadata" || self.has_status && key == "status";
        let (Some(new_fields), Some(old_fields)) = (object.as_object(), old.as_object()) else { return false };
        new_fields.iter().any(|(key, value)| !skip(key) && old_fields.get(key) != Some(value))
            || old_fields.keys().any(|key| !skip(key) && !new_fields.contains_key(key))
    }

    /// False if the defaults take too much memory: then some are missing.
    pub fn set_defaults(&self, object: &mut Value) -> bool {
        self.schema.set_defaults(object)
    }

    /// Validates an object whose metadata is validated already.
    pub fn validate(&self, object: &Value, old: Option<&Value>, subresource: &str, errors: Errors) -> Errors {
        match old {
            None => self.schema.validate_create(object, errors),
            Some(old) if subresource == "status" => self.schema.validate_status_update(object, old, errors),
            Some(old) => self.schema.validate_update(object, old, errors),
        }
    }

    pub fn columns(&self) -> &[PrinterColumn] {
        &self.columns
    }

    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object.at(&["metadata", "name"]).clone();
        std::iter::once(name).chain(self.columns.iter().map(|column| column.cell(object, now))).collect()
    }

    pub fn scale(&self) -> Option<ScaleFields> {
        let scale = self.scale.as_ref()?;
        let parts = |path: &str| path.trim_start_matches('.').split('.').map(str::to_owned).collect::<Vec<_>>();
        Some(ScaleFields {
            replicas: parts(&scale.spec_replicas),
            status_replicas: parts(&scale.status_replicas),
            selector: scale.label_selector.as_deref().map(parts),
        })
    }
}
