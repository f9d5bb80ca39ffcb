//! The plan of each message: its fields in the order of their numbers.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::catalogue::GroupVersionKind;
use crate::schema::{self, Alternative, Field, NodeId, NodeRef, Presence, Schema, Shape};

/// The plans of all built-in messages.
pub(super) struct Plans {
    messages: Vec<Message>,
    by_name: HashMap<&'static str, MessageId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageId(u32);

#[derive(Debug, Default)]
pub(super) struct Message {
    /// Sorted by number.
    pub fields: Vec<FieldPlan>,
}

#[derive(Debug)]
pub(super) struct FieldPlan {
    pub number: u32,
    /// The name in JSON; empty for inlined messages.
    pub name: &'static str,
    pub presence: Presence,
    pub form: Form,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    One(Type),
    Many(Type),
    /// Entries with the key as field 1 and the value as field 2.
    Map(Type),
    Inlined(MessageId),
}

/// The type of one value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    String,
    Int32,
    Int64,
    Double,
    Bool,
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// A message whose field 1 is JSON text.
    Json,
    /// A message with one repeated string.
    Strings,
    SchemaOr(Alternative, MessageId),
    Message(MessageId),
}

static BUILT_IN: LazyLock<Plans> = LazyLock::new(|| Plans::of(schema::builtin()));

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
/// Kinds that every group version has.
const META_KINDS: [&str; 8] = [
    "DeleteOptions",
    "CreateOptions",
    "UpdateOptions",
    "PatchOptions",
    "GetOptions",
    "ListOptions",
    "PartialObjectMetadata",
    "PartialObjectMetadataList",
];

pub(super) fn message_of(kind: &GroupVersionKind) -> Option<(&'static Plans, MessageId)> {
    let plans = &*BUILT_IN;
    let version = match kind.version.as_str() {
        "" => "v1",
        // The same messages as in version 2.
        "v2beta1" if kind.group == "apidiscovery.k8s.io" => "v2",
        version => version,
    };
    let name = match schema::builtin().kind(&kind.group, version, &kind.kind) {
        Some(node) => node.get().name.as_deref()?,
        None => {
            let kind = META_KINDS.iter().find(|candidate| **candidate == kind.kind)?;
            return plans.by_name.get(format!("{META}{kind}").as_str()).map(|id| (plans, *id));
        }
    };
    plans.by_name.get(name).map(|id| (plans, *id))
}

impl Plans {
    /// The plan of a message.
    pub fn message(&self, id: MessageId) -> &Message {
        &self.messages[id.0 as usize]
    }

    fn of(schema: &'static Schema) -> Plans {
        let mut builder =
            Builder { plans: Plans { messages: Vec::new(), by_name: HashMap::new() }, known: HashMap::new() };
        for info in schema.types().filter(|info| info.has_protobuf) {
            let node = schema.node(info.node);
            if matches!(node.get().shape, Shape::Object(_)) {
                let id = builder.message(node);
                builder.plans.by_name.insert(&info.name, id);
            }
        }
        builder.plans
    }
}

struct Builder {
    plans: Plans,
    known: HashMap<NodeId, MessageId>,
}

impl Builder {
    fn message(&mut self, node: NodeRef<'static>) -> MessageId {
        if let Some(id) = self.known.get(&node.id()) {
            return *id;
        }
        let id = MessageId(self.plans.messages.len() as u32);
        self.plans.messages.push(Message::default());
        // Registered before its fields, because messages can contain themselves.
        self.known.insert(node.id(), id);
        let mut fields = Vec::new();
        if let Some(object) = node.object() {
            let own = object.fields().iter().filter(|field| field.inlined.is_none() && field.number > 0);
            fields.extend(own.filter_map(|field| self.field(node, field)));
            for part in object.inlined.iter().filter(|part| part.number > 0) {
                let form = Form::Inlined(self.message(node.at(part.node)));
                fields.push(FieldPlan { number: part.number, name: "", presence: Presence::Always, form });
            }
        }
        fields.sort_by_key(|field| field.number);
        self.plans.messages[id.0 as usize].fields = fields;
        id
    }

    fn field(&mut self, parent: NodeRef<'static>, field: &'static Field) -> Option<FieldPlan> {
        let node = parent.at(field.node);
        let form = match &node.get().shape {
            Shape::List(_) if field.wrapped => Form::One(Type::Strings),
            Shape::List(list) => Form::Many(self.one(node.at(list.element))?),
            Shape::Map(_) if field.wrapped => Form::Map(Type::Strings),
            Shape::Map(element) => Form::Map(self.one(node.at(*element))?),
            _ => Form::One(self.one(node)?),
        };
        Some(FieldPlan { number: field.number, name: &field.name, presence: field.presence, form })
    }

    fn one(&mut self, node: NodeRef<'static>) -> Option<Type> {
        Some(match &node.get().shape {
            Shape::String => Type::String,
            Shape::Integer { bits: 32 } => Type::Int32,
            Shape::Integer { .. } => Type::Int64,
            Shape::Number => Type::Double,
            Shape::Boolean => Type::Bool,
            Shape::Bytes => Type::Bytes,
            Shape::Time => Type::Time,
            Shape::MicroTime => Type::MicroTime,
            Shape::Duration => Type::Duration,
            Shape::Quantity => Type::Quantity,
            Shape::IntOrString => Type::IntOrString,
            Shape::Raw | Shape::Fields | Shape::Any => Type::Json,
            Shape::SchemaOr { schema, other } => Type::SchemaOr(*other, self.message(node.at(*schema))),
            Shape::Object(_) => Type::Message(self.message(node)),
            Shape::Map(_) | Shape::List(_) => return None,
        })
    }
}
