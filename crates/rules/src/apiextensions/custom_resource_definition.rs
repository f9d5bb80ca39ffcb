//! CustomResourceDefinition: a kind that a user defines.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names as name_forms;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::hoisted::Hoisted;
use super::schema::{self, Strictness};
use super::{conversion, defaults, field_path, names, schema_fields, structural, versions};
use crate::common::checks;
use crate::kind::{self, Column, ColumnPriority, Context, Description, KindRules, OBJECT_META};

const APPROVED: &str = "api-approved.kubernetes.io";
const MAX_SELECTABLE: usize = 8;
const MAX_WARNING_LENGTH: usize = 256;
const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";
const STRING_FORMATS: [&str; 24] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
];

pub struct CustomResourceDefinition;

impl KindRules for CustomResourceDefinition {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let kind = object.text(&["spec", "names", "kind"]).to_owned();
        if object.text(&["spec", "names", "singular"]).is_empty() {
            object.set(&["spec", "names", "singular"], kind.to_lowercase());
        }
        if object.text(&["spec", "names", "listKind"]).is_empty() && !kind.is_empty() {
            object.set(&["spec", "names", "listKind"], format!("{kind}List"));
        }
        object.set_default(&["spec", "conversion"], json!({"strategy": "None"}));
        let service = ["spec", "conversion", "webhook", "clientConfig", "service"];
        if object.has(&service)
            && let Some(service) = object.find(&service)
        {
            service.set_default(&["port"], 443);
        }
        if object.items(&["status", "storedVersions"]).is_empty() {
            add_stored_version(object);
        }
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], self.empty_status());
        add_stored_version(object);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            kind::keep_all_but_status(object, old);
        } else {
            kind::keep_field(object, old, "status");
            add_stored_version(object);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            names::validate(&mut errors, &Path::root("status.acceptedNames"), &object["status"]["acceptedNames"]);
            return errors;
        }
        if old.is_none() {
            let spec = &object["spec"];
            let required = format!("{}.{}", spec.text(&["names", "plural"]), spec.text(&["group"]));
            let name = object.text(&["metadata", "name"]);
            if name != required && !name.is_empty() {
                let detail = "must be spec.names.plural+\".\"+spec.group";
                errors.invalid(&Path::root("metadata.name"), name, detail);
            }
        }
        validate_spec(&mut errors, &object["spec"], old);
        names::validate(&mut errors, &Path::root("status.acceptedNames"), &object["status"]["acceptedNames"]);
        validate_stored_versions(&mut errors, object);
        validate_approval(&mut errors, object, old);
        let keeps = |object: &Value| object.at(&["spec", "preserveUnknownFields"]) == &Value::Bool(true);
        if keeps(object) && !old.is_some_and(keeps) {
            let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
            errors.invalid(&Path::root("spec.preserveUnknownFields"), true, detail);
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        if context.subresource == "status" {
            return Vec::new();
        }
        let before = old.map(|old| unknown_formats(&old["spec"])).unwrap_or_default();
        let formats = unknown_formats(&object["spec"]);
        let new = formats.into_iter().filter(|format| !before.contains(format));
        new.map(|format| format!("unrecognized format {format:?}")).collect()
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column {
                    name: "Name",
                    kind: "string",
                    format: "name",
                    description: Description::Field(OBJECT_META, "name"),
                    priority: ColumnPriority::Always,
                },
                Column {
                    name: "Created At",
                    kind: "date",
                    format: "",
                    description: Description::Field(OBJECT_META, "creationTimestamp"),
                    priority: ColumnPriority::Always,
                },
            ]
        }
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        vec![object["metadata"]["name"].clone(), object["metadata"]["creationTimestamp"].clone()]
    }
}

