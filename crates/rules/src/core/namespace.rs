//! Namespace: its finalizers and its phase.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::columns::{self, text};
use crate::kind::{Column, Context, KindRules, MetadataPasses, keep_field};

const COLUMNS: &[Column] = &[columns::NAME, text("Status", "string", "The status of the namespace"), columns::AGE];
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The rules of Namespace.
pub struct Namespace;

impl KindRules for Namespace {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        label_with_name(object);
        if object.text(&["status", "phase"]).is_empty() {
            object.set(&["status", "phase"], "Active");
        }
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], json!({"phase": "Active"}));
        let finalizers = object.items(&["spec", "finalizers"]);
        if !finalizers.iter().any(|finalizer| finalizer.as_str() == Some("kubernetes")) {
            let mut finalizers = finalizers.to_vec();
            finalizers.push("kubernetes".into());
            object.set(&["spec", "finalizers"], finalizers);
        }
        // The name may have been generated after defaults were set.
        label_with_name(object);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        match context.subresource {
            "status" => keep_field(object, old, "spec"),
            "finalize" => keep_field(object, old, "status"),
            _ => {
                keep_field(object, old, "status");
                match old.at(&["spec", "finalizers"]) {
                    Value::Null => {
                        object.remove(&["spec", "finalizers"]);
                    }
                    finalizers => object.set(&["spec", "finalizers"], finalizers.clone()),
                }
            }
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if old.is_none() || context.subresource.is_empty() {
            let spec = Path::root("spec");
            for name in object.items(&["spec", "finalizers"]) {
                finalizer(&mut errors, name, &spec.child("finalizers"));
            }
        }
        errors
    }

    fn validate_update(&self, object: &Value, _old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        match context.subresource {
            "status" => phase(&mut errors, object),
            "finalize" => {
                let spec = Path::root("spec");
                for (i, name) in object.items(&["spec", "finalizers"]).iter().enumerate() {
                    finalizer(&mut errors, name, &spec.item("finalizers", i));
                }
            }
            _ => {}
        }
        errors
    }

    fn name_check(&self) -> Check {
        names::dns_label
    }

    fn has_status(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), object.text(&["status", "phase"]).into(), columns::age(object, now)]
    }
}

fn label_with_name(namespace: &mut Value) {
    let name = namespace.text(&["metadata", "name"]);
    if !name.is_empty() && namespace.text(&["metadata", "labels", NAME_LABEL]) != name {
        let name = name.to_owned();
        namespace.set(&["metadata", "labels", NAME_LABEL], name);
    }
}

fn finalizer(errors: &mut Errors, finalizer: &Value, path: &Path<'_>) {
    let name = finalizer.as_str().unwrap_or_default();
    names::check(errors, path, name, names::qualified_name);
    if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
        errors.invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified");
    }
}

/// Sets the phase, which depends on whether the namespace is being deleted.
fn phase(errors: &mut Errors, namespace: &Value) {
    let path = Path::root("status");
    let phase = namespace.text(&["status", "phase"]);
    match (namespace.has(&["metadata", "deletionTimestamp"]), phase) {
        (false, "Active") | (true, "Terminating") => {}
        (false, _) => {
            errors.invalid(&path.child("Phase"), phase, "may only be 'Active' if `deletionTimestamp` is empty");
        }
        (true, _) => {
            let detail = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            errors.invalid(&path.child("Phase"), phase, detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages_of};

    #[test]
    fn new_namespaces_are_active_and_finalized() {
        let mut namespace = defaulted(&Namespace, json!({"metadata": {"name": "n"}}));
        Namespace.prepare_create(&mut namespace, &context("v1"));
        assert_eq!(
            namespace,
            json!({
                "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
            })
        );
    }

    #[test]
    fn phases_follow_deletion() {
        let old = json!({"metadata": {"name": "n"}, "status": {"phase": "Active"}});
        let new = json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}});
        assert_eq!(
            messages_of(&Namespace, &new, Some(&old), "status"),
            ["status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"]
        );
    }
}
