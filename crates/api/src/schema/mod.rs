//! Schemas of kinds: fields, types, merge rules of lists and maps, and which fields are always printed.
//!
//! A [`Schema`] is an arena of [`Node`]s. The built-in kinds share one ([`builtin()`]); each version of a custom resource
//! has its own. Decoding, normalization, patches, ownership, protobuf and OpenAPI all use the same nodes.

mod builder;
mod builtin;
mod field;
mod node;
mod table;

pub use builder::SchemaBuilder;
pub use builtin::builtin;
pub use field::{Field, PatchStrategy, Presence};
pub use node::{Alternative, Inlined, List, ListKind, MapType, Node, Object, Shape};

use serde_json::Value;
use std::collections::HashMap;
use std::ops::Deref;

/// The place of a node in its schema's arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(u32);

/// An arena of nodes with an index of names and kinds.
#[derive(Debug, Default)]
pub struct Schema {
    nodes: Vec<Node>,
    types: Vec<TypeInfo>,
    by_name: HashMap<Box<str>, usize>,
    /// Sorted by group, version and kind.
    kinds: Vec<(GroupVersionKind, NodeId)>,
}

/// A named type: an OpenAPI definition, or one that only protobuf uses.
#[derive(Debug)]
pub struct TypeInfo {
    /// The full OpenAPI name, such as `io.k8s.api.core.v1.Pod`.
    pub name: Box<str>,
    /// The schema of the value.
    pub node: NodeId,
    /// The kinds that have this type.
    pub kinds: Vec<GroupVersionKind>,
    /// Not among the definitions that OpenAPI lists (query options, inlined parts, envelopes).
    pub hidden: bool,
    /// Whether the type has a protobuf form.
    pub has_protobuf: bool,
    /// The union extension of OpenAPI.
    pub unions: Option<Value>,
}

/// A group, version and kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupVersionKind {
    /// The API group; empty for the core group.
    pub group: Box<str>,
    /// The API version.
    pub version: Box<str>,
    /// The kind.
    pub kind: Box<str>,
}

/// A node with its schema.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'s> {
    schema: &'s Schema,
    node: &'s Node,
    id: NodeId,
}

impl Schema {
    /// The node with that id.
    pub fn node(&self, id: NodeId) -> NodeRef<'_> {
        NodeRef { schema: self, node: &self.nodes[id.0 as usize], id }
    }

    /// Finds a named type by its full OpenAPI name.
    pub fn type_named(&self, name: &str) -> Option<&TypeInfo> {
        self.by_name.get(name).map(|at| &self.types[*at])
    }

    /// The root node of the type with that full name.
    pub fn node_named(&self, name: &str) -> Option<NodeRef<'_>> {
        self.type_named(name).map(|found| self.node(found.node))
    }

    /// The root node of a kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<NodeRef<'_>> {
        self.kinds
            .binary_search_by(|(key, _)| (&*key.group, &*key.version, &*key.kind).cmp(&(group, version, kind)))
            .ok()
            .map(|at| self.node(self.kinds[at].1))
    }

    /// All named types, in order of their names.
    pub fn types(&self) -> impl Iterator<Item = &TypeInfo> {
        self.types.iter()
    }

    /// All kinds with their root nodes.
    pub fn kinds(&self) -> impl Iterator<Item = (&GroupVersionKind, NodeId)> {
        self.kinds.iter().map(|(kind, node)| (kind, *node))
    }
}

impl<'s> NodeRef<'s> {
    /// The id within the schema.
    pub fn id(self) -> NodeId {
        self.id
    }

    /// The schema of the node.
    pub fn schema(self) -> &'s Schema {
        self.schema
    }

    /// The node itself, borrowed for as long as the schema lives.
    pub fn get(self) -> &'s Node {
        self.node
    }

    /// Another node of the same schema.
    pub fn at(self, id: NodeId) -> NodeRef<'s> {
        self.schema.node(id)
    }

    /// The object, if the node is one.
    pub fn object(self) -> Option<&'s Object> {
        match &self.node.shape {
            Shape::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The list, if the node is one.
    pub fn list(self) -> Option<&'s List> {
        match &self.node.shape {
            Shape::List(list) => Some(list),
            _ => None,
        }
    }

    /// A field of an object by its JSON name, with the node of its value.
    pub fn field(self, name: &str) -> Option<(&'s Field, NodeRef<'s>)> {
        let field = self.object()?.field(name)?;
        Some((field, self.at(field.node)))
    }

    /// The schema of the elements of a list or map.
    pub fn element(self) -> Option<NodeRef<'s>> {
        match &self.node.shape {
            Shape::Map(element) => Some(self.at(*element)),
            Shape::List(list) => Some(self.at(list.element)),
            _ => None,
        }
    }

    /// The schema of a field of this object or entry of this map.
    pub fn child(self, name: &str) -> Option<NodeRef<'s>> {
        match &self.node.shape {
            Shape::Object(object) => object.field(name).map(|field| self.at(field.node)),
            Shape::Map(element) => Some(self.at(*element)),
            _ => None,
        }
    }
}

impl Deref for NodeRef<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.node
    }
}
