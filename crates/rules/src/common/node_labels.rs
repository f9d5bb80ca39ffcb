//! Warnings about deprecated node labels.

use knarr_api::field::Path;
use knarr_api::value::Read;
use serde_json::Value;

const DEPRECATED: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// Returns the warning about a deprecated node label.
pub fn deprecation(key: &str) -> Option<&'static str> {
    DEPRECATED.iter().find(|(label, _)| *label == key).map(|(_, message)| *message)
}

/// Returns warnings about deprecated labels in a label selector for nodes.
pub fn selector_warnings(selector: &Value, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, expression) in selector.items(&["matchExpressions"]).iter().enumerate() {
        let key = expression.text(&["key"]);
        if let Some(message) = deprecation(key) {
            let at = path.item("matchExpressions", index);
            warnings.push(format!("{}: {key} is {message}", at.child("key")));
        }
    }
    for (key, _) in selector.fields(&["matchLabels"]).into_iter().flatten() {
        if let Some(message) = deprecation(key) {
            warnings.push(format!("{}: {message}", path.child("matchLabels").child(key)));
        }
    }
    warnings
}
