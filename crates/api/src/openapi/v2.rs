//! OpenAPI v2: one document with everything.

use std::collections::{BTreeMap, HashSet};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::gnostic::{self, Form, Message, many, one};
use super::merge::Additions;
use super::operation::{Body, META, Operation, PathItem, ResponseBody};
use super::parameters::{Parameter, Place};
use super::paths;
use super::schemas::{Schemas, Style};
use super::{Source, VERSION, custom, write_entries};
use crate::protobuf::wire::Writer;
use crate::schema;

/// The document as JSON, with what aggregated servers add to it.
pub fn v2_json(source: &Source<'_>, additions: &Additions) -> Vec<u8> {
    let items = paths::all(source.catalogue);
    let mut out = Vec::with_capacity(2 << 20);
    out.extend_from_slice(br#"{"swagger":"2.0","info":"#);
    out.extend_from_slice(info().to_string().as_bytes());
    out.extend_from_slice(br#","paths":{"#);
    write_entries(&mut out, all_paths(&items, additions));
    out.extend_from_slice(br#"},"definitions":{"#);
    write_entries(&mut out, all_definitions(source, additions));
    out.extend_from_slice(br#"},"parameters":"#);
    out.extend_from_slice(all_parameters(&items, additions).to_string().as_bytes());
    out.extend_from_slice(br#","securityDefinitions":"#);
    out.extend_from_slice(security_definitions().to_string().as_bytes());
    out.extend_from_slice(br#","security":[{"BearerToken":[]}]}"#);
    out
}

/// The document in its protobuf form.
pub fn v2_protobuf(source: &Source<'_>, additions: &Additions) -> Vec<u8> {
    let items = paths::all(source.catalogue);
    let mut writer = Writer::new(2 << 20);
    // Only the small objects are built whole; paths and definitions are written one by one.
    let head = json!({"swagger": "2.0", "info": info()});
    let tail = json!({
        "parameters": all_parameters(&items, additions),
        "security": [{"BearerToken": []}],
        "securityDefinitions": security_definitions(),
    });
    write_fields(&mut writer, &tail);
    let before = writer.len();
    for name in definition_names(source, additions).into_iter().rev() {
        gnostic::write_named(&mut writer, 1, name, &merged_definition(source, additions, name), SCHEMA_FORM);
    }
    writer.close(9, before);
    let before = writer.len();
    for (path, value) in additions.paths.iter().rev() {
        gnostic::write_named(&mut writer, 2, path, value, Form::Message(&PATH_ITEM));
    }
    for item in items.iter().rev() {
        gnostic::write_named(&mut writer, 2, &item.path, &path_value(item), Form::Message(&PATH_ITEM));
    }
    writer.close(8, before);
    write_fields(&mut writer, &head);
    writer.finish()
}

fn write_fields(writer: &mut Writer, fields: &Value) {
    if let Value::Object(fields) = fields {
        gnostic::write_message(writer, &DOCUMENT, fields);
    }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": VERSION})
}

fn security_definitions() -> Value {
    json!({"BearerToken": {
        "description": "Bearer Token authentication", "type": "apiKey", "name": "authorization", "in": "header",
    }})
}

/// Own paths, then those of aggregated servers.
fn all_paths<'a>(items: &'a [PathItem], additions: &'a Additions) -> impl Iterator<Item = (String, Value)> + 'a {
    let own = items.iter().map(|item| (item.path.clone(), path_value(item)));
    own.chain(additions.paths.iter().map(|(path, value)| (path.clone(), value.clone())))
}

fn all_definitions<'a>(source: &'a Source<'a>, additions: &'a Additions) -> impl Iterator<Item = (String, Value)> + 'a {
    let names = definition_names(source, additions).into_iter();
    names.map(move |name| (name.to_owned(), merged_definition(source, additions, name)))
}

fn merged_definition(source: &Source<'_>, additions: &Additions, name: &str) -> Value {
    additions.definitions.get(name).cloned().unwrap_or_else(|| definition(source, name))
}

fn all_parameters(items: &[PathItem], additions: &Additions) -> Value {
    let mut parameters = shared_parameters(items);
    parameters.extend(additions.parameters.iter().map(|(name, value)| (name.clone(), value.clone())));
    Value::Object(parameters)
}

/// The names of all definitions, sorted.
fn definition_names<'a>(source: &Source<'a>, additions: &'a Additions) -> Vec<&'a str> {
    let built_in = schema::builtin().types().filter(|info| !info.hidden).map(|info| &*info.name);
    let packages: HashSet<&str> = source.catalogue.kinds().map(|kind| package(&kind.type_name)).collect();
    // Versions that are not served by default have types, too.
    let built_in = built_in.filter(|name| !is_unstable(name) || packages.contains(package(name)));
    let own = source.custom.iter().flat_map(|custom| [custom.type_name.as_str(), custom.list_type_name.as_str()]);
    let added = additions.definitions.keys().map(String::as_str);
    let mut names: Vec<&'a str> = built_in.chain(own).chain(added).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The name of a type without its last part.
fn package(type_name: &str) -> &str {
    type_name.rsplit_once('.').map_or(type_name, |(package, _)| package)
}

/// Whether a type is of an alpha or beta version.
fn is_unstable(type_name: &str) -> bool {
    let version = package(type_name).rsplit('.').next().unwrap_or_default();
    version.contains("alpha") || version.contains("beta")
}

/// One of this server's definitions; null if there is none of that name.
pub(super) fn definition(source: &Source<'_>, name: &str) -> Value {
    if let Some(value) = custom::definition(source, Style::V2, name) {
        return value;
    }
    let schemas = Schemas { style: Style::V2, describe: source.describe, only: None };
    let schema = schema::builtin();
    schema.type_named(name).map_or(Value::Null, |info| schemas.of_type(schema, info))
}

fn path_value(item: &PathItem) -> Value {
    let mut out = Map::new();
    for operation in &item.operations {
        out.insert(operation.method.to_owned(), operation_value(operation));
    }
    if !item.parameters.is_empty() {
        out.insert("parameters".into(), item.parameters.iter().map(parameter).collect());
    }
    Value::Object(out)
}

fn operation_value(operation: &Operation) -> Value {
    let mut out = Map::new();
    out.insert("description".into(), operation.description.as_str().into());
    if !operation.consumes.is_empty() {
        out.insert("consumes".into(), operation.consumes.to_vec().into());
    }
    out.insert("produces".into(), operation.produces.to_vec().into());
    out.insert("schemes".into(), json!(["https"]));
    out.insert("tags".into(), json!([operation.tag]));
    out.insert("operationId".into(), operation.id.as_str().into());
    let body = operation.body.as_ref().map(body);
    let parameters: Vec<Value> = body.into_iter().chain(operation.parameters.iter().map(parameter)).collect();
    if !parameters.is_empty() {
        out.insert("parameters".into(), parameters.into());
    }
    let mut responses = Map::new();
    for (code, response) in &operation.responses {
        let schema = match response {
            ResponseBody::Type(name) => Style::V2.reference(name),
            ResponseBody::Text => json!({"type": "string"}),
        };
        responses.insert((*code).to_owned(), json!({"description": super::meaning(code), "schema": schema}));
    }
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    out.insert("responses".into(), responses.into());
    super::add_marks(operation, &mut out);
    Value::Object(out)
}

fn parameter(parameter: &Parameter) -> Value {
    if parameter.is_shared() {
        return json!({"$ref": format!("#/parameters/{}", shared_name(parameter))});
    }
    parameter_value(parameter)
}

fn parameter_value(parameter: &Parameter) -> Value {
    let mut out = json!({
        "name": parameter.name,
        "in": parameter.place.name(),
        "type": parameter.kind,
        "description": parameter.description,
        "uniqueItems": true,
    });
    if parameter.place == Place::Path {
        out["required"] = true.into();
    }
    out
}

/// Bodies of types that all kinds share are listed once, like other parameters.
fn body(body: &Body) -> Value {
    if body.type_name.starts_with(META) {
        return json!({"$ref": format!("#/parameters/{}", body_name(body))});
    }
    body_value(body)
}

fn body_value(body: &Body) -> Value {
    let mut out = json!({"name": "body", "in": "body", "schema": Style::V2.reference(&body.type_name)});
    if body.required {
        out["required"] = true.into();
    }
    out
}

pub(super) fn shared_parameters(paths: &[PathItem]) -> Map<String, Value> {
    let mut shared = BTreeMap::new();
    for item in paths {
        let of_operations = item.operations.iter().flat_map(|operation| &operation.parameters);
        for parameter in item.parameters.iter().chain(of_operations).filter(|parameter| parameter.is_shared()) {
            shared.entry(shared_name(parameter)).or_insert_with(|| parameter_value(parameter));
        }
        for body in item.operations.iter().filter_map(|operation| operation.body.as_ref()) {
            if body.type_name.starts_with(META) {
                shared.entry(body_name(body)).or_insert_with(|| body_value(body));
            }
        }
    }
    shared.into_iter().collect()
}

/// Parameters of the same name can differ, so that their keys contain a digest.
fn shared_name(parameter: &Parameter) -> String {
    digest_name(parameter.name, &format!("{} {}", parameter.place.name(), parameter.description))
}

fn body_name(body: &Body) -> String {
    digest_name("body", &body.type_name)
}

fn digest_name(name: &str, content: &str) -> String {
    format!("{name}-{}", URL_SAFE.encode(&Sha256::digest(content)[..6]))
}

static SCHEMA_FORM: Form = Form::Message(&SCHEMA);

static DOCUMENT: Message = Message {
    fields: &[
        one("swagger", 1, Form::Text),
        one("info", 2, Form::Message(&INFO)),
        one("parameters", 10, Form::Map(1, &PARAMETER)),
        many("security", 12, Form::Map(1, &Form::Strings)),
        one("securityDefinitions", 13, Form::Map(1, &Form::Choice(|_| Some((2, Form::Message(&API_KEY)))))),
    ],
    extensions: 16,
};

static INFO: Message = Message { fields: &[one("title", 1, Form::Text), one("version", 2, Form::Text)], extensions: 7 };

static API_KEY: Message = Message {
    fields: &[
        one("type", 1, Form::Text),
        one("name", 2, Form::Text),
        one("in", 3, Form::Text),
        one("description", 4, Form::Text),
    ],
    extensions: 5,
};

static PATH_ITEM: Message = Message {
    fields: &[
        one("get", 2, Form::Message(&OPERATION)),
        one("put", 3, Form::Message(&OPERATION)),
        one("post", 4, Form::Message(&OPERATION)),
        one("delete", 5, Form::Message(&OPERATION)),
        one("options", 6, Form::Message(&OPERATION)),
        one("head", 7, Form::Message(&OPERATION)),
        one("patch", 8, Form::Message(&OPERATION)),
        many("parameters", 9, PARAMETER_OR_REFERENCE),
    ],
    extensions: 10,
};

static OPERATION: Message = Message {
    fields: &[
        many("tags", 1, Form::Text),
        one("description", 3, Form::Text),
        one("operationId", 5, Form::Text),
        many("produces", 6, Form::Text),
        many("consumes", 7, Form::Text),
        many("parameters", 8, PARAMETER_OR_REFERENCE),
        one("responses", 9, Form::Map(1, &RESPONSE_OR_REFERENCE)),
        many("schemes", 10, Form::Text),
    ],
    extensions: 13,
};

const PARAMETER_OR_REFERENCE: Form = Form::Choice(|value| {
    let is_reference = value.get("$ref").is_some();
    Some(if is_reference { (2, Form::Message(&REFERENCE)) } else { (1, PARAMETER) })
});

const PARAMETER: Form = Form::Choice(|value| match value.get("in").and_then(Value::as_str) {
    Some("body") => Some((1, Form::Message(&BODY_PARAMETER))),
    Some("path") => Some((2, Form::Choice(|_| Some((4, Form::Message(&PATH_PARAMETER)))))),
    _ => Some((2, Form::Choice(|_| Some((3, Form::Message(&QUERY_PARAMETER)))))),
});

static REFERENCE: Message = Message { fields: &[one("$ref", 1, Form::Text)], extensions: 3 };

static BODY_PARAMETER: Message = Message {
    fields: &[
        one("name", 2, Form::Text),
        one("in", 3, Form::Text),
        one("required", 4, Form::Flag),
        one("schema", 5, Form::Message(&SCHEMA)),
    ],
    extensions: 6,
};

static QUERY_PARAMETER: Message = Message {
    fields: &[
        one("in", 2, Form::Text),
        one("description", 3, Form::Text),
        one("name", 4, Form::Text),
        one("type", 6, Form::Text),
        one("uniqueItems", 20, Form::Flag),
    ],
    extensions: 23,
};

static PATH_PARAMETER: Message = Message {
    fields: &[
        one("required", 1, Form::Flag),
        one("in", 2, Form::Text),
        one("description", 3, Form::Text),
        one("name", 4, Form::Text),
        one("type", 5, Form::Text),
        one("uniqueItems", 19, Form::Flag),
    ],
    extensions: 22,
};

static RESPONSE_OR_REFERENCE: Form = Form::Choice(|_| Some((1, Form::Message(&RESPONSE))));

static RESPONSE: Message = Message {
    fields: &[one("description", 1, Form::Text), one("schema", 2, Form::Choice(|_| Some((1, SCHEMA_FORM))))],
    extensions: 5,
};

static SCHEMA: Message = Message {
    fields: &[
        one("$ref", 1, Form::Text),
        one("format", 2, Form::Text),
        one("title", 3, Form::Text),
        one("description", 4, Form::Text),
        one("default", 5, Form::Any),
        one("multipleOf", 6, Form::Number),
        one("maximum", 7, Form::Number),
        one("exclusiveMaximum", 8, Form::Flag),
        one("minimum", 9, Form::Number),
        one("exclusiveMinimum", 10, Form::Flag),
        one("maxLength", 11, Form::Integer),
        one("minLength", 12, Form::Integer),
        one("pattern", 13, Form::Text),
        one("maxItems", 14, Form::Integer),
        one("minItems", 15, Form::Integer),
        one("uniqueItems", 16, Form::Flag),
        one("maxProperties", 17, Form::Integer),
        one("minProperties", 18, Form::Integer),
        many("required", 19, Form::Text),
        many("enum", 20, Form::Any),
        one("additionalProperties", 21, ADDITIONAL_PROPERTIES),
        one("type", 22, Form::Choice(|_| Some((1, Form::Text)))),
        one("items", 23, Form::Choice(|_| Some((1, SCHEMA_FORM)))),
        one("properties", 25, Form::Map(1, &SCHEMA_FORM)),
        one("externalDocs", 29, Form::Message(&EXTERNAL_DOCUMENT)),
        one("example", 30, Form::Any),
    ],
    extensions: 31,
};

const ADDITIONAL_PROPERTIES: Form =
    Form::Choice(|value| Some(if value.is_boolean() { (2, Form::Flag) } else { (1, SCHEMA_FORM) }));

static EXTERNAL_DOCUMENT: Message =
    Message { fields: &[one("description", 1, Form::Text), one("url", 2, Form::Text)], extensions: 3 };
