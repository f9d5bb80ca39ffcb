//! MutatingAdmissionPolicy: expressions that change objects.

use jiff::Timestamp;
use knarr_api::cel::Type;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::expressions::Scope;
use super::{matching, name_warnings, policy};
use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, text};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of MutatingAdmissionPolicy.
pub struct MutatingAdmissionPolicy;

impl KindRules for MutatingAdmissionPolicy {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        policy::set_defaults(object);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        let spec = &object["spec"];
        let scope = policy::validate_matching(&mut errors, spec, old.map(|old| &old["spec"]), true).mutating();
        let mutations = spec.items(&["mutations"]);
        if mutations.is_empty() {
            errors.required(&path.child("mutations"), "mutations must contain at least one item");
        }
        for (index, mutation) in mutations.iter().enumerate() {
            validate_mutation(&mut errors, &path.item("mutations", index), mutation, &scope);
        }
        let at = path.child("reinvocationPolicy");
        match spec.text(&["reinvocationPolicy"]) {
            "" => errors.required(&at, ""),
            policy => checks::one_of(&mut errors, &at, policy, &["IfNeeded", "Never"]),
        }
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

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const MUTATIONS: &str = "Mutation indicates the number of mutations rules defined in this configuration";
        const PARAMETERS: &str = "ParamKind specifies the kind of resources used to parameterize this policy";
        const { &[NAME, text("Mutations", "integer", MUTATIONS), text("ParamKind", "string", PARAMETERS), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            object.items(&["spec", "mutations"]).len().into(),
            matching::display_parameter_kind(&object["spec"]).into(),
            columns::age(object, now),
        ]
    }
}

fn validate_mutation(errors: &mut Errors, path: &Path<'_>, mutation: &Value, scope: &Scope) {
    let kind = mutation.text(&["patchType"]);
    let (own, other, expected) = match kind {
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Type::list(Type::Message("JSONPatch".into()))),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Type::Message("Object".into())),
        "" => {
            errors.required(&path.child("patchType"), "");
            return;
        }
        kind => {
            errors.not_supported(&path.child("patchType"), kind, &["ApplyConfiguration", "JSONPatch"]);
            return;
        }
    };
    let at = path.child(own);
    match mutation.text(&[own, "expression"]).trim() {
        _ if !mutation.has(&[own]) => errors.required(&at, format!("must be specified when patchType is {kind}")),
        "" => errors.required(&at.child("expression"), ""),
        expression => drop(scope.validate(errors, &at.child("expression"), expression, &[expected])),
    }
    if mutation.has(&[other]) {
        let detail = format!("must not be specified when patchType is {kind}");
        errors.invalid(&path.child(other), format!("{{{other}}}"), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn policies_are_checked() {
        let rule = json!({"operations": ["DELETE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "mutations": [{"patchType": "JSONPatch", "applyConfiguration": {}}]});
        assert_eq!(
            messages(&MutatingAdmissionPolicy, &defaulted(&MutatingAdmissionPolicy, json!({"spec": spec})), None),
            [
                "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \
                 \"CONNECT\", \"CREATE\", \"UPDATE\"",
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when \
                 patchType is JSONPatch",
                "spec.reinvocationPolicy: Required value",
            ]
        );
    }
}
