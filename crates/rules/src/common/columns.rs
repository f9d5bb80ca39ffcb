//! Table columns and cells that many kinds share.

use jiff::Timestamp;
use knarr_api::time;
use knarr_api::value::Read;
use serde_json::{Map, Value};

use crate::kind::{Column, ColumnPriority, Description, OBJECT_META};

/// The column Name.
pub const NAME: Column = Column { format: "name", ..field("Name", "string", OBJECT_META, "name") };
/// The column Age.
pub const AGE: Column = field("Age", "string", OBJECT_META, "creationTimestamp");
/// The wide column Containers of kinds with a pod template.
pub const CONTAINERS: Column = wide(text("Containers", "string", "Names of each container in the template."));
/// The wide column Images of kinds with a pod template.
pub const IMAGES: Column = wide(text("Images", "string", "Images referenced by each container in the template."));

/// Returns a column with its own description.
pub const fn text(name: &'static str, kind: &'static str, description: &'static str) -> Column {
    Column { name, kind, format: "", description: Description::Text(description), priority: ColumnPriority::Always }
}

/// Returns a column with the description of a field.
pub const fn field(name: &'static str, kind: &'static str, of: &'static str, field: &'static str) -> Column {
    Column { name, kind, format: "", description: Description::Field(of, field), priority: ColumnPriority::Always }
}

/// Returns the same column, printed with `-o wide` only.
pub const fn wide(column: Column) -> Column {
    Column { priority: ColumnPriority::Wide, ..column }
}

/// Returns the cell of the column Name.
pub fn name(object: &Value) -> Value {
    object.text(&["metadata", "name"]).into()
}

/// Returns the cell of the column Age.
pub fn age(object: &Value, now: Timestamp) -> Value {
    since(object.text(&["metadata", "creationTimestamp"]), now).into()
}

/// Renders the time since a timestamp as tables do.
pub fn since(at: &str, now: Timestamp) -> String {
    match time::parse(at) {
        Some(at) => time::human_duration(now.duration_since(at).as_secs()),
        None => "<unknown>".to_owned(),
    }
}

/// Returns the names and the images of the containers in a pod template.
pub fn containers_and_images(template: &Value) -> [Value; 2] {
    let joined = |field: &str| {
        let parts: Vec<&str> = template.items(&["spec", "containers"]).iter().map(|c| c.text(&[field])).collect();
        Value::from(parts.join(","))
    };
    [joined("name"), joined("image")]
}

/// Renders labels as `a=b,c=d`.
pub fn labels(labels: Option<&Map<String, Value>>) -> String {
    let mut parts: Vec<String> =
        labels.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    parts.sort_unstable();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(",") }
}

/// Returns a count, which is zero if the field is absent.
pub fn count(object: &Value, path: &[&str]) -> Value {
    object.integer(path).unwrap_or(0).into()
}

/// Renders the first `max` items of a list and the number of further ones.
pub fn join_first(items: &[&str], max: usize, when_empty: &str) -> String {
    if items.is_empty() {
        return when_empty.to_owned();
    }
    let rendered = items[..items.len().min(max)].join(",");
    if items.len() > max { format!("{rendered} + {} more...", items.len() - max) } else { rendered }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_read_as_tables_show_them() {
        let now = time::parse("2026-01-01T00:02:00Z").unwrap();
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(age(&object, now), "2m");
        assert_eq!(age(&json!({}), now), "<unknown>");
        let template = json!({"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}});
        assert_eq!(containers_and_images(&template), [json!("a,b"), json!("x,y")]);
        assert_eq!(join_first(&["a", "b", "c", "d"], 3, "<unset>"), "a,b,c + 1 more...");
        assert_eq!(join_first(&[], 3, "<unset>"), "<unset>");
    }
}
