//! Types for field ownership: every value is a scalar, a list or a map, and some are atomic (owned as a whole).

use super::element::PathElement;
use crate::schema::{List, ListKind, NodeRef, Shape};
use serde_json::{Map, Value};

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type<'s> {
    Node(NodeRef<'s>),
    /// A value without a schema: maps are owned field by field, lists as a whole.
    Deduced,
}

/// The structure of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atom<'s> {
    Scalar(Scalar),
    List(ListAtom<'s>),
    Map(MapAtom<'s>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    String,
    Boolean,
    Untyped,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ListAtom<'s> {
    Atomic(Option<NodeRef<'s>>),
    /// Elements are identified by their value or their keys.
    Associative {
        list: &'s List,
        element: NodeRef<'s>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MapAtom<'s> {
    pub atomic: bool,
    node: Option<NodeRef<'s>>,
}

impl<'s> Type<'s> {
    /// The structure of a value. If a type allows several, the value decides; a value that has none of them, or is
    /// absent, counts as a map if that is allowed.
    pub fn atom(self, value: Option<&Value>) -> Atom<'s> {
        let Type::Node(node) = self else { return by_value(value, false) };
        match &node.get().shape {
            Shape::Object(_) | Shape::Map(_) => Atom::Map(MapAtom { atomic: node.is_atomic(), node: Some(node) }),
            Shape::List(list) => Atom::List(match list.kind {
                ListKind::Atomic => ListAtom::Atomic(Some(node.at(list.element))),
                _ => ListAtom::Associative { list, element: node.at(list.element) },
            }),
            Shape::String | Shape::Bytes | Shape::Duration => Atom::Scalar(Scalar::String),
            Shape::Integer { .. } | Shape::Number => Atom::Scalar(Scalar::Numeric),
            Shape::Boolean => Atom::Scalar(Scalar::Boolean),
            Shape::Time | Shape::MicroTime | Shape::Quantity | Shape::IntOrString => Atom::Scalar(Scalar::Untyped),
            Shape::Raw => by_value(value, true),
            Shape::Fields => Atom::Map(MapAtom { atomic: false, node: None }),
            Shape::Any | Shape::SchemaOr { .. } => by_value(value, false),
        }
    }
}

fn by_value<'s>(value: Option<&Value>, atomic: bool) -> Atom<'s> {
    match value {
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Atom::Scalar(Scalar::Untyped),
        Some(Value::Array(_)) => Atom::List(ListAtom::Atomic(None)),
        _ => Atom::Map(MapAtom { atomic, node: None }),
    }
}

impl Atom<'_> {
    /// Whether both are scalars, lists or maps.
    pub fn same_kind(&self, other: &Atom<'_>) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl<'s> MapAtom<'s> {
    /// The type of a field, or none if the schema does not allow it.
    pub fn child(&self, name: &str) -> Option<Type<'s>> {
        let Some(node) = self.node else { return Some(Type::Deduced) };
        match &node.get().shape {
            Shape::Object(object) => match object.field(name) {
                Some(field) => Some(Type::Node(node.at(field.node))),
                None if node.preserve_unknown || object.fields().is_empty() => Some(Type::Deduced),
                None => None,
            },
            Shape::Map(element) => Some(Type::Node(node.at(*element))),
            _ => Some(Type::Deduced),
        }
    }

    /// Whether the schema names the field, as opposed to allowing any.
    pub fn declares(&self, name: &str) -> bool {
        self.node.and_then(NodeRef::object).is_some_and(|object| object.field(name).is_some())
    }
}

/// The path element that identifies an element of a list.
pub(super) fn element_of(list: &List, element: NodeRef<'_>, item: &Value) -> Result<PathElement, String> {
    let ListKind::Map(keys) = &list.kind else { return set_element(item) };
    let fields = match item {
        Value::Object(fields) => fields,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let mut key: Vec<(Box<str>, Value)> = Vec::with_capacity(keys.len());
    for name in keys {
        let given = fields.get(&**name).cloned();
        let value = given.or_else(|| element.field(name).and_then(|(field, _)| field.default.clone()));
        key.extend(value.map(|value| (name.clone(), value)));
    }
    if key.is_empty() {
        let keys = keys.iter().map(|key| crate::decode::quoted(key)).collect::<Vec<_>>().join(" ");
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{keys}] \
             (and doesn't have default values for any key fields)"
        ));
    }
    if key.len() > 1 {
        key.sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(PathElement::Key(key))
}

fn set_element(item: &Value) -> Result<PathElement, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
        scalar => Ok(PathElement::Value(scalar.clone())),
    }
}

/// The fields of a map, or none for other values.
pub(super) fn as_map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

pub(super) fn as_list(value: Option<&Value>) -> Option<&Vec<Value>> {
    value.and_then(Value::as_array)
}