/// The version that objects are stored in joins those that objects may be stored in.
fn add_stored_version(object: &mut Value) {
    let versions = object.items(&["spec", "versions"]);
    let Some(stored) = versions.iter().find(|version| version["storage"] == true) else { return };
    let name = stored["name"].clone();
    let mut all: Vec<Value> = object.items(&["status", "storedVersions"]).to_vec();
    if !all.contains(&name) {
        all.push(name);
        object.set(&["status", "storedVersions"], all);
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    let old_spec = old.map(|old| &old["spec"]);
    let hoisted = Hoisted::new(spec);
    let old_hoisted = old_spec.map(Hoisted::new);
    let keeps_unknown = spec["preserveUnknownFields"] == true;
    validate_group(errors, &path.child("group"), spec.text(&["group"]));
    match spec.text(&["scope"]) {
        "" => errors.required(&path.child("scope"), ""),
        scope => checks::one_of(errors, &path.child("scope"), scope, &["Cluster", "Namespaced"]),
    }
    let lacked_schemas = old_hoisted.as_ref().is_some_and(lacks_schema);
    if !lacked_schemas || !keeps_unknown {
        validate_has_schemas(errors, &hoisted, lacked_schemas);
    }
    if keeps_unknown && has_default(&hoisted) {
        let detail = "must be false in order to use defaults in the schema";
        errors.invalid(&path.child("preserveUnknownFields"), true, detail);
    }
    let strictness = strictness(&hoisted, old_hoisted.as_ref(), keeps_unknown);
    validate_versions(errors, &hoisted, strictness, old_hoisted.as_ref());
    for field in ["plural", "singular", "kind", "listKind"] {
        if spec.text(&["names", field]).is_empty() {
            let names = path.child("names");
            errors.required(&names.child(field), "");
        }
    }
    names::validate(errors, &path.child("names"), &spec["names"]);
    validate_common(errors, &hoisted, strictness, old_hoisted.as_ref());
    let strategy = spec.text(&["conversion", "strategy"]);
    if spec.has(&["conversion"]) && strategy != "None" && keeps_unknown {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.invalid(&path.child("conversion.strategy"), strategy, detail);
    }
    let known_reviews = old_spec.is_none_or(|old| conversion::has_known_review(&old["conversion"]));
    conversion::validate(errors, &path.child("conversion"), &spec["conversion"], known_reviews);
    if let (Some(old), Some(old_spec)) = (old, old_spec) {
        let mut fixed = vec!["group", "names.plural"];
        if is_established(old) {
            fixed.splice(0..0, ["scope", "names.kind"]);
        }
        for field in fixed {
            let steps: Vec<&str> = field.split('.').collect();
            checks::immutable(errors, &path.child(field), spec.at(&steps), old_spec.at(&steps));
        }
    }
}

fn is_established(object: &Value) -> bool {
    let mut conditions = object.items(&["status", "conditions"]).iter();
    conditions.any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

fn validate_group(errors: &mut Errors, path: &Path<'_>, group: &str) {
    let wrong = name_forms::dns_subdomain(group);
    if group.is_empty() {
        errors.required(path, "");
    } else if !wrong.is_empty() {
        errors.invalid(path, group, wrong.join(","));
    } else if !group.contains('.') {
        errors.invalid(path, group, "should be a domain with at least one dot");
    }
}

fn lacks_schema(hoisted: &Hoisted<'_>) -> bool {
    !hoisted.common("schema").has(&["openAPIV3Schema"])
        && hoisted.versions().iter().any(|version| !version.has(&["schema", "openAPIV3Schema"]))
}

/// Every version needs a schema. One that is not served may go on without, where some already did.
fn validate_has_schemas(errors: &mut Errors, hoisted: &Hoisted<'_>, lacked_schemas: bool) {
    let detail = if lacked_schemas { "because otherwise all fields are pruned" } else { "" };
    if hoisted.common("schema").has(&["openAPIV3Schema"]) {
        return;
    }
    let path = Path::root("spec");
    for (index, version) in hoisted.versions().iter().enumerate() {
        let matters = !lacked_schemas || version["served"] == true;
        if matters && !hoisted.own(version, "schema").has(&["openAPIV3Schema"]) {
            let version = path.item("versions", index);
            errors.required(&version.child("schema.openAPIV3Schema"), detail);
        }
    }
}

fn has_default(hoisted: &Hoisted<'_>) -> bool {
    let mut schemas = hoisted.schemas().into_iter();
    schemas.any(|schema| schema_fields::any(schema, &mut |schema| schema.has(&["default"])))
}

/// What an update tolerates because the definition already had it.
fn strictness(new: &Hoisted<'_>, old: Option<&Hoisted<'_>>, keeps_unknown: bool) -> Strictness {
    let had = |ask: &mut dyn FnMut(&Value) -> bool| {
        old.is_some_and(|old| old.schemas().into_iter().any(|schema| schema_fields::any(schema, ask)))
    };
    let had_unstructural = old.is_some_and(|old| {
        old.schemas().into_iter().any(|schema| {
            structural::unsupported(schema).is_some() || !structural::validate(&Path::default(), schema).is_empty()
        })
    });
    let has_extension = new.schemas().into_iter().any(|schema| {
        schema_fields::any(schema, &mut |schema| {
            let fields = schema.as_object().into_iter().flatten();
            fields.into_iter().any(|(name, _)| name.starts_with("x-kubernetes-") && name != "x-kubernetes-map-type")
        })
    });
    Strictness {
        valid_types: !had(&mut |schema| {
            let kind = schema.text(&["type"]);
            !matches!(kind, "" | "array" | "boolean" | "integer" | "number" | "object" | "string")
        }),
        structural: !had_unstructural || !keeps_unknown || has_extension || has_default(new),
        pruned_defaults: !old.is_some_and(|old| old.schemas().into_iter().any(defaults::any_unknown)),
        atomic_sets: !had(&mut schema::has_non_atomic_set),
        sound_map_keys: !had(&mut |schema| {
            let mut errors = Errors::new();
            schema::validate_map_keys(&mut errors, &Path::default(), schema);
            !errors.is_empty()
        }),
    }
}

fn validate_versions(errors: &mut Errors, hoisted: &Hoisted<'_>, strictness: Strictness, old: Option<&Hoisted<'_>>) {
    let path = Path::root("spec");
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (index, version) in hoisted.versions().iter().enumerate() {
        let path = path.item("versions", index);
        let name = version.text(&["name"]);
        unique &= seen.insert(name);
        let wrong = name_forms::dns_1035_label(name);
        if !wrong.is_empty() {
            errors.invalid(&path.child("name"), name, wrong.join(","));
        }
        validate_deprecation(errors, &path.child("deprecationWarning"), version);
        let own = |field: &str| hoisted.own(version, field);
        let subresources = version.get("subresources").unwrap_or(&Value::Null);
        let has_status = subresources.has(&["status"]);
        schema::validate(errors, &path.child("schema"), own("schema"), has_status, strictness);
        validate_subresources(errors, &path.child("subresources"), own("subresources"));
        validate_columns(errors, &path, own("additionalPrinterColumns"));
        let selectable = own("selectableFields");
        if !selectable.items(&[]).is_empty() {
            let at = path.child("selectableFields");
            let schema = own("schema").at(&["openAPIV3Schema"]);
            if schema.is_null() {
                let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
                errors.invalid(&at, "", detail);
            } else {
                let before = old.and_then(|old| {
                    old.versions()
                        .iter()
                        .find(|old| old["name"] == version["name"])
                        .map(|of| old.own(of, "selectableFields"))
                });
                validate_selectable(errors, &at, selectable, schema, before == Some(selectable));
            }
        }
    }
    let invalid_versions = |errors: &mut Errors, detail: &str| {
        errors.invalid_verbatim(&path.child("versions"), checks::escaped(&versions::to_json(hoisted)), detail)
    };
    if !unique {
        invalid_versions(errors, "must contain unique version names");
    }
    if hoisted.versions().iter().filter(|version| version["storage"] == true).count() != 1 {
        invalid_versions(errors, "must have exactly one version marked as storage version");
    }
    // The first version also counts as the version of the old form, which had only one.
    let first = hoisted.versions().first().map_or("", |version| version.text(&["name"]));
    let wrong = name_forms::dns_1035_label(first);
    if !first.is_empty() && !wrong.is_empty() {
        errors.invalid(&path.child("version"), first, wrong.join(","));
    }
}

/// What all versions have in common.
fn validate_common(errors: &mut Errors, hoisted: &Hoisted<'_>, strictness: Strictness, old: Option<&Hoisted<'_>>) {
    let path = Path::root("spec");
    let any_status = hoisted.versions().iter().any(|version| version.has(&["subresources", "status"]));
    schema::validate(errors, &path.child("validation"), hoisted.common("schema"), any_status, strictness);
    validate_subresources(errors, &path.child("subresources"), hoisted.common("subresources"));
    validate_columns(errors, &path, hoisted.common("additionalPrinterColumns"));
    let selectable = hoisted.common("selectableFields");
    if !selectable.items(&[]).is_empty() {
        let at = path.child("selectableFields");
        if hoisted.common("schema").is_null() {
            errors.invalid(&at, "", "may only be set when validations.schema is included");
        } else {
            let schema = hoisted.common("schema").at(&["openAPIV3Schema"]);
            let unchanged = old.is_some_and(|old| old.common("selectableFields") == selectable);
            validate_selectable(errors, &at, selectable, schema, unchanged);
        }
    }
}

fn validate_deprecation(errors: &mut Errors, path: &Path<'_>, version: &Value) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    if version["deprecated"] != true {
        errors.invalid(path, warning, "can only be set for deprecated versions");
        return;
    }
    if warning.len() > MAX_WARNING_LENGTH {
        errors.invalid(path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(path, warning, "must not be an empty string");
    }
    let unprintable = |c: char| c.is_control() || (c.is_whitespace() && c != ' ');
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| unprintable(*c)) {
        let detail = "must only contain printable UTF-8 characters; non-printable character found at index";
        errors.invalid(path, warning, format!("{detail} {index}"));
    }
}

fn validate_subresources(errors: &mut Errors, path: &Path<'_>, subresources: &Value) {
    let scale = &subresources["scale"];
    if scale.is_null() {
        return;
    }
    for (field, below) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let text = scale.text(&[field]);
        let scale_at = path.child("scale");
        let at = scale_at.child(field);
        if text.is_empty() {
            errors.required(&at, "");
        } else if is_simple_path(errors, &at, text) && !text.starts_with(below) {
            let under = &below[..below.len() - 1];
            errors.invalid(&at, text, format!("should be a json path under {under}"));
        }
    }
    let selector = scale.text(&["labelSelectorPath"]);
    let at = path.child("scale.labelSelectorPath");
    if !selector.is_empty()
        && is_simple_path(errors, &at, selector)
        && !selector.starts_with(".spec.")
        && !selector.starts_with(".status.")
    {
        errors.invalid(&at, selector, "should be a json path under either .spec or .status");
    }
}

