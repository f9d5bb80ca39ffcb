//! The printer columns of a CustomResourceDefinition.

use jiff::Timestamp;
use knarr_api::time;
use knarr_api::value::Read;
use knarr_rules::Description;
use serde_json::Value;

use super::json_path::JsonPath;

/// One column after the name.
pub struct PrinterColumn {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: ColumnDescription,
    pub priority: i64,
    path: Option<JsonPath>,
}

pub enum ColumnDescription {
    Text(String),
    Documented(Description),
}

impl PrinterColumn {
    /// The columns of a version; the age if none are defined.
    pub fn read(columns: &Value) -> Vec<PrinterColumn> {
        let listed = columns.as_array().map_or(&[][..], Vec::as_slice);
        if listed.is_empty() {
            return vec![PrinterColumn {
                name: "Age".to_owned(),
                kind: "date".to_owned(),
                format: String::new(),
                description: ColumnDescription::Documented(Description::Field(
                    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                    "creationTimestamp",
                )),
                priority: 0,
                path: JsonPath::parse(".metadata.creationTimestamp"),
            }];
        }
        listed.iter().map(PrinterColumn::of).collect()
    }

    fn of(column: &Value) -> PrinterColumn {
        let path = column.text(&["jsonPath"]);
        let description = match column.text(&["description"]) {
            "" => format!("Custom resource definition column (in JSONPath format): {path}"),
            text => text.to_owned(),
        };
        PrinterColumn {
            name: column.text(&["name"]).to_owned(),
            kind: column.text(&["type"]).to_owned(),
            format: column.text(&["format"]).to_owned(),
            description: ColumnDescription::Text(description),
            priority: column.integer(&["priority"]).unwrap_or(0),
            path: JsonPath::parse(path),
        }
    }

    /// The column's cell for one object; null if the path has no value or one of another type.
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.path.as_ref().map(|path| path.find(object)).unwrap_or_default();
        let Some(value) = found.first() else { return Value::Null };
        match (self.kind.as_str(), value) {
            ("string", value) => Value::String(plain(value)),
            ("integer", Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => integer.into(),
                (None, Some(float)) => (float as i64).into(),
                _ => Value::Null,
            },
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => (*value).clone(),
            ("date", Value::String(text)) => match time::parse(text) {
                Some(at) => time::human_duration(now.as_second() - at.as_second()).into(),
                None => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

/// A value as text; values other than strings as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_have_their_columns_type() {
        let columns = PrinterColumn::read(&json!([
            {"name": "A", "type": "integer", "jsonPath": ".spec.a"},
            {"name": "B", "type": "string", "jsonPath": ".spec.b"},
            {"name": "C", "type": "date", "jsonPath": ".spec.c"},
            {"name": "D", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
            {"name": "E", "type": "boolean", "jsonPath": ".spec.a"},
        ]));
        let object = json!({
            "spec": {"a": 3, "b": {"x": 1}, "c": "1970-01-01T00:00:00Z"},
            "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let now = Timestamp::from_second(60).unwrap();
        let cells: Vec<Value> = columns.iter().map(|column| column.cell(&object, now)).collect();
        assert_eq!(json!(cells), json!([3, "{\"x\":1}", "60s", "True", null]));
    }
}
