//! Whether a node matches the terms of a node selector.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm};

/// The name of a node.
pub fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// A term without requirements matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|requirement| requirement_matches(requirement, labels.and_then(|labels| labels.get(&requirement.key))))
        && fields.iter().all(|requirement| {
            let value = (requirement.key == "metadata.name").then(|| name(node).to_owned());
            requirement_matches(requirement, value.as_ref())
        })
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let listed = |value: &String| requirement.values.iter().flatten().any(|own| own == value);
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(requirement.values.iter().flatten().next());
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((number(value), bound()), (Some(value), Some(bound)) if value > bound),
        "Lt" => matches!((number(value), bound()), (Some(value), Some(bound)) if value < bound),
        _ => false,
    }
}
