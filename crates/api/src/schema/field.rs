//! A field of an object: when it is printed, how patches treat it, and its place in protobuf and OpenAPI.

use serde_json::Value;

use super::{MapType, NodeId};

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
    /// Came with the inlined struct of this index in [`super::Object::inlined`].
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
