//! The parser of the table of types (`types.txt`).
//!
//! A line that starts in the first column opens a type, an indented one adds a field to it:
//!
//! ```text
//! core.v1.ContainerPort
//!  containerPort int32 #3 ! required default=0
//! ```
//!
//! A field has a name, a type and marks. Types are words (`string`, `time`, …), `&name` of another type, `[]x` for a list
//! and `{}x` for a map. Marks: `#3` protobuf's number, `?` kept with every value, `!` printed always, `~` left out when
//! zero although a struct, `list=map:key`, `map=atomic`, `patch=merge` with `key=name`, `enum=a,b`, `default=json`,
//! `each=json` for the default of an element, `go=` when the type's name in errors is not what the type suggests,
//! `wrapped` for lists that protobuf wraps in a message. The field `...` inlines the fields of another struct.

mod marks;

use super::{
    Alternative, Field, Inlined, List, ListKind, MapType, Node, NodeId, Object, Presence, Schema, SchemaBuilder, Shape,
    TypeInfo,
};
use marks::{
    basic, full_name, go_name, read_json, read_kind, read_list_kind, read_map_type, read_number, read_strategy,
    special_type,
};
use std::collections::HashMap;
use thiserror::Error;

#[derive(Debug, Error)]
#[error("line {line}: {what}: {text:?}")]
pub(super) struct TableError {
    line: usize,
    what: &'static str,
    text: Box<str>,
}

pub(super) fn parse(text: &str) -> Result<Schema, TableError> {
    let mut reader = Reader::default();
    for (line, text) in numbered(text).filter(|(_, text)| !text.starts_with(' ')) {
        reader.open_type(text).map_err(|what| TableError { line, what, text: text.into() })?;
    }
    let mut current: Option<Pending> = None;
    for (line, text) in numbered(text) {
        let failed = |what| TableError { line, what, text: text.into() };
        if text.starts_with(' ') {
            let pending = current.as_mut().ok_or_else(|| failed("a field outside a type"))?;
            reader.read_field(pending, text).map_err(failed)?;
        } else {
            if let Some(done) = current.take() {
                reader.close_type(done);
            }
            let name = text.split(' ').next().unwrap_or_default();
            current = Some(Pending { node: reader.known[name], fields: Vec::new(), inlined: Vec::new() });
        }
    }
    if let Some(done) = current.take() {
        reader.close_type(done);
    }
    reader.flatten_inlined();
    Ok(reader.builder.finish())
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.is_empty())
}

#[derive(Default)]
struct Reader<'t> {
    builder: SchemaBuilder,
    /// By the name in the table.
    known: HashMap<&'t str, NodeId>,
    /// Nodes without marks of their own, shared by all fields of that type.
    plain: HashMap<&'t str, NodeId>,
    with_inlined: Vec<NodeId>,
    /// Copies of objects that a field gives another map type: the copy, the field's type.
    copies: Vec<(NodeId, NodeId)>,
}

struct Pending {
    node: NodeId,
    fields: Vec<Field>,
    inlined: Vec<Inlined>,
}

impl Pending {
    /// The position of the next field, which leaves room for those of an inlined struct.
    fn next_place(&self) -> u32 {
        const ROOM: u32 = 256;
        (self.fields.len() + self.inlined.len()) as u32 * ROOM
    }
}

/// The merge rules of a field's list.
struct ListMark {
    declared: Option<ListKind>,
    /// Derived from the field's patch strategy if the list type is not declared.
    merged: Option<ListKind>,
}

impl ListMark {
    fn is_plain(&self) -> bool {
        self.declared.is_none() && self.merged.is_none()
    }
}

fn merged_kind(field: &Field) -> Option<ListKind> {
    let keys = field.merge_key.clone().map(|key| ListKind::Map(vec![key]));
    field.patch.merge.then(|| keys.unwrap_or(ListKind::Set))
}

