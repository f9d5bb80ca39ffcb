//! Validation of projected volumes and downward API volumes.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::sources::key_to_path;
use super::{VolumeContext, require};
use crate::common::formats;
use crate::common::resources;

const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Validates a downward API volume.
pub fn downward(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    formats::file_mode(errors, &path.child("defaultMode"), value.integer(&["defaultMode"]));
    for file in value.items(&["items"]) {
        downward_file(errors, file, path);
    }
}

/// Validates a projected volume.
pub fn projected(errors: &mut Errors, value: &Value, path: &Path<'_>, volume_context: &VolumeContext<'_>) {
    formats::file_mode(errors, &path.child("defaultMode"), value.integer(&["defaultMode"]));
    let mut paths = BTreeSet::new();
    for (i, source) in value.items(&["sources"]).iter().enumerate() {
        projection(errors, source, &path.item("sources", i), path, &mut paths, volume_context);
    }
}

/// Validates one projection. Paths must be unique; errors about them are reported for the volume as a whole.
fn projection<'a>(
    errors: &mut Errors,
    source: &'a Value,
    path: &Path<'_>,
    volume: &Path<'_>,
    paths: &mut BTreeSet<&'a str>,
    volume_context: &VolumeContext<'_>,
) {
    const CONFLICT: &str = "conflicting duplicate paths";
    let mut count = 0;
    for kind in ["secret", "configMap"] {
        let inner = source.at(&[kind]);
        if inner.is_null() {
            continue;
        }
        count += 1;
        let path = path.child(kind);
        require(errors, inner, &path, &["name"]);
        for (i, item) in inner.items(&["items"]).iter().enumerate() {
            key_to_path(errors, item, &path.item("items", i));
            let target = item.text(&["path"]);
            if !target.is_empty() && !paths.insert(target) {
                errors.invalid(volume, inner.text(&["name"]), CONFLICT);
            }
        }
    }
    let downward = source.at(&["downwardAPI"]);
    if !downward.is_null() {
        count += 1;
        for file in downward.items(&["items"]) {
            downward_file(errors, file, &path.child("downwardAPI"));
            let target = file.text(&["path"]);
            if !target.is_empty() && !paths.insert(target) {
                errors.invalid(volume, target, CONFLICT);
            }
        }
    }
    let token = source.at(&["serviceAccountToken"]);
    if !token.is_null() {
        count += 1;
        token_projection(errors, token, &path.child("serviceAccountToken"), volume, volume_context);
    }
    if count > 1 {
        errors.forbidden(path, "may not specify more than 1 volume type per source");
    }
}

fn token_projection(
    errors: &mut Errors,
    token: &Value,
    path: &Path<'_>,
    volume: &Path<'_>,
    volume_context: &VolumeContext<'_>,
) {
    let seconds = token.integer(&["expirationSeconds"]).unwrap_or_default();
    if seconds < 600 {
        errors.invalid(&path.child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(&path.child("expirationSeconds"), seconds, detail);
    }
    let target = token.text(&["path"]);
    if target.is_empty() {
        errors.required(&volume.child("path"), "");
    } else if !volume_context.allow_non_local_token_path {
        formats::local_non_reserved_path(errors, &volume.child("path"), target);
    }
}

fn downward_file(errors: &mut Errors, file: &Value, path: &Path<'_>) {
    require(errors, file, path, &["path"]);
    formats::local_non_reserved_path(errors, &path.child("path"), file.text(&["path"]));
    let (field, resource) = (file.at(&["fieldRef"]), file.at(&["resourceFieldRef"]));
    if !field.is_null() {
        field_reference(errors, field, VOLUME_FIELDS, &path.child("fieldRef"));
        if !resource.is_null() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.invalid(path, "resource", detail);
        }
    } else if !resource.is_null() {
        resource_reference(errors, resource, &path.child("resourceFieldRef"), true);
    } else {
        errors.required(path, "one of fieldRef and resourceFieldRef is required");
    }
    formats::file_mode(errors, &path.child("mode"), file.integer(&["mode"]));
}

