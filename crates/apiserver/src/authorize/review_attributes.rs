//! A request as a SubjectAccessReview describes it, for webhooks and their match conditions.

use knarr_api::selector::{FieldSelector, LabelSelector, Operator};
use serde_json::{Map, Value, json};

use crate::request::{Target, User};

/// The spec of a SubjectAccessReview.
pub fn spec(user: &User, target: &Target) -> Value {
    let mut spec = Map::new();
    if target.is_resource() {
        spec.insert("resourceAttributes".to_owned(), resource_attributes(target));
    } else {
        let attributes = texts([("path", &target.path), ("verb", &target.verb)]);
        spec.insert("nonResourceAttributes".to_owned(), Value::Object(attributes));
    }
    for (field, value) in [("user", &user.name), ("uid", &user.uid)] {
        if !value.is_empty() {
            spec.insert(field.to_owned(), value.as_str().into());
        }
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(spec)
}

fn texts<'a>(fields: impl IntoIterator<Item = (&'a str, &'a String)>) -> Map<String, Value> {
    let set = fields.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(field, value)| (field.to_owned(), value.as_str().into())).collect()
}

fn resource_attributes(target: &Target) -> Value {
    let mut attributes = texts([
        ("namespace", &target.namespace),
        ("verb", &target.verb),
        ("group", &target.group),
        ("version", &target.version),
        ("resource", &target.resource),
        ("subresource", &target.subresource),
        ("name", &target.name),
    ]);
    for (field, requirements) in
        [("fieldSelector", field_requirements(target)), ("labelSelector", label_requirements(target))]
    {
        if !requirements.is_empty() {
            attributes.insert(field.to_owned(), json!({"requirements": requirements}));
        }
    }
    Value::Object(attributes)
}

/// A selector that cannot be parsed narrows nothing: the request is described without it.
fn field_requirements(target: &Target) -> Vec<Value> {
    let Ok(selector) = FieldSelector::parse(&target.field_selector) else { return Vec::new() };
    let describe = |requirement: &knarr_api::selector::FieldRequirement| {
        let operator = if requirement.negated { "NotIn" } else { "In" };
        json!({"key": requirement.field, "operator": operator, "values": [requirement.value]})
    };
    selector.terms.iter().map(describe).collect()
}

fn label_requirements(target: &Target) -> Vec<Value> {
    let Ok(selector) = LabelSelector::parse(&target.label_selector) else { return Vec::new() };
    let describe = |requirement: &knarr_api::selector::Requirement| {
        let operator = match requirement.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::GreaterThan | Operator::LessThan => return None,
        };
        let mut described = json!({"key": requirement.key, "operator": operator});
        if !requirement.values.is_empty() {
            described["values"] = json!(requirement.values);
        }
        Some(described)
    };
    selector.requirements().iter().filter_map(describe).collect()
}

/// The spec as match conditions see it: attributes are there even if they are empty.
pub fn condition_input(spec: &Value) -> Value {
    let mut input = spec.clone();
    let fields: [(&str, &[&str]); 2] = [
        ("resourceAttributes", &["namespace", "verb", "group", "version", "resource", "subresource", "name"]),
        ("nonResourceAttributes", &["path", "verb"]),
    ];
    for (attributes, names) in fields {
        if let Some(attributes) = input.get_mut(attributes).and_then(Value::as_object_mut) {
            for name in names {
                attributes.entry(*name).or_insert_with(|| "".into());
            }
        }
    }
    if let Some(all) = input.as_object_mut() {
        for name in ["user", "uid"] {
            all.entry(name).or_insert_with(|| "".into());
        }
        all.entry("groups").or_insert_with(|| json!([]));
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_described() {
        let user = User { name: "ann".into(), groups: vec!["g".into()], ..User::default() };
        let target = Target {
            verb: "list".into(),
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "n".into(),
            field_selector: "spec.nodeName=x,status.phase!=Failed".into(),
            label_selector: "a in (b,c),!d".into(),
            ..Target::default()
        };
        let described = spec(&user, &target);
        assert_eq!(
            described,
            json!({"user": "ann", "groups": ["g"], "resourceAttributes": {
                "verb": "list", "version": "v1", "resource": "pods", "namespace": "n",
                "fieldSelector": {"requirements": [
                    {"key": "spec.nodeName", "operator": "In", "values": ["x"]},
                    {"key": "status.phase", "operator": "NotIn", "values": ["Failed"]},
                ]},
                "labelSelector": {"requirements": [
                    {"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "DoesNotExist"},
                ]},
            }})
        );
        assert_eq!(condition_input(&described)["resourceAttributes"]["group"], "");
        let path = Target { verb: "get".into(), path: "/metrics".into(), ..Target::default() };
        assert_eq!(spec(&user, &path)["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
    }
}
