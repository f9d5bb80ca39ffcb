//! Renders the versions of a definition for error messages.

use knarr_api::value::Read;
use serde_json::Value;

use super::hoisted::Hoisted;
use super::schema_fields;
use crate::common::go_json;

/// Renders versions with the field names of the internal type.
pub fn to_json(hoisted: &Hoisted<'_>) -> String {
    let versions: Vec<String> = hoisted
        .versions()
        .iter()
        .map(|version| {
            let flag = |field: &str| version[field] == true;
            let schema = hoisted.own(version, "schema");
            let schema = if schema.is_null() {
                "null".to_owned()
            } else {
                format!("{{\"OpenAPIV3Schema\":{}}}", schema_fields::to_json(&schema["openAPIV3Schema"]))
            };
            format!(
                "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{schema},\
                 \"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
                Value::from(version.text(&["name"])),
                flag("served"),
                flag("storage"),
                flag("deprecated"),
                version["deprecationWarning"],
                subresources_json(hoisted.own(version, "subresources")),
                columns_json(hoisted.own(version, "additionalPrinterColumns")),
                selectable_json(hoisted.own(version, "selectableFields")),
            )
        })
        .collect();
    if versions.is_empty() { "null".to_owned() } else { format!("[{}]", versions.join(",")) }
}

fn subresources_json(subresources: &Value) -> String {
    if subresources.is_null() {
        return "null".to_owned();
    }
    let status = if subresources.has(&["status"]) { "{}" } else { "null" };
    let scale = &subresources["scale"];
    let scale = if scale.is_null() {
        "null".to_owned()
    } else {
        go_json::struct_json(&[
            ("SpecReplicasPath", scale.text(&["specReplicasPath"]).into()),
            ("StatusReplicasPath", scale.text(&["statusReplicasPath"]).into()),
            ("LabelSelectorPath", scale["labelSelectorPath"].clone()),
        ])
    };
    format!("{{\"Status\":{status},\"Scale\":{scale}}}")
}

fn columns_json(columns: &Value) -> String {
    if columns.is_null() {
        return "null".to_owned();
    }
    let parts: Vec<String> = columns
        .items(&[])
        .iter()
        .map(|column| {
            let text = |field: &str| Value::from(column.text(&[field]));
            go_json::struct_json(&[
                ("Name", text("name")),
                ("Type", text("type")),
                ("Format", text("format")),
                ("Description", text("description")),
                ("Priority", column.integer(&["priority"]).unwrap_or(0).into()),
                ("JSONPath", text("jsonPath")),
            ])
        })
        .collect();
    format!("[{}]", parts.join(","))
}

fn selectable_json(fields: &Value) -> String {
    if fields.is_null() {
        return "null".to_owned();
    }
    let field_json = |field: &Value| go_json::struct_json(&[("JSONPath", field.text(&["jsonPath"]).into())]);
    let parts: Vec<String> = fields.items(&[]).iter().map(field_json).collect();
    format!("[{}]", parts.join(","))
}
