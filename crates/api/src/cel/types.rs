//! The types of expressions.

use crate::json_schema::{AdditionalProperties, JsonSchemaProps};
use crate::schema::{NodeRef, Shape};
use std::fmt;
use std::sync::Arc;

/// The type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Any type; checked at evaluation.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Object(Arc<ObjectType>),
    Optional(Arc<Type>),
    Type,
    /// A type of one of Kubernetes' libraries, by name.
    Opaque(&'static str),
    /// An object that `Name{...}` builds, by name.
    Message(Arc<str>),
    /// A type parameter of a signature.
    Parameter(char),
}

/// An object with known fields.
#[derive(Debug, PartialEq)]
pub struct ObjectType {
    /// The name of the type.
    pub name: String,
    /// By the name in expressions.
    pub fields: Vec<(String, Type)>,
}

impl ObjectType {
    /// The type of the field of that name. A word that is reserved elsewhere may stand after a dot as it is: `namespace` finds
    /// what is also written `__namespace__`.
    pub fn field(&self, name: &str) -> Option<&Type> {
        let of = |name: &str| self.fields.iter().find(|(other, _)| other == name).map(|(_, kind)| kind);
        of(name).or_else(|| of(super::escape(name).filter(|_| super::RESERVED_WORDS.contains(&name))?.as_ref()))
    }
}

impl Type {
    /// A list of elements of that type.
    pub fn list(element: Type) -> Self {
        Type::List(Arc::new(element))
    }

    /// Whether lists, maps and optionals nest no deeper than this.
    pub fn nests_at_most(&self, levels: usize) -> bool {
        match self {
            Type::List(inner) | Type::Optional(inner) => levels > 0 && inner.nests_at_most(levels - 1),
            Type::Map(key, value) => levels > 0 && key.nests_at_most(levels - 1) && value.nests_at_most(levels - 1),
            _ => true,
        }
    }

    /// A map with keys and values of those types.
    pub fn map(key: Type, value: Type) -> Self {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    /// The type of the values of a schema, or none if rules cannot access them.
    pub fn of_props(props: &JsonSchemaProps, is_resource: bool) -> Option<Type> {
        let is_resource = is_resource || props.embedded;
        if props.int_or_string {
            return Some(Type::Dyn);
        }
        match props.kind.as_str() {
            "array" => props.items.as_deref().and_then(|items| Type::of_props(items, false)).map(Type::list),
            "object" => match (&props.additional, props.properties.is_empty()) {
                (Some(AdditionalProperties::Schema(schema)), true) if !is_resource => {
                    Type::of_props(schema, false).map(|value| Type::map(Type::String, value))
                }
                _ => Some(object_type(props, is_resource)),
            },
            "string" => Some(match props.format.as_str() {
                "byte" => Type::Bytes,
                "date" | "date-time" => Type::Timestamp,
                "duration" => Type::Duration,
                _ => Type::String,
            }),
            "boolean" => Some(Type::Bool),
            "number" => Some(Type::Double),
            "integer" => Some(Type::Int),
            _ => None,
        }
    }
}

/// The maximum depth, as some schemas contain themselves.
const DEEPEST: usize = 16;

impl Type {
    /// The type of the values of a kind's schema.
    pub fn of_node(node: NodeRef<'_>) -> Type {
        of_node(node, 0)
    }
}

fn of_node(node: NodeRef<'_>, depth: usize) -> Type {
    if depth > DEEPEST {
        return Type::Dyn;
    }
    match &node.get().shape {
        Shape::Object(object) if object.fields().is_empty() || node.get().preserve_unknown => Type::Dyn,
        Shape::Object(object) => {
            let fields = object.fields().iter().filter_map(|field| {
                let written = super::escape(&field.name)?;
                Some((written.into_owned(), of_node(node.at(field.node), depth + 1)))
            });
            let name = node.get().struct_name().to_owned();
            Type::Object(Arc::new(ObjectType { name, fields: fields.collect() }))
        }
        Shape::Map(element) => Type::map(Type::String, of_node(node.at(*element), depth + 1)),
        Shape::List(list) => Type::list(of_node(node.at(list.element), depth + 1)),
        Shape::String | Shape::Duration => Type::String,
        Shape::Integer { .. } => Type::Int,
        Shape::Number => Type::Double,
        Shape::Boolean => Type::Bool,
        Shape::Bytes => Type::Bytes,
        Shape::Time | Shape::MicroTime => Type::Timestamp,
        _ => Type::Dyn,
    }
}

fn object_type(props: &JsonSchemaProps, is_resource: bool) -> Type {
    let mut fields = Vec::with_capacity(props.properties.len());
    for (name, property) in &props.properties {
        if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        if let (Some(written), Some(kind)) = (super::escape(name), Type::of_props(property, false)) {
            fields.push((written.into_owned(), kind));
        }
    }
    if is_resource {
        let metadata = ObjectType {
            name: "ObjectMeta".to_owned(),
            fields: vec![("name".to_owned(), Type::String), ("generateName".to_owned(), Type::String)],
        };
        fields.push(("apiVersion".to_owned(), Type::String));
        fields.push(("kind".to_owned(), Type::String));
        fields.push(("metadata".to_owned(), Type::Object(Arc::new(metadata))));
    }
    Type::Object(Arc::new(ObjectType { name: "object".to_owned(), fields }))
}

/// The name in messages.
impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => out.write_str("dyn"),
            Type::Null => out.write_str("null"),
            Type::Bool => out.write_str("bool"),
            Type::Int => out.write_str("int"),
            Type::Uint => out.write_str("uint"),
            Type::Double => out.write_str("double"),
            Type::String => out.write_str("string"),
            Type::Bytes => out.write_str("bytes"),
            Type::Timestamp => out.write_str("timestamp"),
            Type::Duration => out.write_str("duration"),
            Type::List(element) => write!(out, "list({element})"),
            Type::Map(key, value) => write!(out, "map({key}, {value})"),
            Type::Object(object) => out.write_str(&object.name),
            Type::Optional(inner) => write!(out, "optional_type({inner})"),
            Type::Type => out.write_str("type"),
            Type::Opaque(name) => out.write_str(name),
            Type::Message(name) => out.write_str(name),
            Type::Parameter(name) => write!(out, "{name}"),
        }
    }
}
