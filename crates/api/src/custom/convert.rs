//! Conversion of a JSON schema into the [`Schema`] that built-in kinds have.

use crate::json_schema::{AdditionalProperties, JsonSchemaProps};
use crate::schema::{
    Field, List, ListKind, MapType, Node, NodeId, Object, Presence, Schema, SchemaBuilder, Shape, builtin,
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Converts a schema whose root is a whole resource.
pub(super) fn convert(props: &JsonSchemaProps) -> (Schema, NodeId) {
    let mut converter = Converter { builder: SchemaBuilder::default(), object_meta: None };
    let root = converter.node(props, true);
    (converter.builder.finish(), root)
}

struct Converter {
    builder: SchemaBuilder,
    object_meta: Option<NodeId>,
}

impl Converter {
    fn node(&mut self, props: &JsonSchemaProps, is_resource: bool) -> NodeId {
        let is_resource = is_resource || props.embedded;
        let shape = self.shape(props, is_resource);
        let node = Node {
            map_type: match props.map_type.as_deref() {
                Some("atomic") => Some(MapType::Atomic),
                Some("granular") => Some(MapType::Granular),
                _ => None,
            },
            nullable: props.nullable,
            preserve_unknown: props.preserve_unknown || props.additional == Some(AdditionalProperties::Allowed(true)),
            embedded: is_resource,
            ..Node::new(shape, &props.kind)
        };
        self.builder.push(node)
    }

    fn shape(&mut self, props: &JsonSchemaProps, is_resource: bool) -> Shape {
        if props.int_or_string {
            return Shape::IntOrString;
        }
        match props.kind.as_str() {
            "object" => match (&props.additional, is_resource) {
                (Some(AdditionalProperties::Schema(schema)), false) if props.properties.is_empty() => {
                    Shape::Map(self.node(schema, false))
                }
                _ => self.object(props, is_resource),
            },
            "array" => {
                let element = match &props.items {
                    Some(items) => self.node(items, false),
                    None => self.builder.push(Node::new(Shape::Any, "")),
                };
                let kind = match props.list_type.as_deref() {
                    Some("set") => ListKind::Set,
                    Some("map") => ListKind::Map(props.list_map_keys.iter().map(|key| key.as_str().into()).collect()),
                    _ => ListKind::Atomic,
                };
                Shape::List(List { element, kind, declared: props.list_type.is_some() })
            }
            "string" => Shape::String,
            "integer" => Shape::Integer { bits: 64 },
            "number" => Shape::Number,
            "boolean" => Shape::Boolean,
            _ if is_resource => self.object(props, true),
            _ => Shape::Any,
        }
    }

    fn object(&mut self, props: &JsonSchemaProps, is_resource: bool) -> Shape {
        let mut fields = Vec::with_capacity(props.properties.len() + 3);
        for (name, property) in &props.properties {
            if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            let node = self.node(property, false);
            let required = props.required.contains(name);
            let default = property.default.clone();
            fields.push(Field { required, default, presence: Presence::AsGiven, ..Field::new(name, node) });
        }
        if is_resource {
            for name in ["apiVersion", "kind"] {
                let node = self.builder.push(Node::new(Shape::String, "string"));
                fields.push(Field { presence: Presence::AsGiven, ..Field::new(name, node) });
            }
            if let Some(node) = self.object_meta() {
                fields.push(Field { presence: Presence::AsGiven, ..Field::new("metadata", node) });
            }
        }
        Shape::Object(Object::from_fields(fields, Vec::new()))
    }

    fn object_meta(&mut self) -> Option<NodeId> {
        if self.object_meta.is_none() {
            self.object_meta = builtin().node_named(OBJECT_META).map(|node| self.builder.import(node));
        }
        self.object_meta
    }
}
