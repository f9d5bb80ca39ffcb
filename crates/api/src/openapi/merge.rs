//! Merges OpenAPI v2 documents of aggregated servers into this server's.
//!
//! Only the paths of an aggregated group version are added, with the definitions and parameters they refer to. A definition
//! that differs from one of the same name is renamed, so that it cannot change the meaning of other servers' kinds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Source, paths, v2};

const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// What aggregated servers add to the document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Additions {
    pub(super) paths: BTreeMap<String, Value>,
    /// New definitions, and own ones that stand for more kinds now.
    pub(super) definitions: BTreeMap<String, Value>,
    pub(super) parameters: BTreeMap<String, Value>,
}

/// The part of a document that describes the paths with a prefix: these, and what they refer to.
pub fn v2_part(mut document: Value, prefix: &str) -> Value {
    let mut paths = remove_map(&mut document, "paths");
    paths.retain(|path, _| path.starts_with(prefix));
    let (mut definitions, mut parameters) =
        (remove_map(&mut document, "definitions"), remove_map(&mut document, "parameters"));
    let used = references(paths.values(), &definitions, &parameters);
    definitions.retain(|name, _| used.contains(&format!("{DEFINITIONS}{name}")));
    parameters.retain(|name, _| used.contains(&format!("{PARAMETERS}{name}")));
    let parts = [("paths", paths), ("definitions", definitions), ("parameters", parameters)];
    parts.into_iter().map(|(name, part)| (name.to_owned(), Value::Object(part))).collect()
}

fn remove_map(document: &mut Value, field: &str) -> Map<String, Value> {
    match document.get_mut(field).map(Value::take) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// All references in values, and in what these refer to.
fn references<'a>(
    values: impl Iterator<Item = &'a Value>,
    definitions: &'a Map<String, Value>,
    parameters: &'a Map<String, Value>,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Value> = values.collect();
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                open.extend(fields.values());
                let Some(reference) = fields.get("$ref").and_then(Value::as_str) else { continue };
                if found.insert(reference.to_owned()) {
                    let definition = reference.strip_prefix(DEFINITIONS).and_then(|name| definitions.get(name));
                    let parameter = reference.strip_prefix(PARAMETERS).and_then(|name| parameters.get(name));
                    open.extend(definition.or(parameter));
                }
            }
            _ => {}
        }
    }
    found
}

impl Additions {
    /// Merges parts as [`v2_part`] returns them, the most important first: of two with the same path, the first wins.
    pub fn merge<'v>(source: &Source<'_>, parts: impl IntoIterator<Item = &'v Value>) -> Additions {
        let items = paths::all(source.catalogue);
        let own_paths: BTreeSet<&str> = items.iter().map(|item| item.path.as_str()).collect();
        let own_parameters = v2::shared_parameters(&items);
        let mut all = Additions::default();
        for part in parts {
            all.add(source, &own_paths, &own_parameters, part.clone());
        }
        all
    }

    fn add(
        &mut self,
        source: &Source<'_>,
        own_paths: &BTreeSet<&str>,
        own_parameters: &Map<String, Value>,
        mut part: Value,
    ) {
        if let Some(Value::Object(paths)) = part.get_mut("paths") {
            paths.retain(|path, _| !own_paths.contains(path.as_str()) && !self.paths.contains_key(path));
        }
        // Definitions that only removed paths refer to are not added.
        let mut part = v2_part(part, "");
        let (definitions, parameters) = (remove_map(&mut part, "definitions"), remove_map(&mut part, "parameters"));
        let existing = |name: &str| {
            let own = || Some(v2::definition(source, name)).filter(|own| !own.is_null());
            self.definitions.get(name).cloned().or_else(own)
        };
        let mut renames = renames(&definitions, DEFINITIONS, existing, |a, b| without_kinds(a) == without_kinds(b));
        let existing = |name: &str| self.parameters.get(name).or_else(|| own_parameters.get(name)).cloned();
        renames.extend(self::renames(&parameters, PARAMETERS, existing, |a, b| a == b));
        for (name, definition) in renamed(definitions, DEFINITIONS, &renames) {
            let known = self.definitions.get(&name).cloned().or_else(|| Some(v2::definition(source, &name)));
            match known.filter(|known| !known.is_null()) {
                Some(known) => self.definitions.extend(with_kinds_of(known, &definition).map(|merged| (name, merged))),
                None => drop(self.definitions.insert(name, definition)),
            }
        }
        for (name, parameter) in renamed(parameters, PARAMETERS, &renames) {
            if !own_parameters.contains_key(&name) {
                self.parameters.entry(name).or_insert(parameter);
            }
        }
        let mut paths = Value::Object(remove_map(&mut part, "paths"));
        replace_references(&mut paths, &renames);
        if let Value::Object(paths) = paths {
            self.paths.extend(paths);
        }
    }
}

