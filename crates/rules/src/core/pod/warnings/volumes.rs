//! Warnings about the volumes of a pod.

use knarr_api::field::{Path, quoted};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::resources;

pub(super) fn volumes(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    const OLD: &[(&str, &str, &str)] = &[
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
        ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("ephemeral", "", ""),
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    for (i, volume) in spec.items(&["volumes"]).iter().enumerate() {
        let path = path.item("volumes", i);
        for (field, rendered, message) in OLD {
            if !volume.has(&[field]) {
                continue;
            }
            if *field == "ephemeral" {
                let template = volume.at(&["ephemeral", "volumeClaimTemplate"]);
                claim_spec(warnings, template.at(&["spec"]), &path.child("ephemeral.volumeClaimTemplate.spec"));
            } else {
                warnings.push(format!("{}: {message}", path.child(rendered)));
            }
        }
    }
}

/// Warns about storage requests that are not a whole number of bytes.
pub fn claim_spec(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    for side in ["requests", "limits"] {
        let path = path.child("resources");
        let path = path.child(side);
        fractional(warnings, spec.at(&["resources", side]).get("storage"), &path.key("storage"));
    }
}

/// Warns about a quantity that is not a whole number of bytes.
pub fn fractional(warnings: &mut Vec<String>, value: Option<&Value>, path: &Path<'_>) {
    let Some(amount) = value.map(resources::quantity) else { return };
    if amount.milli_value() % 1000 != 0 {
        let text = quoted(&amount.to_string());
        warnings.push(format!("{path}: fractional byte value {text} is invalid, must be an integer"));
    }
}

/// Warns about paths of a volume that overlap.
pub(super) fn overlapping_paths(warnings: &mut Vec<String>, spec: &Value) {
    for volume in spec.items(&["volumes"]) {
        let name = quoted(volume.text(&["name"]));
        let simple = [
            ("configMap", "name", "ConfigMap "),
            ("secret", "secretName", "Secret "),
            ("downwardAPI", "", "DownwardAPI"),
        ];
        for (kind, name_field, rendered) in simple {
            let source = volume.at(&[kind]);
            let mut used = Vec::new();
            for item in source.items(&["items"]) {
                let what = if name_field.is_empty() { String::new() } else { quoted(source.text(&[name_field])) };
                for body in overlaps(&mut used, item.text(&["path"]), "") {
                    warnings.push(format!("volume {name} ({rendered}{what}): overlapping paths: {body}"));
                }
            }
        }
        let mut used = Vec::new();
        for source in volume.items(&["projected", "sources"]) {
            if source.as_object().is_none_or(serde_json::Map::is_empty) {
                warnings.push(format!("volume {name} (Projected) has no sources provided"));
                continue;
            }
            for (path, from) in projected_paths(source) {
                for body in overlaps(&mut used, path, &from) {
                    warnings.push(format!("volume {name} (Projected): overlapping paths: {body}"));
                }
            }
        }
    }
}

fn projected_paths(source: &Value) -> Vec<(&str, String)> {
    let items = |kind: &str, from: String| {
        source.items(&[kind, "items"]).iter().map(|item| (item.text(&["path"]), from.clone())).collect()
    };
    if source.has(&["configMap", "items"]) {
        items("configMap", format!("ConfigMap {}", quoted(source.text(&["configMap", "name"]))))
    } else if source.has(&["secret", "items"]) {
        items("secret", format!("Secret {}", quoted(source.text(&["secret", "name"]))))
    } else if source.has(&["downwardAPI", "items"]) {
        items("downwardAPI", "DownwardAPI".to_owned())
    } else if source.has(&["serviceAccountToken"]) {
        vec![(source.text(&["serviceAccountToken", "path"]), "ServiceAccountToken".to_owned())]
    } else {
        Vec::new()
    }
}

/// Adds a path to those in use. Returns descriptions of the overlaps.
fn overlaps(used: &mut Vec<(String, String)>, path: &str, from: &str) -> Vec<String> {
    let rendered = |path: &str, from: &str| {
        if from.is_empty() { quoted(path) } else { format!("{} ({from})", quoted(path)) }
    };
    let path = path.trim_end_matches('/');
    let is_inside = |inner: &str, outer: &str| {
        inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
    };
    let found = used
        .iter()
        .filter(|(other, _)| !path.is_empty() && !other.is_empty())
        .filter(|(other, _)| is_inside(other, path) || is_inside(path, other))
        .map(|(other, other_from)| format!("{} with {}", rendered(path, from), rendered(other, other_from)))
        .collect();
    used.push((path.to_owned(), from.to_owned()));
    found
}