fn is_simple_path(errors: &mut Errors, path: &Path<'_>, text: &str) -> bool {
    let simple = text.starts_with('.');
    if !simple {
        errors.invalid(path, text, "must be a simple json path starting with .");
    }
    simple
}

fn validate_columns(errors: &mut Errors, path: &Path<'_>, columns: &Value) {
    for (index, column) in columns.items(&[]).iter().enumerate() {
        let path = path.item("additionalPrinterColumns", index);
        if column.text(&["name"]).is_empty() {
            errors.required(&path.child("name"), "");
        }
        let detail = format!("must be one of {COLUMN_TYPES}");
        match column.text(&["type"]) {
            "" => errors.required(&path.child("type"), detail),
            kind if COLUMN_TYPES.split(',').any(|known| known == kind) => {}
            kind => errors.invalid(&path.child("type"), kind, detail),
        }
        let format = column.text(&["format"]);
        if !format.is_empty() && !COLUMN_FORMATS.split(',').any(|known| known == format) {
            errors.invalid(&path.child("format"), format, format!("must be one of {COLUMN_FORMATS}"));
        }
        match column.text(&["jsonPath"]) {
            "" => errors.required(&path.child("JSONPath"), ""),
            text => drop(is_simple_path(errors, &path.child("JSONPath"), text)),
        }
    }
}

