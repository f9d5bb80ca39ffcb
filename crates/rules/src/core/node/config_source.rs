//! Validation of the sources of dynamic kubelet configuration, which kubelets no longer read.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks::required_name;
use crate::common::{formats, internal_types};

/// Validates the sources of dynamic kubelet configuration.
pub(super) fn config_sources(errors: &mut Errors, node: &Value) {
    let source = node.at(&["spec", "configSource"]);
    if !source.is_null() {
        config_source(errors, source, &Path::root("spec").child("configSource"), false);
    }
    let status = Path::root("status");
    let path = status.child("config");
    for name in ["assigned", "active", "lastKnownGood"] {
        let source = node.at(&["status", "config", name]);
        if !source.is_null() {
            config_source(errors, source, &path.child(name), true);
        }
    }
}

fn config_source(errors: &mut Errors, source: &Value, path: &Path<'_>, in_status: bool) {
    let map = source.at(&["configMap"]);
    if map.is_null() {
        let rendered = internal_types::to_json("NodeConfigSource", source);
        return errors.invalid_verbatim(path, rendered, "exactly one reference subfield must be non-nil");
    }
    let path = path.child("configMap");
    for field in ["uid", "resourceVersion"] {
        match (in_status, map.text(&[field]).is_empty()) {
            (true, true) => errors.required(&path.child(field), ""),
            (false, false) => errors.forbidden(&path.child(field), format!("{field} must not be set in spec")),
            _ => {}
        }
    }
    required_name(errors, &path.child("namespace"), map.text(&["namespace"]), names::dns_label);
    required_name(errors, &path.child("name"), map.text(&["name"]), names::dns_subdomain);
    required_name(errors, &path.child("kubeletConfigKey"), map.text(&["kubeletConfigKey"]), formats::config_key);
}
