//! Validation of an apply configuration against its schema.

use super::element::PathElement;
use super::typing::{Atom, ListAtom, Scalar, Type, element_of};
use crate::patch::go_format;
use crate::value::go_type;
use serde_json::Value;
use std::collections::BTreeSet;

/// How much text the errors may have together. Each repeats its path, which may be as long as the configuration.
const MAX_BYTES: usize = 1 << 20;

/// Checks a configuration and returns all errors with their paths as one text.
pub(super) fn validate(value: &Value, kind: Type<'_>) -> Result<(), String> {
    let mut problems = Problems { texts: Vec::new(), left: MAX_BYTES };
    check(value, kind, &mut String::new(), &mut problems);
    let mut texts = problems.texts;
    match texts.len() {
        0 => Ok(()),
        1 => Err(texts.remove(0)),
        _ => Err(format!("errors:\n  {}", texts.join("\n  "))),
    }
}

struct Problems {
    texts: Vec<String>,
    /// How many more bytes of text are kept.
    left: usize,
}

fn check(value: &Value, kind: Type<'_>, path: &mut String, problems: &mut Problems) {
    match kind.atom(Some(value)) {
        Atom::Scalar(scalar) => check_scalar(value, scalar, path, problems),
        Atom::List(list) => match value {
            Value::Null => {}
            Value::Array(items) => check_items(items, list, path, problems),
            _ => report(path, &format!("expected list, got &{{{}}}", go_format(value)), problems),
        },
        Atom::Map(map) => match value {
            Value::Null => {}
            Value::Object(fields) => {
                for (name, value) in fields {
                    let element = PathElement::field(name);
                    match map.child(name) {
                        Some(kind) => below(path, &element, |path| check(value, kind, path, problems)),
                        None => {
                            below(path, &element, |path| report(path, "field not declared in schema", problems));
                            return;
                        }
                    }
                }
            }
            _ => report(path, &format!("expected map, got &{{{}}}", go_format(value)), problems),
        },
    }
}

fn check_items(items: &[Value], list: ListAtom<'_>, path: &mut String, problems: &mut Problems) {
    let mut seen: BTreeSet<PathElement> = BTreeSet::new();
    for (at, item) in items.iter().enumerate() {
        let (element, kind) = match list {
            ListAtom::Atomic(node) => (PathElement::Index(at as i64), node.map_or(Type::Deduced, Type::Node)),
            ListAtom::Associative { list, element } => match element_of(list, element, item) {
                Ok(found) => (found, Type::Node(element)),
                Err(message) => return report(path, &format!("element {at}: {message}"), problems),
            },
        };
        if matches!(list, ListAtom::Associative { .. }) && !seen.insert(element.clone()) {
            report(path, &format!("duplicate entries for key {element}"), problems);
        }
        below(path, &element, |path| check(item, kind, path, problems));
    }
}

fn check_scalar(value: &Value, scalar: Scalar, path: &str, problems: &mut Problems) {
    let problem = match (scalar, value) {
        (_, Value::Null) | (Scalar::Numeric, Value::Number(_)) | (Scalar::String, Value::String(_)) => return,
        (Scalar::Boolean, Value::Bool(_)) => return,
        (Scalar::Untyped, Value::Bool(_) | Value::Number(_) | Value::String(_)) => return,
        (Scalar::Numeric, _) => format!("expected numeric (int or float), got {}", go_type(value)),
        (Scalar::String, _) => format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_literal(value)),
        (Scalar::Boolean, _) => format!("expected boolean, got &{{{}}}", go_format(value)),
        (Scalar::Untyped, _) => format!("expected any scalar, got &{{{}}}", go_format(value)),
    };
    report(path, &problem, problems);
}

fn below(path: &mut String, element: &PathElement, then: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(&element.to_string());
    then(path);
    path.truncate(length);
}

fn report(path: &str, problem: &str, problems: &mut Problems) {
    if problems.left > 0 {
        let text = if path.is_empty() { problem.to_owned() } else { format!("{path}: {problem}") };
        problems.left = problems.left.saturating_sub(text.len());
        problems.texts.push(text);
    }
}

fn go_literal(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_literal).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name:?}:{}", go_literal(value)));
            format!("map[string]interface {{}}{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Null => "interface {}(nil)".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn what_does_not_fit_is_named_with_its_path() {
        let node = Type::Node(builtin().kind("apps", "v1", "Deployment").expect("deployment"));
        for (spec, expected) in [
            (json!({"nonsense": 1}), ".spec.nonsense: field not declared in schema"),
            (json!({"replicas": "x"}), ".spec.replicas: expected numeric (int or float), got string"),
            (
                json!({"template": {"spec": {"containers": [{"name": 1}]}}}),
                ".spec.template.spec.containers[name=1].name: expected string, got &value.valueUnstructured{Value:1}",
            ),
            (
                json!({"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}),
                r#".spec.template.spec.containers: duplicate entries for key [name="a"]"#,
            ),
            (
                json!({"template": {"spec": {"containers": {}}}}),
                ".spec.template.spec.containers: expected list, got &{map[]}",
            ),
            (json!({"selector": 5}), ".spec.selector: expected map, got &{5}"),
        ] {
            assert_eq!(validate(&json!({"spec": spec}), node), Err(expected.to_owned()));
        }
    }

    /// Each error repeats the name of the container that all of them are in.
    #[test]
    fn errors_below_a_long_name_do_not_fill_memory() {
        let node = Type::Node(builtin().kind("", "v1", "Pod").expect("pod"));
        let name = "n".repeat(MAX_BYTES / 8);
        let pod = |count: usize| json!({"spec": {"containers": [{"name": name, "args": vec![1; count]}]}});
        let errors = validate(&pod(50_000), node).expect_err("no texts");
        assert!((MAX_BYTES..2 * MAX_BYTES).contains(&errors.len()), "{}", errors.len());
        assert!(validate(&pod(0), node).is_ok());
    }
}
