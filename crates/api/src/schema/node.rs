//! The schema of one value: its type, and how it merges.

use super::{Field, NodeId, Presence};

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

impl Node {
    /// Gives back what its lists have allocated beyond their elements.
    pub(super) fn shrink(&mut self) {
        if let Shape::Object(Object { fields, always, inlined }) = &mut self.shape {
            fields.shrink_to_fit();
            always.shrink_to_fit();
            inlined.shrink_to_fit();
        }
    }

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
    pub(super) fields: Vec<Field>,
    /// Which of them are printed always.
    always: Vec<u16>,
    /// Structs whose fields are this object's in JSON but nested messages in protobuf.
    pub inlined: Vec<Inlined>,
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
