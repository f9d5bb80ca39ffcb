//! Rules that both kinds of policy bindings share.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::matching;
use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, text};
use crate::kind::Column;

const POLICY: &str = "PolicyName indicates the policy definition which the policy binding binded to";
const PARAMETERS: &str = "ParamRef indicates the param resource which sets the configuration param";
/// The columns of both kinds.
pub const COLUMNS: &[Column] =
    &[NAME, text("PolicyName", "string", POLICY), text("ParamRef", "string", PARAMETERS), AGE];

/// Sets the defaults of a binding.
pub fn set_defaults(object: &mut Value) {
    if let Some(resources) = object.find(&["spec", "matchResources"]).filter(|value| value.is_object()) {
        matching::set_resource_defaults(resources);
    }
}

/// Validates the spec of a binding.
pub fn validate(errors: &mut Errors, spec: &Value) {
    let path = Path::root("spec");
    checks::required_name(errors, &path.child("policyName"), spec.text(&["policyName"]), names::dns_subdomain);
    if spec.has(&["paramRef"]) {
        matching::validate_parameter_reference(errors, &path.child("paramRef"), &spec["paramRef"]);
    }
    if spec.has(&["matchResources"]) {
        matching::validate_resources(errors, &path.child("matchResources"), &spec["matchResources"]);
    }
}

/// Returns the cells of a binding.
pub fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    vec![
        columns::name(object),
        spec.text(&["policyName"]).into(),
        display_parameter(&spec["paramRef"]).into(),
        columns::age(object, now),
    ]
}

fn display_parameter(reference: &Value) -> String {
    let (namespace, name) = (reference.text(&["namespace"]), reference.text(&["name"]));
    match (name, namespace) {
        ("", _) if reference.has(&["selector"]) => display_selector(&reference["selector"]),
        ("", _) => "<unset>".to_owned(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    }
}

/// Renders a selector in Go's debug format, as upstream does in this cell.
fn display_selector(selector: &Value) -> String {
    let labels = selector.fields(&["matchLabels"]).into_iter().flatten();
    let labels: String = labels.map(|(k, v)| format!("{k}: {},", v.as_str().unwrap_or_default())).collect();
    let expressions: String = selector
        .items(&["matchExpressions"])
        .iter()
        .map(|expression| {
            let values: Vec<&str> = expression.items(&["values"]).iter().filter_map(Value::as_str).collect();
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                expression.text(&["key"]),
                expression.text(&["operator"]),
                values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
