//! The types of the API: fields, protobuf numbers, how lists and maps merge, defaults.
//!
//! OpenAPI v2 gives the fields, OpenAPI v3 the defaults, the protobuf messages the numbers and the order of fields. Go's part
//! is published in none of them (which fields are pointers, which are printed when empty, names of Go types): it is kept in
//! `xtask/facts/types.txt`, as marks to add to a field or, with `-`, to leave out. A type that is marked `whole` there is
//! taken as it stands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use anyhow::Context as _;
use serde_json::Value;

use super::Facts;
use super::facts::{text, texts};

/// What a short name in the table starts with, and how the full one does.
const PACKAGES: [(&str, &str); 4] = [
    ("meta.", "io.k8s.apimachinery.pkg.apis.meta."),
    ("apiextensions.", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions."),
    ("apiregistration.", "io.k8s.kube-aggregator.pkg.apis.apiregistration."),
    ("", "io.k8s.api."),
];

/// Types that have a word of their own in the table.
const WORDS: [(&str, &str); 10] = [
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", "time"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime", "microtime"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", "fields"),
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", "quantity"),
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", "int-or-string"),
    ("io.k8s.apimachinery.pkg.runtime.RawExtension", "raw"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", "json"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool", "schema-or-bool"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray", "schema-or-array"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray", "schema-or-strings"),
];

/// From which version a type inherits what is kept by hand.
const STABLE_FIRST: [&str; 4] = ["v1", "v1beta2", "v1beta1", "v1alpha3"];

/// Structs that objects hold as values, not as pointers.
const PRINTED: [&str; 3] = ["metadata", "spec", "status"];

/// The order of marks in a line of the table; marks of one kind stand together.
const ORDER: [&str; 15] = [
    "#", "?!", "?", "!", "~", "wrapped", "required", "list=", "map=", "patch=", "key=", "enum=", "default=", "each=",
    "go=",
];

pub fn generate(facts: &Facts) -> anyhow::Result<String> {
    let published = Published::read(facts)?;
    let by_hand = read_by_hand(facts.by_hand("types.txt")?);
    let mut lines = Vec::new();
    let names: BTreeSet<&str> = published.definitions.keys().map(|name| short_name(name)).collect();
    let names: BTreeSet<String> = names.into_iter().map(str::to_owned).chain(by_hand.keys().cloned()).collect();
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_by_key(|name| full_name(name));
    for name in names {
        let extra = by_hand.get(&name).cloned().or_else(|| published.inherited(&name, &by_hand)).unwrap_or_default();
        lines.extend(published.type_lines(&name, extra).with_context(|| format!("cannot describe {name}"))?);
    }
    Ok(lines.join("\n") + "\n")
}

/// What is kept by hand about one type.
#[derive(Clone, Default)]
struct ByHand {
    /// The marks in its first line.
    marks: Vec<String>,
    /// The lines below, by field.
    fields: Vec<(String, Vec<String>)>,
}

fn read_by_hand(lines: Vec<String>) -> HashMap<String, ByHand> {
    let mut types: HashMap<String, ByHand> = HashMap::new();
    let mut current = String::new();
    for line in lines {
        let mut words = line.trim_start().split(' ').map(str::to_owned);
        let first = words.next().unwrap_or_default();
        if line.starts_with(' ') {
            types.entry(current.clone()).or_default().fields.push((first, words.collect()));
        } else {
            types.entry(first.clone()).or_default().marks = words.collect();
            current = first;
        }
    }
    types
}

struct Published {
    definitions: BTreeMap<String, Value>,
    /// From OpenAPI v3, for as many types as the given documents hold.
    defaults: HashMap<String, Value>,
    messages: HashMap<String, Vec<Value>>,
}

impl Published {
    fn read(facts: &Facts) -> anyhow::Result<Self> {
        let mut definitions: BTreeMap<String, Value> =
            serde_json::from_value(facts.json("openapi-v2.json")?["definitions"].take())?;
        let mut messages: HashMap<String, Vec<Value>> = serde_json::from_value(facts.json("protobuf-fields.json")?)?;
        let mut defaults = HashMap::new();
        let optional: HashMap<String, Value> = serde_json::from_value(facts.condensed("schemas.json")?)?;
        defaults.extend(optional.clone());
        definitions.extend(optional);
        let optional: HashMap<String, Vec<Value>> = serde_json::from_value(facts.condensed("protobuf-fields.json")?)?;
        messages.extend(optional);
        for entry in fs::read_dir(&facts.published)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("openapi-v3-") && name != "openapi-v3-index.json" {
                let mut document = facts.json(&name)?;
                let schemas: HashMap<String, Value> = serde_json::from_value(document["components"]["schemas"].take())?;
                defaults.extend(schemas);
            }
        }
        Ok(Self { definitions, defaults, messages })
    }

    /// What is kept by hand about the same type in a more stable version, for a type that has nothing of its own.
    fn inherited(&self, name: &str, by_hand: &HashMap<String, ByHand>) -> Option<ByHand> {
        let mut parts = name.splitn(3, '.');
        let (group, version, kind) = (parts.next()?, parts.next()?, parts.next()?);
        let stable = STABLE_FIRST.iter().filter(|candidate| **candidate != version);
        let (from, found) = stable
            .filter_map(|from| by_hand.get(&format!("{group}.{from}.{kind}")).map(|found| (*from, found)))
            .next()
            .filter(|_| version.contains("alpha") || version.contains("beta"))?;
        let known = |word: &str| self.definitions.contains_key(&full_name(word)) || by_hand.contains_key(word);
        let renamed = |word: &String| {
            let own = word.replace(&format!("{group}.{from}."), &format!("{group}.{version}."));
            let is_type = own.contains('&') && !known(own.trim_start_matches(['[', ']', '{', '}', '&']));
            match own.strip_prefix("go=") {
                Some(go) => format!("go={}", go_name(go, from, version)),
                None if is_type => word.clone(),
                None => own,
            }
        };
        let fields = found.fields.iter().map(|(field, words)| (field.clone(), words.iter().map(renamed).collect()));
        Some(ByHand { marks: found.marks.clone(), fields: fields.collect() })
    }

    fn type_lines(&self, name: &str, by_hand: ByHand) -> anyhow::Result<Vec<String>> {
        let definition = self.definitions.get(&full_name(name));
        let mut first = vec![name.to_owned()];
        if let Some(definition) = definition {
            first.extend(kind_marks(definition)?);
            first.extend(map_type(definition));
        }
        let is_whole = by_hand.marks.iter().any(|mark| mark == "whole") || definition.is_none();
        first.extend(by_hand.marks.into_iter().filter(|mark| mark != "whole"));
        let mut lines = vec![first.join(" ")];
        match definition {
            Some(definition) if !is_whole => lines.extend(self.field_lines(name, definition, &by_hand.fields)?),
            _ => lines.extend(by_hand.fields.into_iter().map(|(field, words)| format!(" {field} {}", words.join(" ")))),
        }
        Ok(lines)
    }

    fn field_lines(
        &self,
        name: &str,
        definition: &Value,
        by_hand: &[(String, Vec<String>)],
    ) -> anyhow::Result<Vec<String>> {
        let Some(properties) = definition["properties"].as_object() else { return Ok(Vec::new()) };
        let mut lines = Vec::new();
        if properties.contains_key("apiVersion") && properties.contains_key("kind") {
            lines.push(" ... &meta.v1.TypeMeta".to_owned());
        }
        let required = texts(definition, "required");
        let defaults = &self.defaults.get(&full_name(name)).unwrap_or(&Value::Null)["properties"];
        for message_field in self.messages.get(&message_name(name)).context("no protobuf message of that name")? {
            let field = text(message_field, "field")?;
            let property = properties.get(field).with_context(|| format!("OpenAPI has no field {field}"))?;
            let kind = type_word(property)?;
            let mut marks = vec![format!("#{}", message_field["number"])];
            marks.extend(published_marks(field, property, &kind, required.contains(&field)));
            marks.extend(default_marks(&defaults[field]));
            let by_hand = by_hand.iter().filter(|(of, _)| of == field).flat_map(|(_, marks)| marks);
            let (removed, added): (Vec<&String>, Vec<&String>) = by_hand.partition(|mark| mark.starts_with('-'));
            marks.retain(|mark| !removed.iter().any(|removed| removed[1..] == **mark));
            marks.extend(added.into_iter().cloned());
            marks.extend(zero_marks(&kind, &marks));
            marks.retain(|mark| !removed.iter().any(|removed| removed[1..] == **mark));
            marks.sort_by_key(|mark| ORDER.iter().position(|kind| mark.starts_with(kind)));
            marks.dedup();
            lines.push(format!(" {field} {kind} {}", marks.join(" ")));
        }
        Ok(lines)
    }
}