/// Validates a reference to a field of the pod.
pub fn field_reference(errors: &mut Errors, reference: &Value, supported: &[&str], path: &Path<'_>) {
    let (version, field) = (reference.text(&["apiVersion"]), reference.text(&["fieldPath"]));
    if version.is_empty() {
        return errors.required(&path.child("apiVersion"), "");
    }
    if field.is_empty() {
        return errors.required(&path.child("fieldPath"), "");
    }
    let refuse = |errors: &mut Errors, why: String| {
        errors.invalid(&path.child("fieldPath"), field, format!("error converting fieldPath: {why}"));
    };
    if version != "v1" {
        return refuse(errors, format!("unsupported pod version: {version}"));
    }
    if let Some((map, key)) = subscripted(field) {
        match map {
            "metadata.annotations" => names::check(errors, path, &key.to_lowercase(), names::qualified_name),
            "metadata.labels" => names::check(errors, path, key, names::qualified_name),
            _ => refuse(errors, format!("field label does not support subscript: {field}")),
        }
        return;
    }
    let field = if field == "spec.host" { "spec.nodeName" } else { field };
    if !READABLE_FIELDS.contains(&field) {
        return refuse(errors, format!("field label not supported: {field}"));
    }
    if !supported.contains(&field) {
        errors.not_supported(&path.child("fieldPath"), field, supported);
    }
}

const READABLE_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Splits `metadata.labels['app']` into its path and its key.
fn subscripted(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['").filter(|(map, _)| !map.is_empty())
}

/// Validates a reference to a resource of a container. `in_volume` requires the name of the container.
pub fn resource_reference(errors: &mut Errors, reference: &Value, path: &Path<'_>, in_volume: bool) {
    const RESOURCES: &[&str] = &[
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let resource = reference.text(&["resource"]);
    let is_huge_page = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if in_volume && reference.text(&["containerName"]).is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !is_huge_page {
        errors.not_supported(&path.child("resource"), resource, RESOURCES);
    }
    divisor(errors, resource, reference.at(&["divisor"]), path);
}

fn divisor(errors: &mut Errors, resource: &str, divisor: &Value, path: &Path<'_>) {
    const BYTES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let text = divisor.as_str().unwrap_or_default();
    if resources::quantity(divisor).is_zero() {
        return;
    }
    let (allowed, what): (&[&str], &str) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "cpu"),
        "limits.memory" | "requests.memory" => (BYTES, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (BYTES, "local ephemeral storage"),
        _ if resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-") => {
            (BYTES, "hugepages")
        }
        _ => return,
    };
    if !allowed.contains(&text) {
        let listed = if what == "cpu" { "1m and 1".to_owned() } else { allowed.join(", ") };
        let detail = format!("only divisor's values {listed} are supported with the {what} resource");
        errors.invalid(&path.child("divisor"), resource, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_checked() {
        for (reference, expected) in [
            (json!({"apiVersion": "v1", "fieldPath": "metadata.name"}), None),
            (json!({"apiVersion": "v1", "fieldPath": "metadata.labels['a']"}), None),
            (json!({"apiVersion": "v1"}), Some("r.fieldPath: Required value")),
            (
                json!({"apiVersion": "v1", "fieldPath": "spec.x"}),
                Some(
                    "r.fieldPath: Invalid value: \"spec.x\": error converting fieldPath: field label not supported: spec.x",
                ),
            ),
            (
                json!({"apiVersion": "v1", "fieldPath": "status.phase"}),
                Some(
                    "r.fieldPath: Unsupported value: \"status.phase\": supported values: \"metadata.annotations\", \
                      \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \"metadata.uid\"",
                ),
            ),
        ] {
            let mut errors = Errors::new();
            field_reference(&mut errors, &reference, VOLUME_FIELDS, &Path::root("r"));
            assert_eq!(errors.0.first().map(ToString::to_string).as_deref(), expected);
        }
    }
}
