//! Type checks of validating policies' expressions against the matched kinds, reported in the policies' status.

use std::collections::BTreeSet;
use std::sync::Arc;

use knarr_api::catalogue::GroupVersionKind;
use knarr_api::cel::Type;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::{Value, json};

use crate::kinds::Kinds;
use crate::state::ApiServer;
use crate::status_sync;

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";
const MANAGER: &str = "validatingadmissionpolicy-status";
/// How many kinds are checked per policy.
const MAX_KINDS: usize = 10;

/// Watches policies and checks changed ones until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    status_sync::on_change(server, GROUP, PLURAL, |server| async move { check_all(&server).await }).await;
}

/// Checks each policy whose newest generation is unchecked; false if a status could not be written.
async fn check_all(server: &Arc<ApiServer>) -> bool {
    let mut is_done = true;
    for policy in server.backend.objects.list(GROUP, PLURAL, "") {
        let generation = policy.integer(&["metadata", "generation"]).unwrap_or(0);
        if generation <= policy.integer(&["status", "observedGeneration"]).unwrap_or(0) {
            continue;
        }
        let found = warnings(&server.backend.kinds.load(), &policy);
        let mut checking = json!({});
        if !found.is_empty() {
            checking["expressionWarnings"] = found.into();
        }
        let status = json!({"observedGeneration": generation, "typeChecking": checking});
        is_done &= write(server, policy.text(&["metadata", "name"]), status).await;
    }
    is_done
}

async fn write(server: &Arc<ApiServer>, name: &str, status: Value) -> bool {
    let configuration = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "status": status,
    });
    let account = "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller";
    let path = format!("/apis/{GROUP}/v1/{PLURAL}/{name}");
    status_sync::apply(server, &path, account, MANAGER, &configuration).await
}

/// The type errors of a policy's expressions per kind, as in its status.
fn warnings(kinds: &Kinds, policy: &Value) -> Vec<Value> {
    let types: Vec<(GroupVersionKind, Type)> =
        kinds_of(kinds, policy).into_iter().filter_map(|kind| Some((kind.clone(), type_of(kinds, &kind)?))).collect();
    let parameter = policy.at(&["spec", "paramKind"]);
    let has_parameter = parameter.is_object();
    let parameter_kind = GroupVersionKind::new(parameter.text(&["apiVersion"]), parameter.text(&["kind"]));
    let parameter_type = type_of(kinds, &parameter_kind);
    let check = |text: &str| -> String {
        let mut found = Vec::new();
        for (kind, object) in &types {
            let mut scope = Scope::new(has_parameter).of_objects(object, parameter_type.as_ref()).composing();
            for variable in policy.items(&["spec", "variables"]) {
                let made = scope.compile(variable.text(&["expression"]));
                scope.declare(variable.text(&["name"]), made.map_or(Type::Dyn, |program| program.kind().clone()));
            }
            if let Err(error) = scope.compile(text) {
                let kind_name = format!("{}, Kind={}", kind.api_version(), kind.kind);
                let kind_name = if kind.group.is_empty() { format!("/{kind_name}") } else { kind_name };
                found.push(format!("{kind_name}: {error}\n"));
            }
        }
        found.join("\n")
    };
    let mut warnings = Vec::new();
    for (index, validation) in policy.items(&["spec", "validations"]).iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let text = validation.text(&[field]);
            let warning = if text.is_empty() { String::new() } else { check(text) };
            if !warning.is_empty() {
                warnings.push(json!({"fieldRef": format!("spec.validations[{index}].{field}"), "warning": warning}));
            }
        }
    }
    warnings
}

/// The kinds that a policy names without wildcards.
fn kinds_of(kinds: &Kinds, policy: &Value) -> Vec<GroupVersionKind> {
    let mut found = BTreeSet::new();
    for rule in policy.items(&["spec", "matchConstraints", "resourceRules"]) {
        let texts = |field: &str| -> Vec<&str> { rule.items(&[field]).iter().filter_map(Value::as_str).collect() };
        let (groups, versions) = (texts("apiGroups"), texts("apiVersions"));
        if groups.iter().chain(&versions).any(|text| text.contains('*')) {
            continue;
        }
        for group in &groups {
            for version in &versions {
                for plural in texts("resources").into_iter().filter(|text| !text.contains(['*', '/'])) {
                    if let Some(resource) = kinds.resource(group, version, plural) {
                        let kind = &resource.kind;
                        found.insert((kind.group.clone(), kind.version.clone(), kind.kind.clone()));
                    }
                }
            }
        }
    }
    let made = found.into_iter().map(|(group, version, kind)| GroupVersionKind { group, version, kind });
    made.take(MAX_KINDS).collect()
}

fn type_of(kinds: &Kinds, kind: &GroupVersionKind) -> Option<Type> {
    let found = kinds.catalogue.kind(&kind.group, &kind.version, &kind.kind)?;
    let resource = kinds.resource(&kind.group, &kind.version, &found.plural)?;
    Some(Type::of_node(resource.schema()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::no_descriptions;
    use knarr_api::catalogue::Catalogue;

    #[test]
    fn expressions_are_checked_against_the_matched_kinds() {
        let kinds = Kinds::new(Catalogue::built_in(), &Default::default(), no_descriptions());
        let policy = |expression: &str, message: &str| {
            json!({"spec": {
                "matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "*/scale"]}]},
                "variables": [{"name": "n", "expression": "object.spec.replicas"}],
                "validations": [{"expression": expression, "messageExpression": message}],
            }})
        };
        assert!(warnings(&kinds, &policy("object.spec.replicas > 1 && variables.n < 3", "")).is_empty());
        assert!(
            warnings(
                &kinds,
                &policy("object.metadata.labels['a'] == 'b' && has(object.spec.template.spec.nodeName)", "")
            )
            .is_empty()
        );
        let found = warnings(&kinds, &policy("object.spec.replicas > '1'", "'got ' + object.spec.replicas"));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["fieldRef"], "spec.validations[0].expression");
        let warning = found[0]["warning"].as_str().unwrap();
        assert!(warning.contains("found no matching overload for '_>_' applied to '(int, string)'"), "{warning}");
        assert!(warning.starts_with("apps/v1, Kind=Deployment: "), "{warning}");
        assert!(found[1]["warning"].as_str().unwrap().contains("'_+_' applied to '(string, int)'"));
    }
}
