//! Custom resources: from a definition to a kind that is served like any other, and back to nothing.

pub mod columns;
mod definition;
mod follow;
mod json_path;
mod names;

pub use columns::ColumnDescription;
pub use definition::without_storage;
pub use follow::{follow, load};

use std::sync::Arc;

use jiff::Timestamp;
use knarr_api::custom::{CustomSchema, ScalePaths};
use knarr_api::field::Errors;
use knarr_api::schema::NodeRef;
use knarr_api::value::{Read, Write as _};
use serde_json::{Value, json};

use crate::persist::convert::Converter;
use crate::subresource::scale::ScaleFields;
use columns::PrinterColumn;

/// Keeps a definition until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// What serving one version of a custom resource needs.
pub struct CustomType {
    pub schema: CustomSchema,
    /// The version's `openAPIV3Schema`, for OpenAPI.
    pub open_api: Value,
    scale: Option<ScalePaths>,
    has_status: bool,
    columns: Vec<PrinterColumn>,
    /// Who converts its objects between versions, where they differ in more than their names.
    pub converter: Option<Arc<Converter>>,
    /// What requests for a version on its way out are warned with.
    pub deprecation: Option<String>,
    /// Objects stored before this revision may not fit the schema.
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

    /// Whether there is something new for controllers to do.
    fn body_changed(&self, object: &Value, old: &Value) -> bool {
        let skip = |key: &str| key == "metadata" || self.has_status && key == "status";
        let (Some(new_fields), Some(old_fields)) = (object.as_object(), old.as_object()) else { return false };
        new_fields.iter().any(|(key, value)| !skip(key) && old_fields.get(key) != Some(value))
            || old_fields.keys().any(|key| !skip(key) && !new_fields.contains_key(key))
    }

    pub fn set_defaults(&self, object: &mut Value) {
        self.schema.set_defaults(object);
    }

    /// All that is wrong with an object whose metadata was checked already.
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

/// What changes in a definition that is being deleted while its objects are still there.
pub fn terminate(object: &mut Value) {
    let mut finalizers = object.items(&["metadata", "finalizers"]).to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    object.set(&["metadata", "finalizers"], finalizers);
    object.remove(&["metadata", "deletionGracePeriodSeconds"]);
    let now = object.text(&["metadata", "deletionTimestamp"]).to_owned();
    let condition = json!({
        "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    });
    names::set_condition(object, condition, &now);
}
