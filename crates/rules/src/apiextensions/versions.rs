//! Validation of the versions of a definition: deprecation, subresources, printer columns, selectable fields.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names as name_forms;
use knarr_api::value::Read;
use serde_json::Value;

use super::hoisted::Hoisted;
use super::schema::{self, Strictness};
use super::{field_path, version_json};
use crate::common::go_json;

const MAX_SELECTABLE: usize = 8;
const MAX_WARNING_LENGTH: usize = 256;
const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";

pub(super) fn validate_versions(
    errors: &mut Errors,
    hoisted: &Hoisted<'_>,
    strictness: Strictness,
    old: Option<&Hoisted<'_>>,
) {
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
        errors.invalid_verbatim(&path.child("versions"), go_json::escape_html(&version_json::to_json(hoisted)), detail)
    };
    if !unique {
        invalid_versions(errors, "must contain unique version names");
    }
    if hoisted.versions().iter().filter(|version| version["storage"] == true).count() != 1 {
        invalid_versions(errors, "must have exactly one version marked as storage version");
    }
    // The first version is also the value of the deprecated field for a single version.
    let first = hoisted.versions().first().map_or("", |version| version.text(&["name"]));
    let wrong = name_forms::dns_1035_label(first);
    if !first.is_empty() && !wrong.is_empty() {
        errors.invalid(&path.child("version"), first, wrong.join(","));
    }
}

/// Validates the fields that all versions share.
pub(super) fn validate_common(
    errors: &mut Errors,
    hoisted: &Hoisted<'_>,
    strictness: Strictness,
    old: Option<&Hoisted<'_>>,
) {
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

pub(super) fn validate_stored_versions(errors: &mut Errors, object: &Value) {
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
