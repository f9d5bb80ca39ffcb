//! CustomResourceDefinitions of the version v1beta1, in which kube-apiserver stores them to this day.
//!
//! There, what all versions of a custom resource have in common is a field of the definition, and in v1 one of each version.

use serde_json::{Map, Value, json};

/// How a definition starts that kube-apiserver stored.
pub const START: &[u8] = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","#;
pub const FORMER_VERSION: &str = "apiextensions.k8s.io/v1beta1";
pub const VERSION: &str = "apiextensions.k8s.io/v1";

/// Brings a definition into the form of v1.
pub fn convert(definition: &mut Value) {
    definition["apiVersion"] = VERSION.into();
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let name = spec.remove("version");
    let versions = spec.entry("versions").or_insert_with(|| json!([]));
    if let (Some(name), Some(versions)) = (name, versions.as_array_mut())
        && versions.is_empty()
    {
        versions.push(json!({"name": name, "served": true, "storage": true}));
    }
    for (common, own) in [
        ("validation", "schema"),
        ("subresources", "subresources"),
        ("additionalPrinterColumns", "additionalPrinterColumns"),
        ("selectableFields", "selectableFields"),
    ] {
        let Some(value) = spec.remove(common) else { continue };
        for version in versions_of(spec) {
            version.entry(own).or_insert_with(|| value.clone());
        }
    }
    for version in versions_of(spec) {
        rename_paths(version);
    }
    convert_conversion(spec);
    // By default, fields were preserved.
    match spec.get("preserveUnknownFields") {
        Some(Value::Bool(false)) => drop(spec.remove("preserveUnknownFields")),
        Some(_) => {}
        None => drop(spec.insert("preserveUnknownFields".to_owned(), true.into())),
    }
}

fn versions_of(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let versions = spec.get_mut("versions").and_then(Value::as_array_mut);
    versions.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The paths of columns were spelt differently.
fn rename_paths(version: &mut Map<String, Value>) {
    let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
    for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(path) = column.remove("JSONPath") {
            column.insert("jsonPath".to_owned(), path);
        }
    }
}

fn convert_conversion(spec: &mut Map<String, Value>) {
    let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) else { return };
    let mut webhook = Map::new();
    for (former, own) in
        [("webhookClientConfig", "clientConfig"), ("conversionReviewVersions", "conversionReviewVersions")]
    {
        if let Some(value) = conversion.remove(former) {
            webhook.insert(own.to_owned(), value);
        }
    }
    if !webhook.is_empty() {
        conversion.insert("webhook".to_owned(), Value::Object(webhook));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_converted() {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let other = json!({"openAPIV3Schema": {"type": "object", "description": "other"}});
        for (former, expected) in [
            (
                json!({"group": "a.org", "version": "v1", "validation": schema, "preserveUnknownFields": false,
                    "subresources": {"status": {}}, "additionalPrinterColumns": [{"name": "A", "JSONPath": ".a"}],
                    "versions": [{"name": "v1", "served": true, "storage": true}],
                    "conversion": {"strategy": "None"}}),
                json!({"group": "a.org", "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema,
                    "subresources": {"status": {}}, "additionalPrinterColumns": [{"name": "A", "jsonPath": ".a"}]}],
                    "conversion": {"strategy": "None"}}),
            ),
            (
                json!({"version": "v1"}),
                json!({"versions": [{"name": "v1", "served": true, "storage": true}], "preserveUnknownFields": true}),
            ),
            (
                json!({"version": "v2", "preserveUnknownFields": false, "versions": [
                    {"name": "v2", "schema": other, "additionalPrinterColumns": [{"JSONPath": ".b"}]},
                    {"name": "v1", "schema": schema}],
                    "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "u"},
                        "conversionReviewVersions": ["v1"]}}),
                json!({"versions": [
                    {"name": "v2", "schema": other, "additionalPrinterColumns": [{"jsonPath": ".b"}]},
                    {"name": "v1", "schema": schema}],
                    "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "u"},
                        "conversionReviewVersions": ["v1"]}}}),
            ),
        ] {
            let mut definition = json!({"apiVersion": FORMER_VERSION, "spec": former});
            convert(&mut definition);
            assert_eq!(definition, json!({"apiVersion": VERSION, "spec": expected}));
        }
    }

    #[test]
    fn damaged_definitions_stay_damaged() {
        for spec in
            [json!(null), json!({"versions": 1, "conversion": []}), json!({"versions": ["v1"], "version": "v1"})]
        {
            convert(&mut json!({"spec": spec}));
        }
    }
}
