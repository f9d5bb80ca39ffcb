//! Tables, as kubectl shows them, and PartialObjectMetadata.

use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_rules::KindRules;
use serde_json::{Value, json};

use crate::kinds::{Resource, rule_columns};
use crate::route::accept::{Format, Shape};
use crate::route::query::Query;

/// The `includeObject` parameter: what a row contains besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    /// Parses the parameter; it is ignored for other representations than tables.
    pub fn of(format: &Format, query: &Query) -> Result<IncludeObject, Status> {
        match query.text("includeObject") {
            _ if format.shape != Shape::Table => Ok(IncludeObject::Metadata),
            "None" => Ok(IncludeObject::None),
            "Object" => Ok(IncludeObject::Object),
            "Metadata" | "" => Ok(IncludeObject::Metadata),
            other => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

/// Builds tables of one resource.
pub struct Tables<'a> {
    resource: &'a Resource,
    meta_version: &'static str,
    include: IncludeObject,
    now: Timestamp,
    /// A watch names its columns only in its first event.
    pub with_columns: bool,
}

impl<'a> Tables<'a> {
    pub fn new(resource: &'a Resource, meta_version: &'static str, include: IncludeObject) -> Tables<'a> {
        Tables { resource, meta_version, include, now: Timestamp::now(), with_columns: true }
    }

    /// A table with one row per object.
    pub fn of(&self, metadata: Value, objects: impl IntoIterator<Item = Value>) -> Value {
        self.with_cells(metadata, objects, |object| self.cells(object))
    }

    /// One row.
    pub fn row_of(&self, object: Value) -> Value {
        self.row(self.cells(&object), object)
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        match &self.resource.custom {
            Some(custom) => custom.cells(object, self.now),
            None => self.resource.rules.cells(object, self.now),
        }
    }

    /// Like `of`, with cells from the caller.
    pub fn with_cells(
        &self,
        metadata: Value,
        objects: impl IntoIterator<Item = Value>,
        cells: impl Fn(&Value) -> Vec<Value>,
    ) -> Value {
        let rows: Vec<Value> = objects.into_iter().map(|object| self.row(cells(&object), object)).collect();
        let columns = if self.with_columns { self.resource.columns().clone() } else { Value::Null };
        json!({
            "kind": "Table", "apiVersion": format!("meta.k8s.io/{}", self.meta_version), "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    /// A table of one object of another kind than the resource.
    pub fn of_rules(
        &self,
        rules: &dyn KindRules,
        describe: &dyn Fn(&str, &str) -> Option<String>,
        object: Value,
    ) -> Value {
        let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let mut table = self.with_cells(metadata, [object], |object| rules.cells(object, self.now));
        table["columnDefinitions"] = rule_columns(rules, describe);
        table
    }

    fn row(&self, cells: Vec<Value>, object: Value) -> Value {
        let mut row = json!({ "cells": cells });
        let conditions = self.resource.rules.row_conditions(&object).filter(|_| self.resource.custom.is_none());
        if let Some(conditions) = conditions {
            row["conditions"] = conditions;
        }
        match self.include {
            IncludeObject::None => row["object"] = Value::Null,
            IncludeObject::Metadata => row["object"] = partial(self.resource, &object, self.meta_version),
            IncludeObject::Object => row["object"] = object,
        }
        row
    }
}

/// An annotation that stands for a removed field and is not part of the metadata.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Whether PartialObjectMetadata contains the stored metadata unchanged.
pub fn serves_stored_metadata(resource: &Resource) -> bool {
    !resource.is("apps", "daemonsets")
}

/// An object as PartialObjectMetadata.
pub fn partial(resource: &Resource, object: &Value, meta_version: &str) -> Value {
    let mut metadata = object["metadata"].clone();
    if !serves_stored_metadata(resource)
        && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(TEMPLATE_GENERATION);
        if annotations.is_empty() {
            metadata.as_object_mut().map(|fields| fields.remove("annotations"));
        }
    }
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{meta_version}"), "metadata": metadata,
    })
}
