//! Rules that RoleBindings and ClusterRoleBindings share.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::GROUP;
use crate::common::columns;
use crate::common::go_json::struct_json;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of a kind of bindings.
pub struct BindingRules {
    /// The kinds that such a binding may refer to.
    pub role_kinds: &'static [&'static str],
    pub namespaced: bool,
    pub columns: &'static [Column],
}

impl KindRules for BindingRules {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        set_defaults(object);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate(&mut errors, object, self.role_kinds, self.namespaced);
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate_update(&mut errors, object, old);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn name_check(&self) -> Check {
        names::path_segment
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        self.columns
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, now)
    }
}

/// Sets the defaults of a binding.
fn set_defaults(binding: &mut Value) {
    if binding.text(&["roleRef", "apiGroup"]).is_empty() {
        binding.set(&["roleRef", "apiGroup"], GROUP);
    }
    for subject in binding.items_mut(&["subjects"]) {
        if subject.text(&["apiGroup"]).is_empty() && matches!(subject.text(&["kind"]), "User" | "Group") {
            subject.set(&["apiGroup"], GROUP);
        }
    }
}

fn validate(errors: &mut Errors, binding: &Value, role_kinds: &[&str], namespaced: bool) {
    let reference = Path::root("roleRef");
    let group = binding.text(&["roleRef", "apiGroup"]);
    if group != GROUP {
        errors.not_supported(&reference.child("apiGroup"), group, &[GROUP]);
    }
    let kind = binding.text(&["roleRef", "kind"]);
    if !role_kinds.contains(&kind) {
        errors.not_supported(&reference.child("kind"), kind, role_kinds);
    }
    let name = binding.text(&["roleRef", "name"]);
    if name.is_empty() {
        errors.required(&reference.child("name"), "");
    } else {
        names::check(errors, &reference.child("name"), name, names::path_segment);
    }
    for (index, subject) in binding.items(&["subjects"]).iter().enumerate() {
        validate_subject(errors, &Path::root("subjects").index(index), subject, namespaced);
    }
}

fn validate_subject(errors: &mut Errors, path: &Path, subject: &Value, namespaced: bool) {
    let name = subject.text(&["name"]);
    let group = subject.text(&["apiGroup"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    match subject.text(&["kind"]) {
        "ServiceAccount" => {
            if !name.is_empty() {
                names::check(errors, &path.child("name"), name, names::dns_subdomain);
            }
            if !group.is_empty() {
                errors.not_supported(&path.child("apiGroup"), group, &[""]);
            }
            if !namespaced && subject.text(&["namespace"]).is_empty() {
                errors.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.not_supported(&path.child("apiGroup"), group, &[GROUP]);
            }
        }
        kind => errors.not_supported(&path.child("kind"), kind, &["ServiceAccount", "User", "Group"]),
    }
}

/// Validates an update: the role is immutable.
fn validate_update(errors: &mut Errors, binding: &Value, old: &Value) {
    if binding["roleRef"] != old["roleRef"] {
        let part = |field: &str| Value::from(binding.text(&["roleRef", field]));
        let rendered = struct_json(&[("APIGroup", part("apiGroup")), ("Kind", part("kind")), ("Name", part("name"))]);
        errors.invalid_verbatim(&Path::root("roleRef"), rendered, "cannot change roleRef");
    }
}

/// Returns the cells of a binding.
fn cells(binding: &Value, now: Timestamp) -> Vec<Value> {
    let role = format!("{}/{}", binding.text(&["roleRef", "kind"]), binding.text(&["roleRef", "name"]));
    let subjects = |kind: &str| -> Value {
        let of_kind = binding.items(&["subjects"]).iter().filter(|subject| subject.text(&["kind"]) == kind);
        let rendered: Vec<String> = of_kind
            .map(|subject| match kind {
                "ServiceAccount" => format!("{}/{}", subject.text(&["namespace"]), subject.text(&["name"])),
                _ => subject.text(&["name"]).to_owned(),
            })
            .collect();
        rendered.join(", ").into()
    };
    vec![
        columns::name(binding),
        role.into(),
        columns::age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}