/// The name of a Go type in another version of its package; some types are of the core package.
fn go_name(name: &str, from: &str, to: &str) -> String {
    const OF_CORE: [&str; 2] = ["ResourceName", "ConditionStatus"];
    let mut out = String::new();
    for (index, part) in name.split(&format!("{from}.")).enumerate() {
        if index > 0 {
            let is_core = OF_CORE.iter().any(|core| part.starts_with(core));
            out += &format!("{}.", if is_core { from } else { to });
        }
        out += part;
    }
    out
}

/// `kind=GROUP/VERSION/KIND` for each kind of the type.
fn kind_marks(definition: &Value) -> anyhow::Result<Vec<String>> {
    let kinds = definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
    kinds
        .map(|kind| Ok(format!("kind={}/{}/{}", text(kind, "group")?, text(kind, "version")?, text(kind, "kind")?)))
        .collect()
}

fn map_type(schema: &Value) -> Option<String> {
    schema["x-kubernetes-map-type"].as_str().map(|kind| format!("map={kind}"))
}

fn published_marks(field: &str, property: &Value, kind: &str, required: bool) -> Vec<String> {
    let mut marks = Vec::new();
    if required {
        marks.push("required".to_owned());
    }
    // Structs that may be missing are pointers in Go; what must be there is printed even when it is empty.
    let is_always_printed = required || PRINTED.contains(&field) || kind == "time";
    let is_pointer = kind.starts_with('&');
    if is_always_printed || is_pointer {
        marks.push(if is_always_printed { "!" } else { "?" }.to_owned());
    }
    if let Some(kind) = property["x-kubernetes-list-type"].as_str() {
        let keys = texts(property, "x-kubernetes-list-map-keys").join(",");
        marks.push(if keys.is_empty() { format!("list={kind}") } else { format!("list={kind}:{keys}") });
    }
    marks.extend(map_type(property));
    for (mark, extension) in [("patch", "x-kubernetes-patch-strategy"), ("key", "x-kubernetes-patch-merge-key")] {
        marks.extend(property[extension].as_str().map(|value| format!("{mark}={value}")));
    }
    let values = texts(property, "enum");
    if !values.is_empty() {
        marks.push(format!("enum={}", values.join(",")));
    }
    marks
}

