//! Objects as Kubernetes shows them in some of its messages: by the names its own program has for the fields, every
//! field of a structure, those that are empty too.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

/// A value of one of the types of the core group, in one line.
pub fn to_json(type_name: &str, value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, &tree(type_name, value, &Value::Null), None, 0);
    text
}

/// The same over many lines, indented by one space.
pub fn to_json_pretty(type_name: &str, value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, &tree(type_name, value, &Value::Null), Some(1), 0);
    text
}

/// Types, their fields, and what the fields hold. A field's name in objects is its own with a small first letter unless
/// another stands after `=`; `^` before it says that the field is one of the object that holds this one.
static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut types = HashMap::new();
    let mut current = "";
    let mut text = String::new();
    let mut finish = |name: &'static str, text: &mut String| {
        if !name.is_empty() {
            types.insert(name, text.split(", ").filter_map(Field::read).collect::<Vec<_>>());
        }
        text.clear();
    };
    for line in include_str!("internal_types.txt").lines() {
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
    name: String,
    field: String,
    of_holder: bool,
    kind: String,
}

impl Field {
    fn read(text: &str) -> Option<Field> {
        let (names, kind) = text.trim_end_matches(',').split_once(' ')?;
        let (name, field) = match names.split_once('=') {
            Some((name, field)) => (name, field.to_owned()),
            None => (names, names[..1].to_lowercase() + &names[1..]),
        };
        let (field, of_holder) = match field.strip_prefix('^') {
            Some(field) => (field.to_owned(), true),
            None => (field, false),
        };
        Some(Field { name: name.to_owned(), field, of_holder, kind: kind.to_owned() })
    }
}

/// What is written: like JSON, but the fields keep their order.
enum Tree {
    Leaf(Value),
    List(Vec<Tree>),
    Fields(Vec<(String, Tree)>),
}

fn tree(kind: &str, value: &Value, holder: &Value) -> Tree {
    if let Some(inner) = kind.strip_prefix('*') {
        return if value.is_null() { Tree::Leaf(Value::Null) } else { tree(inner, value, holder) };
    }
    if let Some(inner) = kind.strip_prefix("[]") {
        return match value {
            Value::Array(items) => Tree::List(items.iter().map(|item| tree(inner, item, holder)).collect()),
            _ => Tree::Leaf(Value::Null),
        };
    }
    let zero = match kind {
        "string" => Value::from(""),
        "bool" => Value::from(false),
        "int" | "intstr" => Value::from(0),
        "quantity" => Value::from("0"),
        "map" | "raw" | "time" => Value::Null,
        _ => return structure(kind, value, holder),
    };
    match value {
        Value::Null => Tree::Leaf(zero),
        Value::Object(fields) => {
            Tree::Fields(fields.iter().map(|(name, value)| (name.clone(), tree("raw", value, holder))).collect())
        }
        Value::Array(items) => Tree::List(items.iter().map(|item| tree("raw", item, holder)).collect()),
        other => Tree::Leaf(other.clone()),
    }
}

fn structure(kind: &str, value: &Value, holder: &Value) -> Tree {
    let Some(fields) = TYPES.get(kind) else { return Tree::Leaf(value.clone()) };
    let mut parts = Vec::with_capacity(fields.len());
    for field in fields {
        if field.kind == "meta" {
            // Metadata's fields stand among the others, and only those that are set.
            for name in ["name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"]
            {
                if let Some(map) = value.get("metadata").and_then(|metadata| metadata.get(name)) {
                    parts.push((name.to_owned(), tree("raw", map, value)));
                }
            }
            continue;
        }
        let from = if field.of_holder { holder } else { value };
        let inner = from.get(&field.field).unwrap_or(&Value::Null);
        parts.push((field.name.clone(), tree(&field.kind, inner, value)));
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
        Tree::Leaf(value) => text.push_str(&escaped(&value.to_string())),
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
                text.push_str(&escaped(&Value::from(name.as_str()).to_string()));
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

/// Characters that mean something in HTML are escaped, as Go's JSON does.
fn escaped(text: &str) -> String {
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", character as u32)),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_is_shown_by_its_internal_name() {
        assert_eq!(
            to_json("SecurityContext", &json!({"privileged": true, "capabilities": {"add": ["A<B"]}})),
            "{\"Capabilities\":{\"Add\":[\"A\\u003cB\"],\"Drop\":null},\"Privileged\":true,\"SELinuxOptions\":null,\
             \"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\"RunAsNonRoot\":null,\
             \"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":null,\"ProcMount\":null,\
             \"SeccompProfile\":null,\"AppArmorProfile\":null}"
        );
    }

    #[test]
    fn fields_of_the_holder_are_found() {
        let spec = json!({"hostNetwork": true, "securityContext": {}, "containers": [{"name": "c"}]});
        let text = to_json_pretty("PodSpec", &spec);
        assert!(text.contains("\n \"SecurityContext\": {\n  \"HostNetwork\": true,\n  \"HostPID\": false,"), "{text}");
        assert!(text.contains("\n  {\n   \"Name\": \"c\",\n   \"Image\": \"\","), "{text}");
        assert!(!TYPES.values().flatten().any(|field| {
            let base = field.kind.trim_start_matches(['*', '[', ']']);
            base.starts_with(char::is_uppercase) && !TYPES.contains_key(base)
        }));
    }
}