/// New references for those whose name has another meaning already.
fn renames(
    given: &Map<String, Value>,
    prefix: &str,
    existing: impl Fn(&str) -> Option<Value>,
    is_same: impl Fn(&Value, &Value) -> bool,
) -> BTreeMap<String, String> {
    let mut renames: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in given {
        if existing(name).is_none_or(|existing| is_same(&existing, value)) {
            continue;
        }
        let mut number = 2;
        let free = loop {
            let candidate = format!("{name}_v{number}");
            let reference = format!("{prefix}{candidate}");
            let is_free = match existing(&candidate) {
                Some(existing) => is_same(&existing, value),
                None => !given.contains_key(&candidate) && !renames.values().any(|used| *used == reference),
            };
            if is_free {
                break reference;
            }
            number += 1;
        };
        renames.insert(format!("{prefix}{name}"), free);
    }
    renames
}

/// The entries under their new names, with new references.
fn renamed(given: Map<String, Value>, prefix: &str, renames: &BTreeMap<String, String>) -> Vec<(String, Value)> {
    let rename = |(name, mut value): (String, Value)| {
        replace_references(&mut value, renames);
        let new = renames.get(&format!("{prefix}{name}")).and_then(|new| new.strip_prefix(prefix));
        (new.map_or(name.clone(), str::to_owned), value)
    };
    given.into_iter().map(rename).collect()
}

fn replace_references(value: &mut Value, renames: &BTreeMap<String, String>) {
    if renames.is_empty() {
        return;
    }
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get_mut("$ref")
                    && let Some(new) = renames.get(reference.as_str())
                {
                    *reference = new.clone();
                }
                open.extend(fields.values_mut());
            }
            _ => {}
        }
    }
}

fn without_kinds(definition: &Value) -> Value {
    let mut definition = definition.clone();
    if let Value::Object(fields) = &mut definition {
        fields.remove(KINDS);
    }
    definition
}

