//! Normalization: adds the fields that Kubernetes always prints, and removes empty ones.

use super::typed::is_zero;
use crate::schema::{Field, NodeRef, Object, Presence, Shape};
use serde_json::{Map, Value};

/// Normalizes an object to the form in which Kubernetes prints it.
pub fn normalize(value: &mut Value, node: NodeRef<'_>) {
    Form { keeps_empty: false }.bring(value, node);
}

/// The same, but keeps empty lists and maps that are always printed: their writer owns them, so they stay until that is
/// recorded.
pub fn normalize_as_given(value: &mut Value, node: NodeRef<'_>) {
    Form { keeps_empty: true }.bring(value, node);
}

#[derive(Clone, Copy)]
struct Form {
    keeps_empty: bool,
}

impl Form {
    fn bring(self, value: &mut Value, node: NodeRef<'_>) {
        match (&node.get().shape, value) {
            (Shape::Object(object), Value::Object(fields)) => self.bring_fields(fields, node, object),
            (Shape::Map(element), Value::Object(entries)) => {
                let element = node.at(*element);
                if has_inner_form(element) {
                    entries.values_mut().for_each(|entry| self.bring(entry, element));
                }
            }
            (Shape::List(list), Value::Array(items)) => {
                let element = node.at(list.element);
                if has_inner_form(element) {
                    items.iter_mut().for_each(|item| self.bring(item, element));
                }
            }
            (Shape::SchemaOr { schema, .. }, value @ Value::Object(_)) => self.bring(value, node.at(*schema)),
            (Shape::SchemaOr { schema, .. }, Value::Array(items)) => {
                items.iter_mut().filter(|item| item.is_object()).for_each(|item| self.bring(item, node.at(*schema)));
            }
            _ => {}
        }
    }

    fn bring_fields(self, fields: &mut Map<String, Value>, node: NodeRef<'_>, object: &Object) {
        let mut printed = 0;
        fields.retain(|name, value| {
            let Some(field) = object.field(name) else { return true };
            self.bring(value, node.at(field.node));
            let keep = self.normalize_field(field, value, node);
            printed += usize::from(keep && matches!(field.presence, Presence::Always | Presence::Nullable));
            keep
        });
        if printed < object.always_printed().len() {
            add_missing(fields, node, object);
        }
    }

    /// Whether the field stays; a list or map that is always printed becomes null when it is empty.
    fn normalize_field(self, field: &Field, value: &mut Value, node: NodeRef<'_>) -> bool {
        match field.presence {
            Presence::NonZero => !is_zero(value) || starts_over(field, value),
            Presence::Optional => !value.is_null(),
            Presence::Nullable | Presence::AsGiven => true,
            Presence::Always => {
                let target = node.at(field.node);
                match (&target.get().shape, &*value) {
                    (_, Value::Null) => *value = zero(target),
                    _ if self.keeps_empty => {}
                    (Shape::List(_), Value::Array(items)) if items.is_empty() => *value = Value::Null,
                    (Shape::Map(_), Value::Object(entries)) if entries.is_empty() => *value = Value::Null,
                    _ => {}
                }
                true
            }
        }
    }
}

/// The zero value of a field.
pub fn zero(node: NodeRef<'_>) -> Value {
    match &node.get().shape {
        Shape::Object(object) => {
            let mut fields = Map::new();
            add_missing(&mut fields, node, object);
            Value::Object(fields)
        }
        Shape::String => Value::String(String::new()),
        Shape::Integer { .. } | Shape::Number | Shape::IntOrString => Value::from(0),
        Shape::Boolean => Value::Bool(false),
        Shape::Quantity => Value::from("0"),
        Shape::Duration => Value::from("0s"),
        _ => Value::Null,
    }
}

/// An empty managedFields list is kept: it resets field ownership, and the tracker removes it.
pub(super) fn starts_over(field: &Field, value: &Value) -> bool {
    &*field.name == "managedFields" && value.is_array()
}

fn add_missing(fields: &mut Map<String, Value>, node: NodeRef<'_>, object: &Object) {
    for field in object.always_printed() {
        if !fields.contains_key(&*field.name) {
            let value = if field.presence == Presence::Nullable { Value::Null } else { zero(node.at(field.node)) };
            fields.insert(field.name.to_string(), value);
        }
    }
}

/// Whether values of this node can need normalization.
fn has_inner_form(node: NodeRef<'_>) -> bool {
    matches!(node.get().shape, Shape::Object(_) | Shape::Map(_) | Shape::List(_) | Shape::SchemaOr { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn objects_take_the_form_in_which_they_are_printed() {
        for ((group, kind), mut object, expected) in [
            (
                ("", "Pod"),
                json!({"spec": {"containers": [{"name": "c", "env": [], "securityContext": {}}], "nodeSelector": {}}}),
                json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {}, "securityContext": {}}]},
                    "status": {}}),
            ),
            (
                ("apps", "Deployment"),
                json!({"metadata": {"creationTimestamp": null, "labels": {}}, "spec": {"replicas": 0, "paused": false}}),
                json!({"metadata": {}, "spec": {"replicas": 0, "selector": null, "strategy": {},
                    "template": {"metadata": {}, "spec": {"containers": null}}}, "status": {}}),
            ),
            (
                ("rbac.authorization.k8s.io", "Role"),
                json!({"metadata": {"name": "r"}, "rules": []}),
                json!({"metadata": {"name": "r"}, "rules": null}),
            ),
            (
                ("", "Event"),
                json!({"count": 0}),
                json!({"metadata": {}, "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
                    "eventTime": null, "reportingComponent": "", "reportingInstance": ""}),
            ),
        ] {
            let node = builtin().kind(group, "v1", kind).expect("kind");
            normalize(&mut object, node);
            assert_eq!(object, expected, "{kind}");
            let mut again = object.clone();
            normalize(&mut again, node);
            assert_eq!(again, object, "{kind} is stable");
        }
    }

    #[test]
    fn empty_lists_that_are_always_printed_stay_until_they_are_owned() {
        let node = builtin().kind("rbac.authorization.k8s.io", "v1", "Role").expect("kind");
        let mut role = json!({"metadata": {"name": "r", "labels": {}}, "rules": []});
        normalize_as_given(&mut role, node);
        assert_eq!(role, json!({"metadata": {"name": "r"}, "rules": []}));
        normalize(&mut role, node);
        assert_eq!(role, json!({"metadata": {"name": "r"}, "rules": null}));
    }
}