/// The default of a field and of the elements of a list or map, as OpenAPI v3 gives it.
fn default_marks(property: &Value) -> Vec<String> {
    let element = [&property["items"], &property["additionalProperties"]];
    let element = element.into_iter().find_map(|element| element.get("default")).map(|value| format!("each={value}"));
    property.get("default").map(|value| format!("default={value}")).into_iter().chain(element).collect()
}

/// What cannot be missing defaults to the zero value of its type: elements, and fields that are always printed.
fn zero_marks(kind: &str, marks: &[String]) -> Option<String> {
    let has = |prefix: &str| marks.iter().any(|mark| mark.starts_with(prefix));
    if let Some(element) = kind.strip_prefix("[]").or_else(|| kind.strip_prefix("{}")) {
        return zero_value(element).filter(|_| !has("each=")).map(|zero| format!("each={zero}"));
    }
    let is_always_printed = marks.iter().any(|mark| mark == "!");
    zero_value(kind).filter(|_| is_always_printed && !has("default=")).map(|zero| format!("default={zero}"))
}

fn zero_value(kind: &str) -> Option<&'static str> {
    match kind {
        "string" => Some("\"\""),
        "bool" => Some("false"),
        "int32" | "int64" => Some("0"),
        _ => kind.starts_with('&').then_some("{}"),
    }
}

fn type_word(schema: &Value) -> anyhow::Result<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let word = WORDS.iter().find(|(known, _)| *known == name).map(|(_, word)| (*word).to_owned());
        return Ok(word.unwrap_or_else(|| format!("&{}", short_name(name))));
    }
    let format = schema["format"].as_str();
    Ok(match text(schema, "type")? {
        "array" => format!("[]{}", type_word(&schema["items"])?),
        "object" => format!("{{}}{}", type_word(&schema["additionalProperties"])?),
        "boolean" => "bool".to_owned(),
        "string" if format == Some("byte") => "bytes".to_owned(),
        "string" => "string".to_owned(),
        other => format.unwrap_or(other).to_owned(),
    })
}

fn short_name(full: &str) -> &str {
    let package = PACKAGES.iter().find(|(_, long)| full.starts_with(long));
    let Some((short, long)) = package else { return full };
    // The short prefix is the end of the long one.
    &full[long.len() - short.len()..]
}

fn full_name(short: &str) -> String {
    if short.starts_with("io.k8s.") {
        return short.to_owned();
    }
    let package = PACKAGES.iter().find(|(prefix, _)| short.starts_with(prefix));
    package.map_or_else(|| short.to_owned(), |(prefix, long)| format!("{long}{}", &short[prefix.len()..]))
}

/// How the protobuf sources call the type.
fn message_name(short: &str) -> String {
    full_name(short).replacen("io.k8s.", "k8s.io.", 1).replace('-', "_")
}
