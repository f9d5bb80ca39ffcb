//! Warnings about string formats that have no meaning in a schema.

use knarr_api::value::Read;
use serde_json::Value;

use super::hoisted::Hoisted;
use super::schema_fields;

const STRING_FORMATS: [&str; 24] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
];

/// Returns warnings about unrecognized formats in the schemas of a definition.
pub(super) fn unknown_formats(spec: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for schema in Hoisted::new(spec).schemas() {
        schema_fields::any(schema, &mut |schema| {
            let format = schema.text(&["format"]);
            let known = match schema.text(&["type"]) {
                _ if format.is_empty() => true,
                "" | "string" => {
                    let plain = format.replace('-', "");
                    STRING_FORMATS.contains(&plain.as_str()) || matches!(plain.as_str(), "k8sshortname" | "k8slongname")
                }
                "integer" => matches!(format, "int32" | "int64"),
                "number" => matches!(format, "float" | "double"),
                _ => false,
            };
            if !known {
                unknown.push(format.to_owned());
            }
            false
        });
    }
    unknown
}