impl<'t> Reader<'t> {
    fn open_type(&mut self, text: &'t str) -> Result<(), &'static str> {
        let mut words = text.split(' ');
        let short = words.next().ok_or("no name")?;
        let name = full_name(short);
        let mut shape = Shape::Object(Object::default());
        let mut go_type = go_name(&name);
        let mut map_type = None;
        let mut info = TypeInfo {
            name: name.clone().into(),
            node: NodeId(0),
            kinds: Vec::new(),
            hidden: false,
            has_protobuf: true,
            unions: None,
        };
        for word in words {
            match word.split_once('=') {
                None if word == "hidden" => info.hidden = true,
                None if word == "no-protobuf" => info.has_protobuf = false,
                Some(("is", kind)) => shape = self.special(kind)?,
                Some(("kind", kind)) => info.kinds.push(read_kind(kind)?),
                Some(("map", kind)) => map_type = Some(read_map_type(kind)?),
                Some(("go", given)) => go_type = given.into(),
                Some(("unions", json)) => {
                    info.unions = Some(serde_json::from_str(json).map_err(|_| "unions are no JSON")?);
                }
                _ => return Err("an unknown mark of a type"),
            }
        }
        let id = self.builder.push(Node { name: Some(name.into()), map_type, ..Node::new(shape, &go_type) });
        info.node = id;
        self.builder.name_type(info);
        self.known.insert(short, id);
        Ok(())
    }

    fn special(&mut self, kind: &str) -> Result<Shape, &'static str> {
        // The schema a JSON schema may hold instead is filled in when its own type is known.
        let schema_or = |other| Ok(Shape::SchemaOr { schema: NodeId(u32::MAX), other });
        match kind {
            "schema-or-array" => schema_or(Alternative::Schemas),
            "schema-or-bool" => schema_or(Alternative::Boolean),
            "schema-or-strings" => schema_or(Alternative::Strings),
            _ => basic(kind).ok_or("an unknown special type"),
        }
    }

