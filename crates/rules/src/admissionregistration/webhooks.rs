//! Rules that both kinds of webhook configurations share.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::{matching, name_warnings, rule};
use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{checks, label_selector, webhook};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const HARMLESS: [&str; 2] = ["None", "NoneOnDryRun"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const SELECTORS: [&str; 2] = ["namespaceSelector", "objectSelector"];
/// The columns of both kinds.
const COLUMNS: &[Column] = &[
    NAME,
    text("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration"),
    AGE,
];

/// The rules of a kind of webhook configurations.
pub struct WebhookRules {
    /// Whether the webhooks may change objects.
    pub mutating: bool,
}

impl KindRules for WebhookRules {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        set_defaults(object, self.mutating);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate(&mut errors, object, old, self.mutating);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        name_warnings(object)
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        object["webhooks"] != old["webhooks"]
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, now)
    }
}

/// Sets the defaults of all webhooks of a configuration.
fn set_defaults(object: &mut Value, mutating: bool) {
    for hook in object.items_mut(&["webhooks"]) {
        hook.set_default(&["failurePolicy"], "Fail");
        hook.set_default(&["matchPolicy"], "Equivalent");
        for selector in SELECTORS {
            hook.set_default(&[selector], json!({}));
        }
        hook.set_default(&["timeoutSeconds"], 10);
        if mutating {
            hook.set_default(&["reinvocationPolicy"], "Never");
        }
        for item in hook.items_mut(&["rules"]) {
            rule::set_defaults(item);
        }
        if hook.has(&["clientConfig", "service"]) {
            hook.set_default(&["clientConfig", "service", "port"], 443);
        }
    }
}

/// The violations that an update tolerates because the stored configuration already has them.
struct Lax {
    conditions: bool,
    side_effects: bool,
    review_versions: bool,
    repeated_names: bool,
    selector_values: bool,
}

impl Lax {
    fn of(new: &[Value], old: &[Value]) -> Self {
        let names: BTreeSet<&str> = old.iter().map(|hook| hook.text(&["name"])).collect();
        let reviewed = |hook: &Value| webhook::has_known_review(hook.items(&["admissionReviewVersions"]));
        let same = |(new, old): (&Value, &Value)| new["matchConditions"] == old["matchConditions"];
        Lax {
            conditions: new.len() == old.len() && new.iter().zip(old).all(same),
            side_effects: !old.iter().all(|hook| HARMLESS.contains(&hook.text(&["sideEffects"]))),
            review_versions: !old.iter().all(reviewed),
            repeated_names: names.len() < old.len(),
            selector_values: old.iter().any(|hook| SELECTORS.iter().any(|s| label_selector::is_invalid(&hook[*s]))),
        }
    }

    fn none() -> Self {
        Lax {
            conditions: false,
            side_effects: false,
            review_versions: false,
            repeated_names: false,
            selector_values: false,
        }
    }
}

/// Validates all webhooks of a configuration.
fn validate(errors: &mut Errors, object: &Value, old: Option<&Value>, mutating: bool) {
    let hooks = object.items(&["webhooks"]);
    let lax = old.map_or_else(Lax::none, |old| Lax::of(hooks, old.items(&["webhooks"])));
    let path = Path::root("webhooks");
    let mut seen = BTreeSet::new();
    for (index, hook) in hooks.iter().enumerate() {
        let path = path.index(index);
        validate_hook(errors, &path, hook, &lax, mutating);
        let missing = "must specify one of v1, v1beta1";
        let (at, versions) = (path.child("admissionReviewVersions"), &hook["admissionReviewVersions"]);
        webhook::validate_review_versions(errors, &at, versions, missing, !lax.review_versions);
        let name = hook.text(&["name"]);
        if !lax.repeated_names && !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}

fn validate_hook(errors: &mut Errors, path: &Path<'_>, hook: &Value, lax: &Lax, mutating: bool) {
    validate_name(errors, &path.child("name"), hook.text(&["name"]));
    for (index, item) in hook.items(&["rules"]).iter().enumerate() {
        rule::validate(errors, &path.item("rules", index), item);
    }
    for (field, known) in [("failurePolicy", ["Fail", "Ignore"]), ("matchPolicy", ["Equivalent", "Exact"])] {
        if let Some(policy) = hook[field].as_str() {
            checks::one_of(errors, &path.child(field), policy, &known);
        }
    }
    let effects: &[&str] = if lax.side_effects { &SIDE_EFFECTS } else { &HARMLESS };
    match hook["sideEffects"].as_str() {
        None => errors.required(&path.child("sideEffects"), format!("must specify one of {}", effects.join(", "))),
        Some(effect) => checks::one_of(errors, &path.child("sideEffects"), effect, effects),
    }
    if let Some(seconds) = hook.integer(&["timeoutSeconds"]).filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&path.child("timeoutSeconds"), seconds, detail);
    }
    for selector in SELECTORS {
        label_selector::validate(errors, &path.child(selector), &hook[selector], lax.selector_values);
    }
    if let Some(policy) = hook["reinvocationPolicy"].as_str().filter(|_| mutating) {
        checks::one_of(errors, &path.child("reinvocationPolicy"), policy, &["IfNeeded", "Never"]);
    }
    webhook::validate_client_config(errors, &path.child("clientConfig"), &hook["clientConfig"]);
    if !lax.conditions {
        matching::validate_conditions(errors, &path.child("matchConditions"), hook.items(&["matchConditions"]), false);
    }
}

fn validate_name(errors: &mut Errors, path: &Path<'_>, name: &str) {
    let wrong = names::dns_subdomain(name);
    if name.is_empty() {
        errors.required(path, "");
    } else if !wrong.is_empty() {
        errors.invalid(path, name, wrong.join(","));
    } else if name.split('.').count() < 3 {
        errors.invalid(path, name, "should be a domain with at least three segments separated by dots");
    }
}

/// Returns the cells of a configuration.
fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![columns::name(object), object.items(&["webhooks"]).len().into(), columns::age(object, now)]
}
