//! OpenAPI v3: an index, one document for each group version, and those of the paths outside of groups.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use super::gnostic::{self, Form, Message, many, one};
use super::operation::{Operation, PathItem, ResponseBody};
use super::parameters::{Parameter, Place};
use super::paths;
use super::schemas::{Schemas, Style, references};
use super::{Source, VERSION, custom, write_entries};
use crate::catalogue::Catalogue;
use crate::protobuf::wire::Writer;
use crate::schema;

/// The names of all documents, which are also their paths below `/openapi/v3/`, sorted.
pub fn v3_names(catalogue: &Catalogue) -> Vec<String> {
    let server = paths::of_server();
    let mut names: Vec<String> = server.iter().map(|item| item.path.trim_matches('/').to_owned()).collect();
    for group in catalogue.groups() {
        let root = if group.name.is_empty() { "api".to_owned() } else { format!("apis/{}", group.name) };
        names.extend(group.versions.iter().map(|version| format!("{root}/{}", version.name)));
        if paths::of_group(group).is_some() {
            names.push(root);
        }
    }
    names.sort();
    names
}

/// A digest that changes when a document does, computed without the document.
pub fn v3_hash(source: &Source<'_>, name: &str) -> Option<String> {
    let paths = paths(source.catalogue, name)?;
    let mut digest = Sha512::new();
    digest.update(env!("CARGO_PKG_VERSION"));
    digest.update(name);
    digest.update(format!("{paths:?}"));
    if let Some((group, version)) = group_version(name) {
        for custom in source.custom.iter().filter(|custom| custom.kind.group == group && custom.kind.version == version)
        {
            digest.update(&custom.type_name);
            digest.update(custom.schema.to_string());
        }
    }
    Some(digest.finalize().iter().map(|byte| format!("{byte:02X}")).collect())
}