    fn read_field(&mut self, pending: &mut Pending, text: &'t str) -> Result<(), &'static str> {
        let mut words = text.trim_start().split(' ');
        let name = words.next().ok_or("no name")?;
        let kind = words.next().ok_or("no type")?;
        if name == "..." {
            let node = *self.known.get(kind.trim_start_matches('&')).ok_or("an unknown type")?;
            let number = words.next().map_or(Ok(0), read_number)?;
            pending.inlined.push(Inlined { node, number, place: pending.next_place() });
            return Ok(());
        }
        let mut field = Field::new(name, NodeId(0));
        field.place = pending.next_place();
        field.presence = Presence::NonZero;
        let (mut list, mut go_type) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("default", json)) => field.default = Some(read_json(json)?),
                Some(("each", json)) => field.element_default = Some(read_json(json)?),
                Some(("list", kind)) => list = Some(read_list_kind(kind)?),
                Some(("map", kind)) => field.map_type = Some(read_map_type(kind)?),
                Some(("patch", strategy)) => field.patch = read_strategy(strategy)?,
                Some(("key", key)) => field.merge_key = Some(key.into()),
                Some(("enum", values)) => field.values = values.split(',').map(Into::into).collect(),
                Some(("go", given)) => go_type = Some(given),
                Some(_) => return Err("an unknown mark of a field"),
                None => match word {
                    "?" => field.presence = Presence::Optional,
                    "!" => field.presence = Presence::Always,
                    "?!" => field.presence = Presence::Nullable,
                    "~" => field.presence = Presence::NonZero,
                    "required" => field.required = true,
                    "wrapped" => field.wrapped = true,
                    _ => field.number = read_number(word)?,
                },
            }
        }
        let list = ListMark { merged: merged_kind(&field), declared: list };
        field.node = self.field_node(kind, list, field.map_type, go_type)?;
        pending.fields.push(field);
        Ok(())
    }

    fn field_node(
        &mut self,
        kind: &'t str,
        list: ListMark,
        map_type: Option<MapType>,
        go_type: Option<&str>,
    ) -> Result<NodeId, &'static str> {
        if list.is_plain() && map_type.is_none() && go_type.is_none() {
            return self.plain_node(kind);
        }
        if let Some(element) = kind.strip_prefix("[]") {
            let element = self.element_node(element, go_type.and_then(|go| go.strip_prefix("[]")))?;
            let go_type = go_type.map_or_else(|| format!("[]{}", self.builder.node(element).go_type), Into::into);
            let declared = list.declared.is_some();
            let kind = list.declared.or(list.merged).unwrap_or(ListKind::Atomic);
            let shape = Shape::List(List { element, kind, declared });
            return Ok(self.builder.push(Node::new(shape, &go_type)));
        }
        if let Some(element) = kind.strip_prefix("{}") {
            let within = go_type.and_then(|go| go.split_once(']')).map(|(_, element)| element);
            let element = self.element_node(element, within)?;
            let go_type =
                go_type.map_or_else(|| format!("map[string]{}", self.builder.node(element).go_type), Into::into);
            return Ok(self.builder.push(Node { map_type, ..Node::new(Shape::Map(element), &go_type) }));
        }
        let plain = self.plain_node(kind)?;
        let mut node = self.builder.node(plain).clone();
        node.go_type = go_type.map_or(node.go_type, Into::into);
        node.map_type = map_type.or(node.map_type);
        let is_object = matches!(node.shape, Shape::Object(_));
        let copy = self.builder.push(node);
        if is_object {
            self.copies.push((copy, plain));
        }
        Ok(copy)
    }

    fn element_node(&mut self, kind: &'t str, go_type: Option<&str>) -> Result<NodeId, &'static str> {
        let plain = self.plain_node(kind)?;
        match go_type {
            Some(go_type) if *self.builder.node(plain).go_type != *go_type => {
                let node = Node { go_type: go_type.into(), ..self.builder.node(plain).clone() };
                Ok(self.builder.push(node))
            }
            _ => Ok(plain),
        }
    }

    fn plain_node(&mut self, kind: &'t str) -> Result<NodeId, &'static str> {
        if let Some(name) = kind.strip_prefix('&') {
            return self.known.get(name).copied().ok_or("an unknown type");
        }
        if let Some(name) = special_type(kind) {
            return self.known.get(name).copied().ok_or("a special type without a line of its own");
        }
        if let Some(id) = self.plain.get(kind) {
            return Ok(*id);
        }
        let node = if let Some(element) = kind.strip_prefix("[]") {
            let element = self.plain_node(element)?;
            let go_type = format!("[]{}", self.builder.node(element).go_type);
            Node::new(Shape::List(List { element, kind: ListKind::Atomic, declared: false }), &go_type)
        } else if let Some(element) = kind.strip_prefix("{}") {
            let element = self.plain_node(element)?;
            let go_type = format!("map[string]{}", self.builder.node(element).go_type);
            Node::new(Shape::Map(element), &go_type)
        } else {
            let go_type = match kind {
                "double" => "float64",
                "bytes" => "[]uint8",
                _ => kind,
            };
            Node::new(basic(kind).ok_or("an unknown type")?, go_type)
        };
        let id = self.builder.push(node);
        self.plain.insert(kind, id);
        Ok(id)
    }

    fn close_type(&mut self, done: Pending) {
        let schema = self.known.get("apiextensions.v1.JSONSchemaProps").copied();
        let node = self.builder.node_mut(done.node);
        match (&mut node.shape, schema) {
            (Shape::Object(object), _) => *object = Object::from_fields(done.fields, done.inlined),
            (Shape::SchemaOr { schema: within, .. }, Some(schema)) => *within = schema,
            _ => {}
        }
        if self.builder.node(done.node).as_object().is_some_and(|object| !object.inlined.is_empty()) {
            self.with_inlined.push(done.node);
        }
    }

    fn flatten_inlined(&mut self) {
        for id in std::mem::take(&mut self.with_inlined) {
            self.flatten(id);
        }
        for (copy, original) in std::mem::take(&mut self.copies) {
            self.builder.node_mut(copy).shape = self.builder.node(original).shape.clone();
        }
    }
}

impl Reader<'_> {
    /// Copies the fields of inlined structs, recursively.
    fn flatten(&mut self, id: NodeId) {
        let Some(object) = self.builder.node(id).as_object().cloned() else { return };
        let mut fields = object.fields;
        fields.retain(|field| field.inlined.is_none());
        for (at, part) in object.inlined.iter().enumerate() {
            self.flatten(part.node);
            let within = self.builder.node(part.node).as_object().map_or(&[][..], |object| object.fields());
            let mut places: Vec<u32> = within.iter().map(|field| field.place).collect();
            places.sort_unstable();
            fields.extend(within.iter().map(|field| {
                let rank = places.partition_point(|place| *place < field.place) as u32;
                Field { inlined: Some(at as u16), place: part.place + rank, ..field.clone() }
            }));
        }
        self.builder.node_mut(id).shape = Shape::Object(Object::from_fields(fields, object.inlined));
    }
}

impl Node {
    fn as_object(&self) -> Option<&Object> {
        match &self.shape {
            Shape::Object(object) => Some(object),
            _ => None,
        }
    }
}
