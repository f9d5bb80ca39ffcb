//! The words of the table of types: names, basic types and the marks of fields.

use crate::schema::{GroupVersionKind, ListKind, MapType, PatchStrategy, Shape};

/// The prefixes of short names in the table, and those of the full names.
const PREFIXES: [(&str, &str); 4] = [
    ("meta.", "io.k8s.apimachinery.pkg.apis.meta."),
    ("apiextensions.", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions."),
    ("apiregistration.", "io.k8s.kube-aggregator.pkg.apis.apiregistration."),
    ("io.k8s.", "io.k8s."),
];

pub(super) fn full_name(short: &str) -> String {
    let known = PREFIXES.iter().find_map(|(from, to)| short.strip_prefix(from).map(|rest| format!("{to}{rest}")));
    known.unwrap_or_else(|| format!("io.k8s.api.{short}"))
}

/// `io.k8s.api.core.v1.Pod` is `v1.Pod` in errors.
pub(super) fn go_name(full: &str) -> String {
    let mut parts = full.rsplitn(3, '.');
    let (name, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("{package}.{name}")
}

pub(super) fn basic(kind: &str) -> Option<Shape> {
    Some(match kind {
        "string" => Shape::String,
        "int32" => Shape::Integer { bits: 32 },
        "int64" => Shape::Integer { bits: 64 },
        "double" => Shape::Number,
        "bool" => Shape::Boolean,
        "bytes" => Shape::Bytes,
        "time" => Shape::Time,
        "microtime" => Shape::MicroTime,
        "duration" => Shape::Duration,
        "quantity" => Shape::Quantity,
        "int-or-string" => Shape::IntOrString,
        "raw" => Shape::Raw,
        "fields" => Shape::Fields,
        "json" => Shape::Any,
        _ => return None,
    })
}

/// Types that have a definition of their own in OpenAPI but are one word in the table.
pub(super) fn special_type(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "time" => "meta.v1.Time",
        "microtime" => "meta.v1.MicroTime",
        "duration" => "meta.v1.Duration",
        "fields" => "meta.v1.FieldsV1",
        "quantity" => "io.k8s.apimachinery.pkg.api.resource.Quantity",
        "int-or-string" => "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        "raw" => "io.k8s.apimachinery.pkg.runtime.RawExtension",
        "json" => "apiextensions.v1.JSON",
        "schema-or-array" => "apiextensions.v1.JSONSchemaPropsOrArray",
        "schema-or-bool" => "apiextensions.v1.JSONSchemaPropsOrBool",
        "schema-or-strings" => "apiextensions.v1.JSONSchemaPropsOrStringArray",
        _ => return None,
    })
}

pub(super) fn read_kind(text: &str) -> Result<GroupVersionKind, &'static str> {
    let mut parts = text.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(group), Some(version), Some(kind)) => {
            Ok(GroupVersionKind { group: group.into(), version: version.into(), kind: kind.into() })
        }
        _ => Err("a kind is group/version/kind"),
    }
}

pub(super) fn read_map_type(text: &str) -> Result<MapType, &'static str> {
    match text {
        "atomic" => Ok(MapType::Atomic),
        "granular" => Ok(MapType::Granular),
        _ => Err("an unknown map type"),
    }
}

pub(super) fn read_list_kind(text: &str) -> Result<ListKind, &'static str> {
    match text.split_once(':') {
        None if text == "atomic" => Ok(ListKind::Atomic),
        None if text == "set" => Ok(ListKind::Set),
        Some(("map", keys)) => Ok(ListKind::Map(keys.split(',').map(Into::into).collect())),
        _ => Err("an unknown list type"),
    }
}

pub(super) fn read_strategy(text: &str) -> Result<PatchStrategy, &'static str> {
    let mut strategy = PatchStrategy::default();
    for word in text.split(',') {
        match word {
            "merge" => strategy.merge = true,
            "replace" => strategy.replace = true,
            "retainKeys" => strategy.retain_keys = true,
            _ => return Err("an unknown patch strategy"),
        }
    }
    Ok(strategy)
}

pub(super) fn read_number(word: &str) -> Result<u32, &'static str> {
    word.strip_prefix('#').and_then(|number| number.parse().ok()).ok_or("an unknown mark of a field")
}

pub(super) fn read_json(text: &str) -> Result<serde_json::Value, &'static str> {
    serde_json::from_str(text).map_err(|_| "a default is no JSON")
}