/// A definition with the kinds of another that is the same otherwise; `None` if it has them all.
fn with_kinds_of(mut known: Value, other: &Value) -> Option<Value> {
    let added = other.get(KINDS).and_then(Value::as_array)?;
    let mut kinds = known.get(KINDS).and_then(Value::as_array).cloned().unwrap_or_default();
    let before = kinds.len();
    for kind in added {
        if !kinds.contains(kind) {
            kinds.push(kind.clone());
        }
    }
    if kinds.len() == before {
        return None;
    }
    known[KINDS] = kinds.into();
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use serde_json::json;

    fn document(meta: Value) -> Value {
        json!({
            "swagger": "2.0",
            "paths": {
                "/apis/ships.example/v1/": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Ship"}}}}},
                "/apis/ships.example/v1/ships": {"parameters": [{"$ref": "#/parameters/pretty"}]},
                "/apis/other.example/v1/": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Other"}}}}},
                "/api/v1/secrets": {"get": {}},
            },
            "definitions": {
                "Ship": {"properties": {"metadata": {"$ref": "#/definitions/Meta"}, "next": {"$ref": "#/definitions/Ship"}}},
                "Meta": meta,
                "Other": {"type": "object"},
                "Unused": {"type": "object"},
            },
            "parameters": {"pretty": {"name": "pretty", "in": "query"}, "unused": {}},
        })
    }

    fn part(meta: Value) -> Value {
        v2_part(document(meta), "/apis/ships.example/v1/")
    }

    #[test]
    fn only_what_the_group_version_needs_is_kept() {
        let part = part(json!({"type": "object"}));
        let names = |field: &str| part[field].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names("paths"), "/apis/ships.example/v1/ /apis/ships.example/v1/ships");
        assert_eq!(names("definitions"), "Meta Ship");
        assert_eq!(names("parameters"), "pretty");
        assert_eq!(v2_part(json!([1]), "/"), json!({"paths": {}, "definitions": {}, "parameters": {}}));
    }

    #[test]
    fn conflicts_rename_the_added_definitions() {
        let catalogue = Catalogue::built_in();
        let source = Source { catalogue: &catalogue, custom: &[], describe: &|_, _| None };
        let fleet = |meta: &str| {
            let text = part(json!({"type": meta})).to_string();
            serde_json::from_str(&text.replace("ships.example", "fleet.example").replace("Ship", "Fleet")).unwrap()
        };
        let (same, other): (Value, Value) = (fleet("object"), fleet("string"));
        let first = part(json!({"type": "object"}));
        let merged = Additions::merge(&source, [&first, &same]);
        assert_eq!(merged.definitions.keys().collect::<Vec<_>>(), ["Fleet", "Meta", "Ship"]);
        let merged = Additions::merge(&source, [&first, &other]);
        assert_eq!(merged.definitions.keys().collect::<Vec<_>>(), ["Fleet", "Meta", "Meta_v2", "Ship"]);
        let reference = &merged.definitions["Fleet"]["properties"]["metadata"]["$ref"];
        assert_eq!(reference, "#/definitions/Meta_v2");
        assert_eq!(merged.definitions["Ship"]["properties"]["metadata"]["$ref"], "#/definitions/Meta");
        assert_eq!(merged.paths.len(), 4);
        // A second document with the same paths changes nothing.
        let again = Additions::merge(&source, [&first, &part(json!({"type": "integer"}))]);
        assert_eq!(again, Additions::merge(&source, [&first]));
    }

    #[test]
    fn own_paths_and_definitions_keep_their_meaning() {
        let catalogue = Catalogue::built_in();
        let source = Source { catalogue: &catalogue, custom: &[], describe: &|_, _| None };
        const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let hostile = json!({
            "paths": {
                "/api/v1/namespaces/{namespace}/secrets": {"get": {"operationId": "stolen"}},
                "/apis/e/v1/": {"get": {"schema": {"$ref": format!("#/definitions/{META}")}}},
            },
            "definitions": {META: {"type": "string"}},
        });
        let merged = Additions::merge(&source, [&hostile]);
        assert_eq!(merged.paths.keys().collect::<Vec<_>>(), ["/apis/e/v1/"]);
        assert_eq!(merged.definitions.keys().cloned().collect::<Vec<_>>(), [format!("{META}_v2")]);
        let json: Value = serde_json::from_slice(&v2::v2_json(&source, &merged)).unwrap();
        assert_eq!(json["definitions"][META]["type"], "object");
        assert_eq!(json["paths"]["/apis/e/v1/"]["get"]["schema"]["$ref"], format!("#/definitions/{META}_v2"));
        assert!(json["paths"]["/api/v1/secrets"].is_object());
        assert!(v2::v2_protobuf(&source, &merged).len() > v2::v2_protobuf(&source, &Additions::default()).len());
    }

    #[test]
    fn definitions_of_several_kinds_list_them_all() {
        let kind = |name: &str| json!({KINDS: [{"group": "", "version": "v1", "kind": name}], "type": "object"});
        assert_eq!(with_kinds_of(kind("A"), &kind("A")), None);
        assert_eq!(with_kinds_of(kind("A"), &kind("B")).unwrap()[KINDS].as_array().unwrap().len(), 2);
    }
}
