//! Objects as rows of a table, as kubectl shows them, and the part of an object that is only its metadata.

use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_rules::{Column, Description, KindRules, Rank};
use serde_json::{Value, json};

use crate::custom::ColumnDescription;
use crate::kinds::Resource;
use crate::route::accept::{Format, Shape};
use crate::route::query::Query;

/// What a row carries beside its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    /// What a request asks for; other representations than tables leave the question alone.
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
        self.with_cells(metadata, objects, |object| match &self.resource.custom {
            Some(custom) => custom.cells(object, self.now),
            None => self.resource.rules.cells(object, self.now),
        })
    }

    /// The same with cells that somebody else makes.
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

    /// A table of one object of another kind than the resource's own.
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
        if let Some(conditions) = self.conditions(&object) {
            row["conditions"] = conditions;
        }
        match self.include {
            IncludeObject::None => row["object"] = Value::Null,
            IncludeObject::Metadata => row["object"] = partial(self.resource, &object, self.meta_version),
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

/// The definitions of a resource's columns.
pub fn columns(resource: &Resource, describe: &dyn Fn(&str, &str) -> Option<String>) -> Value {
    let Some(custom) = &resource.custom else { return rule_columns(resource.rules, describe) };
    let text = |description: &Description| described(description, describe);
    let name = Description::Field("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "name");
    let first = json!({"name": "Name", "type": "string", "format": "name", "description": text(&name), "priority": 0});
    let rest = custom.columns().iter().map(|own| {
        let description = match &own.description {
            ColumnDescription::Text(text) => text.clone(),
            ColumnDescription::Documented(description) => text(description),
        };
        json!({
            "name": own.name, "type": own.kind, "format": own.format, "description": description,
            "priority": own.priority,
        })
    });
    std::iter::once(first).chain(rest).collect()
}

fn rule_columns(rules: &dyn KindRules, describe: &dyn Fn(&str, &str) -> Option<String>) -> Value {
    rules.columns().iter().map(|own| column(own, described(&own.description, describe))).collect()
}

fn described(description: &Description, describe: &dyn Fn(&str, &str) -> Option<String>) -> String {
    match description {
        Description::Text(text) => (*text).to_owned(),
        Description::Field(type_name, field) => describe(type_name, field).unwrap_or_default(),
    }
}

fn column(column: &Column, description: String) -> Value {
    json!({
        "name": column.name, "type": column.kind, "format": column.format, "description": description,
        "priority": if column.rank == Rank::Always { 0 } else { 1 },
    })
}

/// An annotation that stands for a field of old and is no part of the metadata.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Whether the metadata alone is the stored metadata.
pub fn is_shown_whole(resource: &Resource) -> bool {
    !resource.is("apps", "daemonsets")
}

/// An object's metadata alone.
pub fn partial(resource: &Resource, object: &Value, meta_version: &str) -> Value {
    let mut metadata = object["metadata"].clone();
    if !is_shown_whole(resource)
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
