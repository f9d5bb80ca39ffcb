//! Objects as rows of a table, as kubectl shows them, and the part of an object that is only its metadata.

use jiff::Timestamp;
use knarr_rules::{Column, Description, Rank};
use serde_json::{Value, json};

use crate::kinds::Resource;

/// What a row carries beside its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub fn parse(text: &str) -> IncludeObject {
        match text {
            "None" => IncludeObject::None,
            "Object" => IncludeObject::Object,
            _ => IncludeObject::Metadata,
        }
    }
}

/// Makes tables of one resource.
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

    /// A table with one row an object.
    pub fn of(&self, metadata: Value, objects: impl IntoIterator<Item = Value>) -> Value {
        let rows: Vec<Value> = objects.into_iter().map(|object| self.row(object)).collect();
        let columns = if self.with_columns { self.columns() } else { Value::Null };
        json!({
            "kind": "Table", "apiVersion": format!("meta.k8s.io/{}", self.meta_version), "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn columns(&self) -> Value {
        match &self.resource.custom {
            Some(custom) => custom.columns(),
            None => self.resource.rules.columns().iter().map(column).collect(),
        }
    }

    fn row(&self, object: Value) -> Value {
        let cells = match &self.resource.custom {
            Some(custom) => custom.cells(&object, self.now),
            None => self.resource.rules.cells(&object, self.now),
        };
        let mut row = json!({ "cells": cells });
        if let Some(conditions) = self.conditions(&object) {
            row["conditions"] = conditions;
        }
        match self.include {
            IncludeObject::None => row["object"] = Value::Null,
            IncludeObject::Metadata => row["object"] = partial(&object, self.meta_version),
            IncludeObject::Object => row["object"] = object,
        }
        row
    }

    /// Finished pods and jobs are marked, so that clients can leave them out.
    fn conditions(&self, object: &Value) -> Option<Value> {
        if !self.resource.is("", "pods") {
            return None;
        }
        match object["status"]["phase"].as_str()? {
            "Succeeded" => Some(json!([{
                "type": "Completed", "status": "True", "reason": "Succeeded",
                "message": "The pod has completed successfully.",
            }])),
            "Failed" => Some(json!([{
                "type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed.",
            }])),
            _ => None,
        }
    }
}

fn column(column: &Column) -> Value {
    let description = match column.description {
        Description::Text(text) => text.to_owned(),
        Description::Field(type_name, field) => crate::endpoint::openapi::field_description(type_name, field),
    };
    json!({
        "name": column.name, "type": column.kind, "format": column.format, "description": description,
        "priority": if column.rank == Rank::Always { 0 } else { 1 },
    })
}

/// An object's metadata alone.
pub fn partial(object: &Value, meta_version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{meta_version}"), "metadata": object["metadata"],
    })
}
