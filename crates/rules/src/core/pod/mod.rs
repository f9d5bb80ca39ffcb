//! Pod. Each step of a write has its own submodule: defaults, preparation, validation, update, status, warnings.

pub mod annotations;
mod columns;
pub mod defaults;
pub mod options;
pub mod prepare;
pub mod qos;
pub mod references;
pub mod static_pod;
mod status;
pub mod update;
pub mod validation;
pub mod warnings;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::addresses;
use crate::kind::{Column, Context, KindRules, MetadataPasses};
use options::Options;

/// The rules of Pod.
pub struct Pod;

impl KindRules for Pod {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        defaults::set_pod_defaults(object);
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        prepare::create(object, context);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        match context.subresource {
            "status" => prepare::update_status(object, old),
            "ephemeralcontainers" => prepare::update_ephemeral_containers(object, old),
            "resize" => prepare::resize(object, old),
            _ => prepare::update(object, old),
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            return errors;
        }
        validation::pod(&mut errors, object, &Options::of(old, true));
        if old.is_none() {
            create_only(&mut errors, object);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let options = Options::of(Some(old), true);
        match context.subresource {
            "status" => status::validate(&mut errors, object, old, &options),
            "ephemeralcontainers" => update::ephemeral_containers(&mut errors, object, old, &options),
            "resize" => update::resize(&mut errors, object, old),
            _ => update::pod(&mut errors, object, old, &options),
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        match (old, context.subresource) {
            (None, _) => warnings::of_pod(object),
            (Some(_), "status") => address_warnings(object),
            _ => Vec::new(),
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn grace_period(&self, object: &Value, requested: Option<i64>) -> Option<i64> {
        let spec = object.at(&["spec"]);
        let never_ran = spec.text(&["nodeName"]).is_empty();
        let terminated = matches!(object.text(&["status", "phase"]), "Failed" | "Succeeded");
        if never_ran || terminated {
            return Some(0);
        }
        let seconds = requested.or(spec.integer(&["terminationGracePeriodSeconds"])).unwrap_or_default();
        Some(if seconds < 0 { 1 } else { seconds })
    }

    fn columns(&self) -> &'static [Column] {
        columns::COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        columns::cells(object, now)
    }

    fn row_conditions(&self, object: &Value) -> Option<Value> {
        columns::row_conditions(object)
    }
}

fn create_only(errors: &mut Errors, pod: &Value) {
    let path = Path::root("spec");
    let spec = pod.at(&["spec"]);
    if !spec.items(&["ephemeralContainers"]).is_empty() {
        errors.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    if !spec.text(&["nodeName"]).is_empty() && !spec.items(&["schedulingGates"]).is_empty() {
        errors.forbidden(&path.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
    annotations::agree_with_fields(errors, pod.at(&["metadata"]), spec, &path);
}

fn address_warnings(pod: &Value) -> Vec<String> {
    let path = Path::root("status");
    let mut warnings = Vec::new();
    for list in ["podIPs", "hostIPs"] {
        for (i, ip) in pod.items(&["status", list]).iter().enumerate() {
            let path = path.item(list, i);
            warnings.extend(addresses::address_warnings(&path.child("ip"), ip.text(&["ip"])));
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
