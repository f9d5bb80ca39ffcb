//! Schemas of kinds: fields, types, merge rules of lists and maps, and which fields are always printed.
//!
//! A [`Schema`] is an arena of [`Node`]s. The built-in kinds share one ([`builtin`]); each version of a custom resource
//! has its own. Decoding, normalization, patches, ownership, protobuf and OpenAPI all use the same nodes.

mod builder;
mod builtin;
mod table;

pub use builder::SchemaBuilder;
pub use builtin::builtin;

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

/// The schema of one value.
#[derive(Clone, Debug)]
pub struct Node {
    /// The type of the value.
    pub shape: Shape,
    /// The OpenAPI definition this node is, if it is one.
    pub name: Option<Box<str>>,
    /// The type as Kubernetes' decoding errors name it: `v1.Container`, `[]string`.
    pub go_type: Box<str>,
    /// How an object or map merges; `None` means granular, unless the field overrides it.
    pub map_type: Option<MapType>,
    /// Null is a value of its own and not the same as absence (custom resources).
    pub nullable: bool,
    /// Unknown fields are kept.
    pub preserve_unknown: bool,
    /// The object is a whole Kubernetes object with its own apiVersion, kind and metadata.
    pub embedded: bool,
}

/// The type of a value.
#[derive(Clone, Debug)]
pub enum Shape {
    Object(Object),
    Map(NodeId),
    List(List),
    String,
    Integer {
        bits: u8,
    },
    Number,
    Boolean,
    /// Base64 in JSON, raw in protobuf.
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// A whole object of any kind, kept verbatim.
    Raw,
    /// A set of field paths, kept verbatim.
    Fields,
    /// Any JSON value.
    Any,
    /// A JSON schema, or one other form.
    SchemaOr {
        schema: NodeId,
        other: Alternative,
    },
}

/// The alternative to a JSON schema inside a JSON schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alternative {
    Boolean,
    Schemas,
    Strings,
}

/// An object with known fields.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// Sorted by name.
    fields: Vec<Field>,
    /// Which of them are printed always.
    always: Vec<u16>,
    /// Structs whose fields are this object's in JSON but nested messages in protobuf.
    pub inlined: Vec<Inlined>,
}

/// A struct whose fields are part of another.
#[derive(Clone, Debug)]
pub struct Inlined {
    /// The schema of the value.
    pub node: NodeId,
    /// The number of the nested message; zero if protobuf omits it.
    pub number: u32,
    /// The place of its first field.
    pub place: u32,
}

/// A list.
#[derive(Clone, Debug)]
pub struct List {
    /// The schema of the elements.
    pub element: NodeId,
    /// How elements are identified and merged.
    pub kind: ListKind,
    /// Whether OpenAPI states the kind; a list that says nothing is atomic.
    pub declared: bool,
}

/// How the elements of a list are identified and merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListKind {
    Atomic,
    Set,
    Map(Vec<Box<str>>),
}

/// Whether a map is owned field by field or as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapType {
    Atomic,
    Granular,
}

/// A field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in JSON.
    pub name: Box<str>,
    /// The schema of the value.
    pub node: NodeId,
    /// Whether OpenAPI lists the field as required.
    pub required: bool,
    /// When the field is written.
    pub presence: Presence,
    /// How a strategic merge patch treats the field.
    pub patch: PatchStrategy,
    /// The key by which a strategic merge patch merges a list.
    pub merge_key: Option<Box<str>>,
    /// Protobuf's field number; zero when it has none.
    pub number: u32,
    /// Protobuf puts the list (or each list in the map) in a message of its own with one repeated field.
    pub wrapped: bool,
    /// Came with the inlined struct of this index in [`Object::inlined`].
    pub inlined: Option<u16>,
    /// The position in the type's declaration, by which fields are printed in messages.
    pub place: u32,
    /// Overrides the map type of the field's type.
    pub map_type: Option<MapType>,
    /// The allowed values of an enumeration.
    pub values: Vec<Box<str>>,
    /// The default value.
    pub default: Option<Value>,
    /// The default OpenAPI states for each element of the list or map.
    pub element_default: Option<Value>,
}

/// When a field is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Left out when it has its zero value (`""`, 0, false, empty list or map).
    NonZero,
    /// Left out when absent; every value is kept, zero too.
    Optional,
    /// Always printed, with its zero value when absent.
    Always,
    /// Always printed, as null when absent; every value is kept.
    Nullable,
    /// Absent, null or empty: kept just as it is (custom resources).
    AsGiven,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PatchStrategy {
    /// Merge lists and maps.
    pub merge: bool,
    /// Replace the value.
    pub replace: bool,
    /// Remove the keys that the patch does not list.
    pub retain_keys: bool,
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

impl Node {
    /// A node of that shape.
    pub fn new(shape: Shape, go_type: &str) -> Self {
        Node {
            shape,
            name: None,
            go_type: go_type.into(),
            map_type: None,
            nullable: false,
            preserve_unknown: false,
            embedded: false,
        }
    }

    /// Owned and replaced as a whole.
    pub fn is_atomic(&self) -> bool {
        match &self.shape {
            Shape::Object(_) | Shape::Map(_) => self.map_type == Some(MapType::Atomic),
            Shape::List(list) => list.kind == ListKind::Atomic,
            _ => true,
        }
    }

    /// The type's name without its package, as decoding errors name the struct around a field.
    pub fn struct_name(&self) -> &str {
        self.go_type.rsplit('.').next().unwrap_or(&self.go_type)
    }
}

impl Object {
    /// The fields, sorted by name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.field_index(name).map(|at| &self.fields[at])
    }

    pub(crate) fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok()
    }

    /// The fields that are printed even when absent.
    pub fn always_printed(&self) -> impl ExactSizeIterator<Item = &Field> {
        self.always.iter().map(|at| &self.fields[*at as usize])
    }

    pub(crate) fn from_fields(mut fields: Vec<Field>, inlined: Vec<Inlined>) -> Self {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let printed = |field: &Field| matches!(field.presence, Presence::Always | Presence::Nullable);
        let always = (0..fields.len()).filter(|at| printed(&fields[*at])).map(|at| at as u16).collect();
        Object { fields, always, inlined }
    }
}

impl Field {
    /// A field without marks.
    pub fn new(name: &str, node: NodeId) -> Self {
        Field {
            name: name.into(),
            node,
            required: false,
            presence: Presence::Optional,
            patch: PatchStrategy::default(),
            merge_key: None,
            number: 0,
            wrapped: false,
            inlined: None,
            map_type: None,
            values: Vec::new(),
            default: None,
            element_default: None,
            place: 0,
        }
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
