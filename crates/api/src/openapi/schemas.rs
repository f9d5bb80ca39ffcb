//! The schemas of types, in the form of either version of OpenAPI.

use serde_json::{Map, Value, json};

use super::Describe;
use crate::schema::{Field, ListKind, MapType, NodeRef, PatchStrategy, Schema, Shape, TypeInfo};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Definitions; no defaults, and references may have siblings.
    V2,
    /// Components; with defaults, and references without siblings.
    V3,
}

impl Style {
    /// A reference to a type.
    pub fn reference(self, type_name: &str) -> Value {
        match self {
            Style::V2 => json!({"$ref": format!("#/definitions/{type_name}")}),
            Style::V3 => json!({"$ref": format!("#/components/schemas/{type_name}")}),
        }
    }
}

/// Writes the schemas of one document.
pub(super) struct Schemas<'a> {
    pub style: Style,
    pub describe: Describe<'a>,
    /// If a type belongs to many kinds, only those of this group version and the core ones are listed.
    pub only: Option<(&'a str, &'a str)>,
}

impl Schemas<'_> {
    /// The schema of a named type.
    pub fn of_type(&self, schema: &Schema, info: &TypeInfo) -> Value {
        let node = schema.node(info.node);
        let mut out = self.shape(node);
        if let Some(description) = self.description(&info.name, "") {
            out.insert("description".into(), description.into());
        }
        if let Shape::Object(object) = &node.get().shape {
            let required: Vec<Value> =
                object.fields().iter().filter(|field| field.required).map(|field| (*field.name).into()).collect();
            if !required.is_empty() {
                out.insert("required".into(), required.into());
            }
            let properties: Map<String, Value> = object
                .fields()
                .iter()
                .map(|field| (field.name.to_string(), self.field(node, &info.name, field)))
                .collect();
            if !properties.is_empty() {
                out.insert("properties".into(), properties.into());
            }
        }
        self.add_kinds(info, &mut out);
        if let Some(unions) = &info.unions {
            out.insert("x-kubernetes-unions".into(), unions.clone());
        }
        if node.get().map_type == Some(MapType::Atomic) {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        Value::Object(out)
    }

    fn description(&self, type_name: &str, field: &str) -> Option<String> {
        (self.describe)(type_name, field).or_else(|| self.list_description(type_name, field))
    }

    /// The description of lists that have none of their own.
    fn list_description(&self, type_name: &str, field: &str) -> Option<String> {
        let kind = type_name.strip_suffix("List")?.rsplit('.').next()?;
        match field {
            "" => Some(format!("{kind}List is a list of {kind} objects.")),
            "items" => Some(format!("The {kind} objects of the list.")),
            "metadata" => Some("What holds for the list: its resource version, and how to continue it.".to_owned()),
            "apiVersion" | "kind" => (self.describe)("io.k8s.api.core.v1.Pod", field),
            _ => None,
        }
    }

    fn add_kinds(&self, info: &TypeInfo, out: &mut Map<String, Value>) {
        let many = info.kinds.len() > 1;
        let named = info.kinds.iter().filter(|kind| match self.only {
            Some((group, version)) if many => {
                kind.group.is_empty() || (&*kind.group, &*kind.version) == (group, version)
            }
            _ => true,
        });
        let kinds: Vec<Value> =
            named.map(|kind| json!({"group": &*kind.group, "version": &*kind.version, "kind": &*kind.kind})).collect();
        if !kinds.is_empty() {
            out.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
    }

    fn field(&self, parent: NodeRef<'_>, type_name: &str, field: &Field) -> Value {
        let node = parent.at(field.node);
        let mut out = match &node.get().name {
            Some(_) => Map::new(),
            None => self.shape(node),
        };
        if let Some(description) = self.description(type_name, &field.name) {
            out.insert("description".into(), description.into());
        }
        if !field.values.is_empty() {
            let values: Vec<Value> = field.values.iter().map(|value| (**value).into()).collect();
            out.insert("enum".into(), values.into());
        }
        if let (Style::V3, Some(default)) = (self.style, &field.default) {
            out.insert("default".into(), default.clone());
        }
        self.add_marks(node, field, &mut out);
        if let Some(default) = &field.element_default {
            self.set_element_default(&mut out, default);
        }
        add_exceptions(type_name, &field.name, &mut out);
        match &node.get().name {
            Some(name) => self.with_reference(out, name),
            None => Value::Object(out),
        }
    }

    /// In v3 a reference with siblings is wrapped.
    fn with_reference(&self, mut out: Map<String, Value>, type_name: &str) -> Value {
        let reference = self.style.reference(type_name);
        match (self.style, out.is_empty(), reference) {
            (_, true, reference) => reference,
            (Style::V3, false, reference) => {
                out.insert("allOf".into(), json!([reference]));
                Value::Object(out)
            }
            (Style::V2, false, reference) => {
                out.extend(reference.as_object().cloned().unwrap_or_default());
                Value::Object(out)
            }
        }
    }

    fn set_element_default(&self, out: &mut Map<String, Value>, default: &Value) {
        if self.style == Style::V2 {
            return;
        }
        for key in ["items", "additionalProperties"] {
            let Some(Value::Object(element)) = out.get_mut(key) else { continue };
            if let Some(reference) = element.remove("$ref") {
                element.insert("allOf".into(), json!([{"$ref": reference}]));
            }
            element.insert("default".into(), default.clone());
        }
    }

    fn add_marks(&self, node: NodeRef<'_>, field: &Field, out: &mut Map<String, Value>) {
        if let Some(list) = node.list().filter(|list| list.declared) {
            let kind = match &list.kind {
                ListKind::Atomic => "atomic",
                ListKind::Set => "set",
                ListKind::Map(keys) => {
                    let keys: Vec<Value> = keys.iter().map(|key| (**key).into()).collect();
                    out.insert("x-kubernetes-list-map-keys".into(), keys.into());
                    "map"
                }
            };
            out.insert("x-kubernetes-list-type".into(), kind.into());
        }
        if let Some(map_type) = field.map_type {
            let name = if map_type == MapType::Atomic { "atomic" } else { "granular" };
            out.insert("x-kubernetes-map-type".into(), name.into());
        }
        if let Some(strategy) = strategy(field.patch) {
            out.insert("x-kubernetes-patch-strategy".into(), strategy.into());
        }
        if let Some(key) = &field.merge_key {
            out.insert("x-kubernetes-patch-merge-key".into(), (**key).into());
        }
    }

    /// The type without its name.
    fn shape(&self, node: NodeRef<'_>) -> Map<String, Value> {
        let typed = |name: &str| Map::from_iter([("type".to_owned(), Value::from(name))]);
        let formatted = |name: &str, format: &str| {
            Map::from_iter([("type".to_owned(), Value::from(name)), ("format".to_owned(), Value::from(format))])
        };
        match &node.get().shape {
            Shape::Object(_) | Shape::Raw | Shape::Fields => typed("object"),
            Shape::Map(element) => {
                let mut out = typed("object");
                out.insert("additionalProperties".into(), self.element(node.at(*element)));
                out
            }
            Shape::List(list) => {
                let mut out = typed("array");
                out.insert("items".into(), self.element(node.at(list.element)));
                out
            }
            Shape::String | Shape::Duration => typed("string"),
            Shape::Integer { bits } => formatted("integer", if *bits == 32 { "int32" } else { "int64" }),
            Shape::Number => formatted("number", "double"),
            Shape::Boolean => typed("boolean"),
            Shape::Bytes => formatted("string", "byte"),
            Shape::Time | Shape::MicroTime => formatted("string", "date-time"),
            Shape::Quantity if self.style == Style::V3 => one_of(["string", "number"], None),
            Shape::Quantity => typed("string"),
            Shape::IntOrString if self.style == Style::V3 => one_of(["integer", "string"], Some("int-or-string")),
            Shape::IntOrString => formatted("string", "int-or-string"),
            Shape::Any | Shape::SchemaOr { .. } => Map::new(),
        }
    }

    fn element(&self, node: NodeRef<'_>) -> Value {
        match &node.get().name {
            Some(name) => self.style.reference(name),
            None => Value::Object(self.shape(node)),
        }
    }
}

/// The values that elements of some lists and maps can have.
const ELEMENT_VALUES: [(&str, &str, &[&str]); 11] = [
    ("admissionregistration.v1.NamedRuleWithOperations", "operations", OPERATIONS),
    ("admissionregistration.v1.RuleWithOperations", "operations", OPERATIONS),
    ("admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec", "validationActions", &["Audit", "Deny", "Warn"]),
    ("certificates.v1.CertificateSigningRequestSpec", "usages", KEY_USAGES),
    ("core.v1.PersistentVolumeClaimSpec", "accessModes", ACCESS_MODES),
    ("core.v1.PersistentVolumeClaimStatus", "accessModes", ACCESS_MODES),
    ("core.v1.PersistentVolumeClaimStatus", "allocatedResourceStatuses", RESIZE_STATUSES),
    ("core.v1.PersistentVolumeSpec", "accessModes", ACCESS_MODES),
    ("core.v1.ResourceQuotaSpec", "scopes", QUOTA_SCOPES),
    ("core.v1.ServiceSpec", "ipFamilies", &["", "IPv4", "IPv6"]),
    ("networking.v1.NetworkPolicySpec", "policyTypes", &["Egress", "Ingress"]),
];

const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const RESIZE_STATUSES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];
const QUOTA_SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
/// The usages of a certificate, which requests for one name.
pub const KEY_USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// OpenAPI attributes of single fields that the schema does not contain.
fn add_exceptions(type_name: &str, field: &str, out: &mut Map<String, Value>) {
    if field == "caBundle" && type_name.ends_with(".apiregistration.v1.APIServiceSpec") {
        out.insert("x-kubernetes-list-type".into(), "atomic".into());
    }
    let Some(short) = type_name.strip_prefix("io.k8s.api.") else { return };
    let row = ELEMENT_VALUES.iter().find(|row| (row.0, row.1) == (short, field));
    if let Some((_, _, values)) = row {
        for key in ["items", "additionalProperties"] {
            if let Some(Value::Object(element)) = out.get_mut(key) {
                element.insert("enum".into(), values.to_vec().into());
            }
        }
    }
}

fn one_of(types: [&str; 2], format: Option<&str>) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("oneOf".into(), types.iter().map(|name| json!({"type": name})).collect());
    if let Some(format) = format {
        out.insert("format".into(), format.into());
    }
    out
}

fn strategy(patch: PatchStrategy) -> Option<String> {
    let names = [(patch.replace, "replace"), (patch.merge, "merge"), (patch.retain_keys, "retainKeys")];
    let set: Vec<&str> = names.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect();
    (!set.is_empty()).then(|| set.join(","))
}

/// Adds the names of all types that a value refers to.
pub(super) fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(target) if key == "$ref" => {
                        found.extend(target.rsplit('/').next().map(str::to_owned));
                    }
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}
