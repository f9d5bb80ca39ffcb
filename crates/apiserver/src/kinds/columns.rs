//! The column definitions of tables.

use knarr_rules::{Column, ColumnPriority, Description, KindRules};
use serde_json::{Value, json};

use super::Resource;
use crate::custom::ColumnDescription;

/// The columns of a resource.
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

/// The columns of a built-in kind.
pub fn rule_columns(rules: &dyn KindRules, describe: &dyn Fn(&str, &str) -> Option<String>) -> Value {
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
        "priority": if column.priority == ColumnPriority::Always { 0 } else { 1 },
    })
}
