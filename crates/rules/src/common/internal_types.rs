//! Renders values the way Kubernetes renders its internal types in error messages.
//!
//! Kubernetes validates objects in its internal version: Go structures without JSON tags. A message that includes such a
//! value, or a diff of two values, therefore shows Go's field names (`HostPID` instead of `hostPID`) and every field of
//! the structure, absent ones with their zero value:
//!
//! ```text
//! spec.taints[1]: Duplicate value: {"Key":"a","Value":"","Effect":"NoSchedule","TimeAdded":null}
//! ```
//!
//! Clients see these messages, so they must be the same here. Our objects are plain JSON in the public version and know
//! neither the Go names nor the absent fields; `internal_types.txt` lists both for the types that occur in messages.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::go_json::escape_html;

/// Renders a value of an internal type as JSON on one line. `type_name` is written as in `internal_types.txt`.
pub fn to_json(type_name: &str, value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, &tree(type_name, value, &Value::Null), None, 0);
    text
}

/// Renders a value of an internal type as JSON with one field per line, indented by one space.
pub fn to_json_pretty(type_name: &str, value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, &tree(type_name, value, &Value::Null), Some(1), 0);
    text
}

/// The types of `internal_types.txt` by name.
static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut types = HashMap::new();
    let mut current = "";
    let mut text = String::new();
    let mut finish = |name: &'static str, text: &mut String| {
        if !name.is_empty() {
            types.insert(name, text.split(", ").filter_map(Field::parse).collect::<Vec<_>>());
        }
        text.clear();
    };
    for line in include_str!("internal_types.txt").lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_suffix(':') {
            finish(current, &mut text);
            current = name;
        } else {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line.trim());
        }
    }
    finish(current, &mut text);
    types
});

struct Field {
    go_name: String,
    json_name: String,
    /// Whether objects have the field in the object that contains this one.
    in_parent: bool,
    type_name: String,
}

impl Field {
    fn parse(text: &str) -> Option<Field> {
        let (names, type_name) = text.trim_end_matches(',').split_once(' ')?;
        let (go_name, json_name) = match names.split_once('=') {
            Some((go_name, json_name)) => (go_name, json_name.to_owned()),
            None => (names, names[..1].to_lowercase() + &names[1..]),
        };
        let (json_name, in_parent) = match json_name.strip_prefix('^') {
            Some(json_name) => (json_name.to_owned(), true),
            None => (json_name, false),
        };
        Some(Field { go_name: go_name.to_owned(), json_name, in_parent, type_name: type_name.to_owned() })
    }
}

/// JSON whose fields are in the order of the internal type.
enum Tree {
    Leaf(Value),
    List(Vec<Tree>),
    Fields(Vec<(String, Tree)>),
}

fn tree(type_name: &str, value: &Value, parent: &Value) -> Tree {
    if let Some(inner) = type_name.strip_prefix('*') {
        return if value.is_null() { Tree::Leaf(Value::Null) } else { tree(inner, value, parent) };
    }
    if let Some(inner) = type_name.strip_prefix("[]") {
        return match value {
            Value::Array(items) => Tree::List(items.iter().map(|item| tree(inner, item, parent)).collect()),
            _ => Tree::Leaf(Value::Null),
        };
    }
    let zero = match type_name {
        "string" => Value::from(""),
        "bool" => Value::from(false),
        "int" | "intstr" => Value::from(0),
        "quantity" => Value::from("0"),
        "map" | "raw" | "time" => Value::Null,
        _ => return structure(type_name, value, parent),
    };
    match value {
        Value::Null => Tree::Leaf(zero),
        Value::Object(fields) => {
            Tree::Fields(fields.iter().map(|(name, value)| (name.clone(), tree("raw", value, parent))).collect())
        }
        Value::Array(items) => Tree::List(items.iter().map(|item| tree("raw", item, parent)).collect()),
        other => Tree::Leaf(other.clone()),
    }
}

fn structure(type_name: &str, value: &Value, parent: &Value) -> Tree {
    let Some(fields) = TYPES.get(type_name) else { return Tree::Leaf(value.clone()) };
    let mut parts = Vec::with_capacity(fields.len());
    for field in fields {
        if field.type_name == "meta" {
            // Metadata is embedded: its fields are among those of the object, and only those that are set.
            for name in ["name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"]
            {
                if let Some(map) = value.get("metadata").and_then(|metadata| metadata.get(name)) {
                    parts.push((name.to_owned(), tree("raw", map, value)));
                }
            }
            continue;
        }
        let from = if field.in_parent { parent } else { value };
        let inner = from.get(&field.json_name).unwrap_or(&Value::Null);
        parts.push((field.go_name.clone(), tree(&field.type_name, inner, value)));
    }
    Tree::Fields(parts)
}

fn write(text: &mut String, tree: &Tree, indent: Option<usize>, depth: usize) {
    let between = |text: &mut String, depth: usize| {
        if let Some(width) = indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    match tree {
        Tree::Leaf(value) => text.push_str(&escape_html(&value.to_string())),
        Tree::List(items) if items.is_empty() => text.push_str("[]"),
        Tree::List(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                between(text, depth + 1);
                write(text, item, indent, depth + 1);
            }
            between(text, depth);
            text.push(']');
        }
        Tree::Fields(fields) if fields.is_empty() => text.push_str("{}"),
        Tree::Fields(fields) => {
            text.push('{');
            for (i, (name, value)) in fields.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                between(text, depth + 1);
                text.push_str(&escape_html(&Value::from(name.as_str()).to_string()));
                text.push(':');
                if indent.is_some() {
                    text.push(' ');
                }
                write(text, value, indent, depth + 1);
            }
            between(text, depth);
            text.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_is_rendered_with_its_go_name() {
        assert_eq!(
            to_json("SecurityContext", &json!({"privileged": true, "capabilities": {"add": ["A<B"]}})),
            "{\"Capabilities\":{\"Add\":[\"A\\u003cB\"],\"Drop\":null},\"Privileged\":true,\"SELinuxOptions\":null,\
             \"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\"RunAsNonRoot\":null,\
             \"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":null,\"ProcMount\":null,\
             \"SeccompProfile\":null,\"AppArmorProfile\":null}"
        );
    }

    #[test]
    fn fields_of_the_parent_are_found() {
        let spec = json!({"hostNetwork": true, "securityContext": {}, "containers": [{"name": "c"}]});
        let text = to_json_pretty("PodSpec", &spec);
        assert!(text.contains("\n \"SecurityContext\": {\n  \"HostNetwork\": true,\n  \"HostPID\": false,"), "{text}");
        assert!(text.contains("\n  {\n   \"Name\": \"c\",\n   \"Image\": \"\","), "{text}");
        assert!(!TYPES.values().flatten().any(|field| {
            let base = field.type_name.trim_start_matches(['*', '[', ']']);
            base.starts_with(char::is_uppercase) && !TYPES.contains_key(base)
        }));
    }
}
