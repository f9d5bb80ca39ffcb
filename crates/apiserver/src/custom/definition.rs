//! Converts a CustomResourceDefinition to served kinds.

use std::sync::Arc;

use knarr_api::catalogue::{GroupVersionKind, Kind, Storage, Subresource, Verb, Verbs, compare_versions};
use knarr_api::custom::{CustomSchema, ScalePaths};
use knarr_api::openapi::custom_type_name;
use knarr_api::value::{Read, has_condition};
use serde_json::{Value, json};

use super::Converter;
use super::CustomType;
use super::columns::PrinterColumn;

/// The kinds of a definition, one per served version; none before it is established.
pub fn kinds_of(definition: &Value, fits_since: u64) -> Vec<(Arc<Kind>, Arc<CustomType>)> {
    if !has_condition(definition, "Established") {
        return Vec::new();
    }
    let versions = definition.items(&["spec", "versions"]).iter();
    versions
        .filter(|version| version.flag(&["served"]) == Some(true))
        .map(|version| {
            let (kind, custom) = kind_of(definition, version, fits_since);
            (Arc::new(kind), Arc::new(custom))
        })
        .collect()
}

/// The kind of a definition's only version, for objects that are not stored.
pub fn without_storage(definition: &Value) -> Option<(Kind, CustomType)> {
    let version = definition.items(&["spec", "versions"]).first()?;
    let (kind, custom) = kind_of(definition, version, 0);
    Some((Kind { storage: None, ..kind }, custom))
}

fn kind_of(definition: &Value, version: &Value, fits_since: u64) -> (Kind, CustomType) {
    let group = definition.text(&["spec", "group"]).to_owned();
    let names = definition.at(&["status", "acceptedNames"]);
    let text = |field: &str| match names.text(&[field]) {
        "" => definition.text(&["spec", "names", field]).to_owned(),
        name => name.to_owned(),
    };
    let list = |value: &Value, field: &str| -> Vec<String> {
        value.items(&[field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let version_name = version.text(&["name"]).to_owned();
    let (kind_name, plural) = (text("kind"), text("plural"));
    let subresources = version.at(&["subresources"]);
    let has_status = subresources.at(&["status"]).is_object();
    let scale = scale_of(subresources.at(&["scale"]));
    let kind = Kind {
        list_kind: text("listKind"),
        singular: text("singular"),
        short_names: list(names, "shortNames"),
        categories: list(names, "categories"),
        namespaced: definition.text(&["spec", "scope"]) == "Namespaced",
        verbs: verbs(definition),
        subresources: subresources_of(&group, &version_name, &kind_name, has_status, scale.is_some()),
        type_name: custom_type_name(&group, &version_name, &kind_name),
        storage: Some(Storage::custom(&group, &plural, storage_version(definition))),
        custom: true,
        selectable: version
            .items(&["selectableFields"])
            .iter()
            .map(|field| field.text(&["jsonPath"]).trim_start_matches('.').to_owned())
            .collect(),
        version: version_name,
        kind: kind_name,
        plural,
        group,
    };
    let open_api = match version.at(&["schema", "openAPIV3Schema"]) {
        Value::Null => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        schema => schema.clone(),
    };
    let preserve = definition.flag(&["spec", "preserveUnknownFields"]) == Some(true);
    let custom = CustomType {
        schema: CustomSchema::new(&open_api, preserve, scale.clone()),
        open_api,
        scale,
        has_status,
        columns: PrinterColumn::read(version.at(&["additionalPrinterColumns"])),
        converter: Converter::read(definition.at(&["spec", "conversion"])).map(Arc::new),
        deprecation: deprecation(definition, version),
        fits_since,
    };
    (kind, custom)
}

/// The deprecation warning of a version: the definition's own, or a hint at the version to use instead.
fn deprecation(definition: &Value, version: &Value) -> Option<String> {
    if version.flag(&["deprecated"]) != Some(true) {
        return None;
    }
    if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
        return Some(warning.to_owned());
    }
    let group = definition.text(&["spec", "group"]);
    let kind = definition.text(&["spec", "names", "kind"]);
    let own = version.text(&["name"]);
    let newer = definition
        .items(&["spec", "versions"])
        .iter()
        .filter(|other| other.flag(&["deprecated"]) != Some(true) && other.flag(&["served"]) == Some(true))
        .map(|other| other.text(&["name"]))
        .filter(|name| compare_versions(name, own).is_gt())
        .max_by(|one, other| compare_versions(one, other));
    let instead = newer.map(|name| format!("; use {group}/{name} {kind}")).unwrap_or_default();
    Some(format!("{group}/{own} {kind} is deprecated{instead}"))
}

/// Objects of a terminating definition can be read and deleted, not created.
fn verbs(definition: &Value) -> Verbs {
    let terminating = has_condition(definition, "Terminating");
    Verb::ALL.into_iter().filter(|verb| *verb != Verb::Create || !terminating).collect()
}

fn scale_of(scale: &Value) -> Option<ScalePaths> {
    scale.is_object().then(|| ScalePaths {
        spec_replicas: scale.text(&["specReplicasPath"]).to_owned(),
        status_replicas: scale.text(&["statusReplicasPath"]).to_owned(),
        label_selector: Some(scale.text(&["labelSelectorPath"]).to_owned()).filter(|path| !path.is_empty()),
    })
}

fn subresources_of(group: &str, version: &str, kind: &str, has_status: bool, has_scale: bool) -> Vec<Subresource> {
    let verbs: Verbs = [Verb::Get, Verb::Patch, Verb::Update].into_iter().collect();
    let own = GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() };
    let mut subresources = Vec::new();
    if has_status {
        subresources.push(Subresource { name: "status".to_owned(), kind: own, verbs });
    }
    if has_scale {
        let scale = GroupVersionKind::new("autoscaling/v1", "Scale");
        subresources.push(Subresource { name: "scale".to_owned(), kind: scale, verbs });
    }
    subresources
}

/// The version objects are stored in.
pub fn storage_version(definition: &Value) -> &str {
    let versions = definition.items(&["spec", "versions"]);
    versions
        .iter()
        .find(|version| version.flag(&["storage"]) == Some(true))
        .map_or("", |version| version.text(&["name"]))
}