fn validate_selectable(errors: &mut Errors, path: &Path<'_>, fields: &Value, schema: &Value, unchanged: bool) {
    let mut seen = BTreeSet::new();
    for (index, field) in fields.items(&[]).iter().enumerate() {
        let text = field.text(&["jsonPath"]);
        let item = path.index(index);
        let at = item.child("jsonPath");
        if text.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let (steps, found) = match field_path::resolve(text, schema, false) {
            Ok(found) => found,
            Err(wrong) => {
                errors.invalid(&at, text, format!("is an invalid path: {wrong}"));
                continue;
            }
        };
        if steps.first().is_some_and(|first| first == "metadata") {
            errors.invalid(&at, text, "must not point to fields in metadata");
        }
        let kind = found.map_or("", |schema| schema.text(&["type"]));
        if !matches!(kind, "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats \
                        are allowed.";
            errors.invalid(&at, text, detail);
        }
        if !seen.insert(steps) {
            errors.duplicate(&at, text);
        }
    }
    if seen.len() > MAX_SELECTABLE && !unchanged {
        errors.too_many(path, seen.len(), MAX_SELECTABLE);
    }
}

fn validate_stored_versions(errors: &mut Errors, object: &Value) {
    let path = Path::root("status.storedVersions");
    let stored = object.at(&["status", "storedVersions"]);
    let names: Vec<&str> = stored.items(&[]).iter().filter_map(Value::as_str).collect();
    if names.is_empty() {
        errors.invalid(&path, stored.clone(), "must have at least one stored version");
        return;
    }
    let versions = object.items(&["spec", "versions"]);
    for version in versions {
        let name = version.text(&["name"]);
        if version["storage"] == true && !names.contains(&name) {
            errors.invalid(&path, stored.clone(), format!("must have the storage version {name}"));
        }
    }
    for (index, name) in names.iter().enumerate() {
        if !versions.iter().any(|version| version.text(&["name"]) == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a \
                 storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.invalid(&path.index(index), *name, detail);
        }
    }
}

