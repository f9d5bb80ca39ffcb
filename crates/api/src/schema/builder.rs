//! Construction of schemas: nodes are added to an arena, and some get names and kinds.

use super::{GroupVersionKind, Node, NodeId, NodeRef, Object, Schema, Shape, TypeInfo};
use std::collections::HashMap;

/// Collects nodes and names until [`SchemaBuilder::finish`].
#[derive(Debug, Default)]
pub struct SchemaBuilder {
    nodes: Vec<Node>,
    types: Vec<TypeInfo>,
}

impl SchemaBuilder {
    /// Adds a node.
    pub fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }

    /// The node with that id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node with that id.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// Adds a named type.
    pub fn name_type(&mut self, info: TypeInfo) {
        self.types.push(info);
    }

    /// Adds a node under a name of its own, for schemas that are not Kubernetes types.
    pub fn name_root(&mut self, node: Node, name: &str) -> NodeId {
        let id = self.push(node);
        self.types.push(TypeInfo {
            name: name.into(),
            node: id,
            kinds: Vec::new(),
            hidden: true,
            has_protobuf: false,
            unions: None,
        });
        id
    }

    /// Copies a node of another schema with all nodes below it.
    pub fn import(&mut self, from: NodeRef<'_>) -> NodeId {
        self.import_known(from, &mut HashMap::new())
    }

    fn import_known(&mut self, from: NodeRef<'_>, known: &mut HashMap<NodeId, NodeId>) -> NodeId {
        if let Some(id) = known.get(&from.id()) {
            return *id;
        }
        let id = self.push(from.get().clone());
        known.insert(from.id(), id);
        let mut shape = from.shape.clone();
        match &mut shape {
            Shape::Object(Object { fields, inlined, .. }) => {
                for field in fields {
                    field.node = self.import_known(from.at(field.node), known);
                }
                for part in inlined {
                    part.node = self.import_known(from.at(part.node), known);
                }
            }
            Shape::Map(element) => *element = self.import_known(from.at(*element), known),
            Shape::List(list) => list.element = self.import_known(from.at(list.element), known),
            Shape::SchemaOr { schema, .. } => *schema = self.import_known(from.at(*schema), known),
            _ => {}
        }
        self.node_mut(id).shape = shape;
        id
    }

    /// Builds the schema.
    pub fn finish(mut self) -> Schema {
        self.types.sort_by(|a, b| a.name.cmp(&b.name));
        let by_name = self.types.iter().enumerate().map(|(at, info)| (info.name.clone(), at)).collect();
        let mut kinds: Vec<(GroupVersionKind, NodeId)> =
            self.types.iter().flat_map(|info| info.kinds.iter().map(|kind| (kind.clone(), info.node))).collect();
        kinds.sort();
        // It lives as long as the process.
        self.nodes.iter_mut().for_each(Node::shrink);
        self.nodes.shrink_to_fit();
        self.types.shrink_to_fit();
        Schema { nodes: self.nodes, types: self.types, by_name, kinds }
    }
}
