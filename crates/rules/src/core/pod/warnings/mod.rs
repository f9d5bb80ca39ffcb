//! Warnings about pods and pod templates that are valid but inadvisable.

mod containers;
mod volumes;

pub use volumes::{claim_spec, fractional};

use std::collections::BTreeSet;

use knarr_api::field::{Path, quoted};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::equality::same;
use crate::common::{addresses, node_labels};
use containers::{app_armor, containers, ports};
use volumes::{overlapping_paths, volumes};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Returns warnings about a new pod.
pub fn of_pod(pod: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let wrong = names::dns_label(pod.text(&["metadata", "name"]));
    if !wrong.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            wrong.join(" ")
        ));
    }
    app_armor_annotations(&mut warnings, pod);
    warnings.extend(self::warnings(pod, &Path::default(), false));
    warnings
}

/// Warns about AppArmor annotations, which are deprecated.
fn app_armor_annotations(warnings: &mut Vec<String>, pod: &Value) {
    const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    let Some(annotations) = pod.fields(&["metadata", "annotations"]) else { return };
    if pod.text(&["spec", "os", "name"]) == "windows" {
        return;
    }
    for container in super::options::containers(pod.at(&["spec"])) {
        let key = format!("{PREFIX}{}", container.text(&["name"]));
        let Some(annotation) = annotations.get(&key).and_then(Value::as_str) else { continue };
        let (profile, field) = (app_armor(annotation), container.at(&["securityContext", "appArmorProfile"]));
        let is_copied = !field.is_null() && same(field, &profile);
        let is_unreadable = field.is_null() && profile.is_boolean();
        if is_copied || is_unreadable {
            let path = Path::root("metadata");
            let path = path.child("annotations");
            warnings
                .push(format!("{}: deprecated since v1.30; use the \"appArmorProfile\" field instead", path.key(&key)));
        }
    }
}

/// Returns warnings about the template at `path`.
pub fn of_template(template: &Value, path: &Path<'_>) -> Vec<String> {
    warnings(template, path, true)
}

fn warnings(holder: &Value, path: &Path<'_>, is_template: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let (spec, annotations) = (holder.at(&["spec"]), holder.at(&["metadata", "annotations"]));
    let spec_path = path.child("spec");
    let metadata_path = path.child("metadata");
    let annotations_path = metadata_path.child("annotations");
    nodes(&mut warnings, spec, &spec_path);
    old_annotations(&mut warnings, annotations, &annotations_path);
    volumes(&mut warnings, spec, &spec_path);
    overlapping_paths(&mut warnings, spec);
    repeated_items(&mut warnings, spec, &spec_path);
    let overhead = spec_path.child("overhead");
    for name in ["memory", "ephemeral-storage"] {
        fractional(&mut warnings, spec.at(&["overhead"]).get(name), &overhead.key(name));
    }
    containers(&mut warnings, holder, &spec_path, &annotations_path, is_template);
    ports(&mut warnings, spec, &spec_path);
    if spec.integer(&["terminationGracePeriodSeconds"]).is_some_and(|seconds| seconds < 0) {
        let path = spec_path.child("terminationGracePeriodSeconds");
        warnings.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    null_selectors(&mut warnings, spec, &spec_path);
    for (i, server) in spec.items(&["dnsConfig", "nameservers"]).iter().enumerate() {
        let path = spec_path.item("dnsConfig.nameservers", i);
        warnings.extend(addresses::address_warnings(&path, server.as_str().unwrap_or_default()));
    }
    for (i, alias) in spec.items(&["hostAliases"]).iter().enumerate() {
        let path = spec_path.item("hostAliases", i);
        warnings.extend(addresses::address_warnings(&path.child("ip"), alias.text(&["ip"])));
    }
    warnings
}

fn nodes(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    for (key, _) in spec.fields(&["nodeSelector"]).into_iter().flatten() {
        if let Some(message) = node_labels::deprecation(key) {
            warnings.push(format!("{}: {message}", path.child("nodeSelector").key(key)));
        }
    }
    let affinity = spec.at(&["affinity", "nodeAffinity"]);
    let affinity_path = path.child("affinity.nodeAffinity");
    let required = affinity_path.child(REQUIRED);
    for (i, term) in affinity.items(&[REQUIRED, "nodeSelectorTerms"]).iter().enumerate() {
        warnings.extend(node_term(term, false, &required.item("nodeSelectorTerms", i)));
    }
    for (i, term) in affinity.items(&[PREFERRED]).iter().enumerate() {
        let path = affinity_path.item(PREFERRED, i);
        warnings.extend(node_term(term.at(&["preference"]), true, &path.child("preference")));
    }
    for (i, constraint) in spec.items(&["topologySpreadConstraints"]).iter().enumerate() {
        let path = path.item("topologySpreadConstraints", i);
        let key = constraint.text(&["topologyKey"]);
        if let Some(message) = node_labels::deprecation(key) {
            warnings.push(format!("{}: {key} is {message}", path.child("topologyKey")));
        }
        if !constraint.has(&["labelSelector"]) {
            warnings.push(format!("{}: a null labelSelector results in matching no pod", path.child("labelSelector")));
        }
    }
}

/// Returns warnings about deprecated labels and invalid label values in a node selector term.
pub fn node_term(term: &Value, with_values: bool, path: &Path<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, expression) in term.items(&["matchExpressions"]).iter().enumerate() {
        let path = path.item("matchExpressions", i);
        let key = expression.text(&["key"]);
        if let Some(message) = node_labels::deprecation(key) {
            warnings.push(format!("{}: {key} is {message}", path.child("key")));
        }
        for (j, value) in expression.items(&["values"]).iter().enumerate().filter(|_| with_values) {
            let value = value.as_str().unwrap_or_default();
            for wrong in names::label_value(value) {
                warnings.push(format!("{}: {value} is invalid, {wrong}", path.item("values", j)));
            }
        }
    }
    warnings
}