#[derive(PartialEq)]
enum Approval {
    Missing,
    Invalid,
    Given,
    Bypassed,
}

fn approval(object: &Value) -> Approval {
    match object.text(&["metadata", "annotations", APPROVED]) {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Bypassed,
        text => match text.split_once("://") {
            Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/') => Approval::Given,
            _ => Approval::Invalid,
        },
    }
}

/// Groups of the Kubernetes community need its approval.
fn validate_approval(errors: &mut Errors, object: &Value, old: Option<&Value>) {
    let group = object.text(&["spec", "group"]);
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    let state = approval(object);
    if !is_protected || old.is_some_and(|old| approval(old) == state) {
        return;
    }
    let annotations = Path::root("metadata.annotations");
    let path = annotations.key(APPROVED);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let needs = format!("protected groups must have approval annotation {APPROVED:?}");
    match state {
        Approval::Missing => errors.required(&path, format!("{needs}, {see}")),
        Approval::Invalid => {
            let detail = format!("{needs} with either a URL or a reason starting with \"unapproved\", {see}");
            errors.invalid(&path, object.text(&["metadata", "annotations", APPROVED]), detail);
        }
        Approval::Given | Approval::Bypassed => {}
    }
}

/// Formats in a definition's schemas that mean nothing here.
fn unknown_formats(spec: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for schema in Hoisted::new(spec).schemas() {
        schema_fields::any(schema, &mut |schema| {
            let format = schema.text(&["format"]);
            let known = match schema.text(&["type"]) {
                _ if format.is_empty() => true,
                "" | "string" => {
                    let plain = format.replace('-', "");
                    STRING_FORMATS.contains(&plain.as_str()) || matches!(plain.as_str(), "k8sshortname" | "k8slongname")
                }
                "integer" => matches!(format, "int32" | "int64"),
                "number" => matches!(format, "float" | "double"),
                _ => false,
            };
            if !known {
                unknown.push(format.to_owned());
            }
            false
        });
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages};

    fn definition(versions: Value) -> Value {
        let names = json!({"plural": "ships", "kind": "Ship"});
        let object = json!({"metadata": {"name": "ships.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": names, "versions": versions}});
        let mut object = defaulted(&CustomResourceDefinition, object);
        CustomResourceDefinition.prepare_create(&mut object, &context("v1"));
        object
    }

    fn version(name: &str, storage: bool) -> Value {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}})
    }

    #[test]
    fn defaults_are_set() {
        let object = definition(json!([version("v1", true)]));
        assert_eq!(
            object["spec"]["names"],
            json!({"plural": "ships", "kind": "Ship", "singular": "ship", "listKind": "ShipList"})
        );
        assert_eq!(object["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(object["status"]["storedVersions"], json!(["v1"]));
        assert!(messages(&CustomResourceDefinition, &object, None).is_empty());
    }

    #[test]
    fn wrong_definitions_are_reported() {
        let mut elsewhere = definition(json!([version("v1", true)]));
        elsewhere["metadata"]["name"] = json!("boats.example.com");
        let mut approved = definition(json!([version("v1", true)]));
        approved["spec"]["group"] = json!("x.k8s.io");
        approved["metadata"]["name"] = json!("ships.x.k8s.io");
        for (object, wrong) in [
            (
                elsewhere,
                vec!["metadata.name: Invalid value: \"boats.example.com\": must be spec.names.plural+\".\"+spec.group"],
            ),
            (
                approved,
                vec![
                    "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval \
                     annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
                ],
            ),
            (
                definition(json!([{"name": "v1", "served": true, "storage": true}])),
                vec!["spec.versions[0].schema.openAPIV3Schema: Required value"],
            ),
            (
                definition(json!([version("v1", true), version("v2", true)])),
                vec![
                    "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":true,\"Deprecated\":false,\
                     \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\
                     \"SelectableFields\":null},{\"Name\":\"v2\",\"Served\":true,\"Storage\":true,\"Deprecated\":false,\
                     \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\
                     \"SelectableFields\":null}]: must have exactly one version marked as storage version",
                    "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2",
                ],
            ),
            (
                definition(json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {}}}])),
                vec!["spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root"],
            ),
        ] {
            assert_eq!(messages(&CustomResourceDefinition, &object, None), wrong);
        }
    }

    #[test]
    fn names_stay_once_established() {
        let mut old = definition(json!([version("v1", true)]));
        old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        let mut new = old.clone();
        new["spec"]["scope"] = json!("Cluster");
        assert_eq!(
            messages(&CustomResourceDefinition, &new, Some(&old)),
            ["spec.scope: Invalid value: \"Cluster\": field is immutable"]
        );
    }

    #[test]
    fn odd_formats_are_warned_of() {
        let mut object = definition(json!([version("v1", true)]));
        let properties =
            json!({"a": {"type": "string", "format": "date-time"}, "b": {"type": "string", "format": "odd"}});
        object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = properties;
        let warnings = CustomResourceDefinition.warnings(&object, None, &context("v1"));
        assert_eq!(warnings, ["unrecognized format \"odd\""]);
    }
}
