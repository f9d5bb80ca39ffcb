//! Validation of the spec of a definition.

use knarr_api::field::{Errors, Path};
use knarr_api::names as name_forms;
use knarr_api::value::Read;
use serde_json::Value;

use super::hoisted::Hoisted;
use super::schema::{self, Strictness};
use super::versions::{validate_common, validate_versions};
use super::{conversion, defaults, names, schema_fields, structural};
use crate::common::checks;

pub(super) fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    let old_spec = old.map(|old| &old["spec"]);
    let hoisted = Hoisted::new(spec);
    let old_hoisted = old_spec.map(Hoisted::new);
    let keeps_unknown = spec["preserveUnknownFields"] == true;
    validate_group(errors, &path.child("group"), spec.text(&["group"]));
    match spec.text(&["scope"]) {
        "" => errors.required(&path.child("scope"), ""),
        scope => checks::one_of(errors, &path.child("scope"), scope, &["Cluster", "Namespaced"]),
    }
    let lacked_schemas = old_hoisted.as_ref().is_some_and(lacks_schema);
    if !lacked_schemas || !keeps_unknown {
        validate_has_schemas(errors, &hoisted, lacked_schemas);
    }
    if keeps_unknown && has_default(&hoisted) {
        let detail = "must be false in order to use defaults in the schema";
        errors.invalid(&path.child("preserveUnknownFields"), true, detail);
    }
    let strictness = strictness(&hoisted, old_hoisted.as_ref(), keeps_unknown);
    validate_versions(errors, &hoisted, strictness, old_hoisted.as_ref());
    for field in ["plural", "singular", "kind", "listKind"] {
        if spec.text(&["names", field]).is_empty() {
            let names = path.child("names");
            errors.required(&names.child(field), "");
        }
    }
    names::validate(errors, &path.child("names"), &spec["names"]);
    validate_common(errors, &hoisted, strictness, old_hoisted.as_ref());
    let strategy = spec.text(&["conversion", "strategy"]);
    if spec.has(&["conversion"]) && strategy != "None" && keeps_unknown {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.invalid(&path.child("conversion.strategy"), strategy, detail);
    }
    let known_reviews = old_spec.is_none_or(|old| conversion::has_known_review(&old["conversion"]));
    conversion::validate(errors, &path.child("conversion"), &spec["conversion"], known_reviews);
    if let (Some(old), Some(old_spec)) = (old, old_spec) {
        let mut fixed = vec!["group", "names.plural"];
        if is_established(old) {
            fixed.splice(0..0, ["scope", "names.kind"]);
        }
        for field in fixed {
            let steps: Vec<&str> = field.split('.').collect();
            checks::immutable(errors, &path.child(field), spec.at(&steps), old_spec.at(&steps));
        }
    }
}

fn is_established(object: &Value) -> bool {
    let mut conditions = object.items(&["status", "conditions"]).iter();
    conditions.any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

fn validate_group(errors: &mut Errors, path: &Path<'_>, group: &str) {
    let wrong = name_forms::dns_subdomain(group);
    if group.is_empty() {
        errors.required(path, "");
    } else if !wrong.is_empty() {
        errors.invalid(path, group, wrong.join(","));
    } else if !group.contains('.') {
        errors.invalid(path, group, "should be a domain with at least one dot");
    }
}

fn lacks_schema(hoisted: &Hoisted<'_>) -> bool {
    !hoisted.common("schema").has(&["openAPIV3Schema"])
        && hoisted.versions().iter().any(|version| !version.has(&["schema", "openAPIV3Schema"]))
}

/// Requires a schema for every version. A version that is not served may lack one if the stored definition lacks some.
fn validate_has_schemas(errors: &mut Errors, hoisted: &Hoisted<'_>, lacked_schemas: bool) {
    let detail = if lacked_schemas { "because otherwise all fields are pruned" } else { "" };
    if hoisted.common("schema").has(&["openAPIV3Schema"]) {
        return;
    }
    let path = Path::root("spec");
    for (index, version) in hoisted.versions().iter().enumerate() {
        let matters = !lacked_schemas || version["served"] == true;
        if matters && !hoisted.own(version, "schema").has(&["openAPIV3Schema"]) {
            let version = path.item("versions", index);
            errors.required(&version.child("schema.openAPIV3Schema"), detail);
        }
    }
}

fn has_default(hoisted: &Hoisted<'_>) -> bool {
    let mut schemas = hoisted.schemas().into_iter();
    schemas.any(|schema| schema_fields::any(schema, &mut |schema| schema.has(&["default"])))
}

/// Returns the checks that apply, without those that the stored definition already violates.
pub(super) fn strictness(new: &Hoisted<'_>, old: Option<&Hoisted<'_>>, keeps_unknown: bool) -> Strictness {
    let had = |ask: &mut dyn FnMut(&Value) -> bool| {
        old.is_some_and(|old| old.schemas().into_iter().any(|schema| schema_fields::any(schema, ask)))
    };
    let had_unstructural = old.is_some_and(|old| {
        old.schemas().into_iter().any(|schema| {
            structural::unsupported(schema).is_some() || !structural::validate(&Path::default(), schema).is_empty()
        })
    });
    let has_extension = new.schemas().into_iter().any(|schema| {
        schema_fields::any(schema, &mut |schema| {
            let fields = schema.as_object().into_iter().flatten();
            fields.into_iter().any(|(name, _)| name.starts_with("x-kubernetes-") && name != "x-kubernetes-map-type")
        })
    });
    Strictness {
        valid_types: !had(&mut |schema| {
            let kind = schema.text(&["type"]);
            !matches!(kind, "" | "array" | "boolean" | "integer" | "number" | "object" | "string")
        }),
        structural: !had_unstructural || !keeps_unknown || has_extension || has_default(new),
        pruned_defaults: !old.is_some_and(|old| old.schemas().into_iter().any(defaults::any_unknown)),
        atomic_sets: !had(&mut schema::has_non_atomic_set),
        sound_map_keys: !had(&mut |schema| {
            let mut errors = Errors::new();
            schema::validate_map_keys(&mut errors, &Path::default(), schema);
            !errors.is_empty()
        }),
    }
}