fn old_annotations(warnings: &mut Vec<String>, annotations: &Value, path: &Path<'_>) {
    for (key, message) in [
        (
            "scheduler.alpha.kubernetes.io/critical-pod",
            "non-functional in v1.16+; use the \"priorityClassName\" field instead",
        ),
        ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
        ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ] {
        if annotations.get(key).is_some() {
            warnings.push(format!("{}: {message}", path.key(key)));
        }
    }
}

fn repeated_items(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    for (list, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let mut seen = BTreeSet::new();
        for (i, item) in spec.items(&[list]).iter().enumerate() {
            let value = item.text(&[field]);
            if !seen.insert(value) {
                let path = path.item(list, i);
                warnings.push(format!("{}: duplicate {field} {}", path.child(field), quoted(value)));
            }
        }
    }
    for (i, secret) in spec.items(&["imagePullSecrets"]).iter().enumerate() {
        if secret.text(&["name"]).is_empty() {
            let path = path.item("imagePullSecrets", i);
            warnings.push(format!("{}: invalid empty name \"\"", path.child("name")));
        }
    }
}

fn null_selectors(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    const DETAIL: &str = "a null labelSelector results in matching no pod";
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = spec.at(&["affinity", kind]);
        let path = path.child("affinity");
        let path = path.child(kind);
        for (i, term) in affinity.items(&[REQUIRED]).iter().enumerate() {
            if !term.has(&["labelSelector"]) {
                warnings.push(format!("{}.labelSelector: {DETAIL}", path.item(REQUIRED, i)));
            }
        }
        for (i, term) in affinity.items(&[PREFERRED]).iter().enumerate() {
            if !term.has(&["podAffinityTerm", "labelSelector"]) {
                warnings.push(format!("{}.podAffinityTerm.labelSelector: {DETAIL}", path.item(PREFERRED, i)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unwise_pods_are_warned_about() {
        for (spec, expected) in [
            (json!({}), vec![]),
            (
                json!({"terminationGracePeriodSeconds": -1}),
                vec![
                    "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                ],
            ),
            (
                json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"}}),
                vec![
                    "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                ],
            ),
            (
                json!({"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}),
                vec![
                    "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
                ],
            ),
            (
                json!({"containers": [{"resources": {"limits": {"memory": "100m"}}}]}),
                vec![
                    "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
                ],
            ),
            (
                json!({"containers": [{"ports": [{"containerPort": 80, "protocol": "TCP", "name": "a"}]},
                                   {"ports": [{"containerPort": 80, "protocol": "TCP", "name": "a"}]}]}),
                vec![
                    "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
                    "spec.containers[1].ports[0]: duplicate port name \"a\" with spec.containers[0].ports[0], services and \
                 probes that select ports by name will use spec.containers[0].ports[0]",
                ],
            ),
            (
                json!({"volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"path": "a"}, {"path": "a/b"}]}}]}),
                vec!["volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a/b\" with \"a\""],
            ),
        ] {
            assert_eq!(of_pod(&json!({"metadata": {"name": "p"}, "spec": spec})), expected);
        }
    }
}
