//! On which nodes allocated devices can be used.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::allocator::AllocationError;
use super::search::Candidate;

/// The nodes that have access to all devices; none is all nodes.
pub fn usable_on<'a>(
    devices: impl Iterator<Item = &'a Candidate<'a>>,
    node: &str,
) -> Result<Option<NodeSelector>, AllocationError> {
    let mut term = NodeSelectorTerm::default();
    for candidate in devices {
        let (device, spec) = (candidate.api(), &candidate.slice.object.spec);
        let (name, selector) = if candidate.slice.selects_per_device() {
            (&device.node_name, &device.node_selector)
        } else {
            (&spec.node_name, &spec.node_selector)
        };
        if name.is_some() || device.binds_to_node == Some(true) {
            return Ok(Some(only(node)));
        }
        match selector.as_ref().map(|selector| selector.node_selector_terms.as_slice()).unwrap_or_default() {
            [] => {}
            [one] => {
                add(&one.match_fields, &mut term.match_fields);
                add(&one.match_expressions, &mut term.match_expressions);
            }
            many => {
                let text = format!("unsupported ResourceSlice.NodeSelector with {} terms", many.len());
                return Err(AllocationError::Fatal(text));
            }
        }
    }
    let restricts = term.match_fields.is_some() || term.match_expressions.is_some();
    Ok(restricts.then(|| NodeSelector { node_selector_terms: vec![term] }))
}

fn only(node: &str) -> NodeSelector {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![field]), match_expressions: None };
    NodeSelector { node_selector_terms: vec![term] }
}

fn add(from: &Option<Vec<NodeSelectorRequirement>>, to: &mut Option<Vec<NodeSelectorRequirement>>) {
    fn values(requirement: &NodeSelectorRequirement) -> BTreeSet<&String> {
        requirement.values.iter().flatten().collect()
    }
    for new in from.iter().flatten() {
        let known = to.get_or_insert_default();
        let is_known = |own: &NodeSelectorRequirement| {
            own.key == new.key && own.operator == new.operator && values(own) == values(new)
        };
        if !known.iter().any(is_known) {
            known.push(new.clone());
        }
    }
}
