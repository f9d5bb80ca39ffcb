//! Readers of JSON documents that name the field they miss.

use anyhow::Context as _;
use serde_json::Value;

pub fn items(document: &Value) -> anyhow::Result<&Vec<Value>> {
    array(document, "items")
}

pub fn array<'v>(value: &'v Value, field: &str) -> anyhow::Result<&'v Vec<Value>> {
    value[field].as_array().with_context(|| format!("no list `{field}` in {value}"))
}

pub fn text<'v>(value: &'v Value, field: &str) -> anyhow::Result<&'v str> {
    value[field].as_str().with_context(|| format!("no text `{field}` in {value}"))
}

/// The texts of a list, none when it is missing.
pub fn texts<'v>(value: &'v Value, field: &str) -> Vec<&'v str> {
    value[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