/// The index of all documents.
pub fn v3_index(source: &Source<'_>) -> Value {
    let mut paths = Map::new();
    for name in v3_names(source.catalogue) {
        if let Some(hash) = v3_hash(source, &name) {
            let url = format!("/openapi/v3/{name}?hash={hash}");
            paths.insert(name, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// A document as JSON; `None` where there is none of that name.
pub fn v3_json(source: &Source<'_>, name: &str) -> Option<Vec<u8>> {
    let document = Document::new(source, name)?;
    let mut out = Vec::with_capacity(256 << 10);
    out.extend_from_slice(br#"{"openapi":"3.0.0","info":"#);
    out.extend_from_slice(info().to_string().as_bytes());
    out.extend_from_slice(br#","paths":{"#);
    write_entries(&mut out, document.paths.iter().map(|item| (item.path.clone(), path_value(item))));
    out.extend_from_slice(br#"},"components":{"#);
    if !document.schemas.is_empty() {
        out.extend_from_slice(br#""schemas":{"#);
        write_entries(&mut out, document.schemas.into_iter());
        out.extend_from_slice(b"},");
    }
    out.extend_from_slice(br#""securitySchemes":"#);
    out.extend_from_slice(security_schemes().to_string().as_bytes());
    out.extend_from_slice(b"}}");
    Some(out)
}

/// A document in its protobuf form.
pub fn v3_protobuf(source: &Source<'_>, name: &str) -> Option<Vec<u8>> {
    let document = Document::new(source, name)?;
    let mut writer = Writer::new(256 << 10);
    let components = writer.len();
    gnostic::write_message(&mut writer, &COMPONENTS, json!({"securitySchemes": security_schemes()}).as_object()?);
    if !document.schemas.is_empty() {
        let before = writer.len();
        for (name, value) in document.schemas.iter().rev() {
            gnostic::write_named(&mut writer, 1, name, value, SCHEMA_OR_REFERENCE);
        }
        writer.close(1, before);
    }
    writer.close(5, components);
    let before = writer.len();
    for item in document.paths.iter().rev() {
        gnostic::write_named(&mut writer, 1, &item.path, &path_value(item), Form::Message(&PATH_ITEM));
    }
    writer.close(4, before);
    gnostic::write_message(&mut writer, &HEAD, json!({"openapi": "3.0.0", "info": info()}).as_object()?);
    Some(writer.finish())
}

struct Document {
    paths: Vec<PathItem>,
    /// All types that the paths refer to.
    schemas: BTreeMap<String, Value>,
}

impl Document {
    fn new(source: &Source<'_>, name: &str) -> Option<Document> {
        let paths = paths(source.catalogue, name)?;
        let mut wanted = Vec::new();
        for operation in paths.iter().flat_map(|item| &item.operations) {
            wanted.extend(operation.body.iter().map(|body| body.type_name.clone()));
            wanted.extend(operation.responses.iter().filter_map(|(_, response)| match response {
                ResponseBody::Type(name) => Some(name.clone()),
                ResponseBody::Text => None,
            }));
        }
        let only = group_version(name);
        let mut schemas = BTreeMap::new();
        while let Some(name) = wanted.pop() {
            if schemas.contains_key(&name) {
                continue;
            }
            if let Some(value) = component(source, only, &name) {
                references(&value, &mut wanted);
                schemas.insert(name, value);
            }
        }
        Some(Document { paths, schemas })
    }
}

fn component(source: &Source<'_>, only: Option<(&str, &str)>, name: &str) -> Option<Value> {
    if let Some(value) = custom::definition(source, Style::V3, name) {
        return Some(value);
    }
    let schema = schema::builtin();
    let schemas = Schemas { style: Style::V3, describe: source.describe, only };
    Some(schemas.of_type(schema, schema.type_named(name)?))
}

fn paths(catalogue: &Catalogue, name: &str) -> Option<Vec<PathItem>> {
    if let Some((group, version)) = group_version(name) {
        let group = catalogue.group(group)?;
        let version = group.versions.iter().find(|candidate| candidate.name == version)?;
        return Some(paths::of_version(group, version));
    }
    let server = paths::of_server();
    if let Some(item) = server.into_iter().find(|item| item.path.trim_matches('/') == name) {
        return Some(vec![item]);
    }
    let group = if name == "api" { "" } else { name.strip_prefix("apis/")? };
    Some(vec![paths::of_group(catalogue.group(group)?)?])
}

/// `api/v1` and `apis/apps/v1` name group versions; other documents do not.
fn group_version(name: &str) -> Option<(&str, &str)> {
    if let Some(version) = name.strip_prefix("api/") {
        return Some(("", version));
    }
    name.strip_prefix("apis/")?.split_once('/')
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": VERSION})
}

fn security_schemes() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header",
    }})
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
    out.insert("tags".into(), json!([operation.tag]));
    out.insert("description".into(), operation.description.as_str().into());
    out.insert("operationId".into(), operation.id.as_str().into());
    if !operation.parameters.is_empty() {
        out.insert("parameters".into(), operation.parameters.iter().map(parameter).collect());
    }
    if let Some(body) = &operation.body {
        let schema = Style::V3.reference(&body.type_name);
        let mut request = json!({"content": content(operation.consumes, &schema)});
        if body.required {
            request["required"] = true.into();
        }
        out.insert("requestBody".into(), request);
    }
    let mut responses = Map::new();
    for (code, response) in &operation.responses {
        let schema = match response {
            ResponseBody::Type(name) => Style::V3.reference(name),
            ResponseBody::Text => json!({"type": "string"}),
        };
        let content = content(operation.produces, &schema);
        responses.insert((*code).to_owned(), json!({"description": super::meaning(code), "content": content}));
    }
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    out.insert("responses".into(), responses.into());
    super::add_marks(operation, &mut out);
    Value::Object(out)
}

fn content(types: &[&str], schema: &Value) -> Map<String, Value> {
    types.iter().map(|name| ((*name).to_owned(), json!({"schema": schema}))).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    let mut out = json!({
        "name": parameter.name,
        "in": parameter.place.name(),
        "description": parameter.description,
        "schema": {"type": parameter.kind, "uniqueItems": true},
    });
    if parameter.place == Place::Path {
        out["required"] = true.into();
    }
    out
}

static HEAD: Message =
    Message { fields: &[one("openapi", 1, Form::Text), one("info", 2, Form::Message(&INFO))], extensions: 9 };

static INFO: Message = Message { fields: &[one("title", 1, Form::Text), one("version", 6, Form::Text)], extensions: 7 };

static COMPONENTS: Message = Message {
    fields: &[one("securitySchemes", 7, Form::Map(1, &Form::Choice(|_| Some((1, Form::Message(&SECURITY_SCHEME))))))],
    extensions: 10,
};

static SECURITY_SCHEME: Message = Message {
    fields: &[
        one("type", 1, Form::Text),
        one("description", 2, Form::Text),
        one("name", 3, Form::Text),
        one("in", 4, Form::Text),
    ],
    extensions: 9,
};

static PATH_ITEM: Message = Message {
    fields: &[
        one("get", 4, Form::Message(&OPERATION)),
        one("put", 5, Form::Message(&OPERATION)),
        one("post", 6, Form::Message(&OPERATION)),
        one("delete", 7, Form::Message(&OPERATION)),
        one("options", 8, Form::Message(&OPERATION)),
        one("head", 9, Form::Message(&OPERATION)),
        one("patch", 10, Form::Message(&OPERATION)),
        many("parameters", 13, PARAMETER_OR_REFERENCE),
    ],
    extensions: 14,
};

static OPERATION: Message = Message {
    fields: &[
        many("tags", 1, Form::Text),
        one("description", 3, Form::Text),
        one("operationId", 5, Form::Text),
        many("parameters", 6, PARAMETER_OR_REFERENCE),
        one("requestBody", 7, Form::Choice(|_| Some((1, Form::Message(&REQUEST_BODY))))),
        one("responses", 8, Form::Map(2, &RESPONSE_OR_REFERENCE)),
    ],
    extensions: 13,
};

const PARAMETER_OR_REFERENCE: Form = Form::Choice(|_| Some((1, Form::Message(&PARAMETER))));

static PARAMETER: Message = Message {
    fields: &[
        one("name", 1, Form::Text),
        one("in", 2, Form::Text),
        one("description", 3, Form::Text),
        one("required", 4, Form::Flag),
        one("schema", 10, SCHEMA_OR_REFERENCE),
    ],
    extensions: 14,
};

static REQUEST_BODY: Message =
    Message { fields: &[one("content", 2, CONTENT), one("required", 3, Form::Flag)], extensions: 4 };

static RESPONSE_OR_REFERENCE: Form = Form::Choice(|_| Some((1, Form::Message(&RESPONSE))));

static RESPONSE: Message =
    Message { fields: &[one("description", 1, Form::Text), one("content", 3, CONTENT)], extensions: 5 };

const CONTENT: Form = Form::Map(1, &Form::Message(&MEDIA_TYPE));

static MEDIA_TYPE: Message = Message { fields: &[one("schema", 1, SCHEMA_OR_REFERENCE)], extensions: 5 };

const SCHEMA_OR_REFERENCE: Form = Form::Choice(|value| {
    let is_reference = value.get("$ref").is_some();
    Some(if is_reference { (2, Form::Message(&REFERENCE)) } else { (1, Form::Message(&SCHEMA)) })
});

static REFERENCE: Message = Message { fields: &[one("$ref", 1, Form::Text)], extensions: 4 };

static SCHEMA: Message = Message {
    fields: &[
        one("nullable", 1, Form::Flag),
        one("externalDocs", 6, Form::Message(&EXTERNAL_DOCUMENT)),
        one("example", 7, Form::Any),
        one("title", 9, Form::Text),
        one("multipleOf", 10, Form::Number),
        one("maximum", 11, Form::Number),
        one("exclusiveMaximum", 12, Form::Flag),
        one("minimum", 13, Form::Number),
        one("exclusiveMinimum", 14, Form::Flag),
        one("maxLength", 15, Form::Integer),
        one("minLength", 16, Form::Integer),
        one("pattern", 17, Form::Text),
        one("maxItems", 18, Form::Integer),
        one("minItems", 19, Form::Integer),
        one("uniqueItems", 20, Form::Flag),
        one("maxProperties", 21, Form::Integer),
        one("minProperties", 22, Form::Integer),
        many("required", 23, Form::Text),
        many("enum", 24, Form::Any),
        one("type", 25, Form::Text),
        many("allOf", 26, SCHEMA_OR_REFERENCE),
        many("oneOf", 27, SCHEMA_OR_REFERENCE),
        many("anyOf", 28, SCHEMA_OR_REFERENCE),
        one("not", 29, Form::Message(&SCHEMA)),
        one("items", 30, Form::Choice(|_| Some((1, SCHEMA_OR_REFERENCE)))),
        one("properties", 31, Form::Map(1, &SCHEMA_OR_REFERENCE)),
        one("additionalProperties", 32, ADDITIONAL_PROPERTIES),
        one("default", 33, DEFAULT),
        one("description", 34, Form::Text),
        one("format", 35, Form::Text),
    ],
    extensions: 36,
};

const ADDITIONAL_PROPERTIES: Form =
    Form::Choice(|value| Some(if value.is_boolean() { (2, Form::Flag) } else { (1, SCHEMA_OR_REFERENCE) }));

/// The protobuf form cannot express defaults that are objects or lists.
const DEFAULT: Form = Form::Choice(|value| match value {
    Value::Number(_) => Some((1, Form::Number)),
    Value::Bool(_) => Some((2, Form::Flag)),
    Value::String(_) => Some((3, Form::Text)),
    _ => None,
});

static EXTERNAL_DOCUMENT: Message =
    Message { fields: &[one("description", 1, Form::Text), one("url", 2, Form::Text)], extensions: 3 };
