//! What is unwise in a pod or a template, though it is not wrong.

use std::collections::{BTreeSet, HashMap};

use knarr_api::field::{Path, quoted};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::equality::same;
use crate::common::{addresses, node_labels, resources};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Warnings about a new pod.
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

/// Profiles that came from annotations into fields by now, or could not.
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
        let was_taken = !field.is_null() && same(field, &profile);
        let is_unreadable = field.is_null() && profile.is_boolean();
        if was_taken || is_unreadable {
            let path = Path::root("metadata");
            let path = path.child("annotations");
            warnings
                .push(format!("{}: deprecated since v1.30; use the \"appArmorProfile\" field instead", path.key(&key)));
        }
    }
}

/// Warnings about a template, which is at `path`.
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

/// Deprecated labels, and values that no label can have, in a term that selects nodes.
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

fn volumes(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    const OLD: &[(&str, &str, &str)] = &[
        ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
        ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
        ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("ephemeral", "", ""),
        ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    for (i, volume) in spec.items(&["volumes"]).iter().enumerate() {
        let path = path.item("volumes", i);
        for (field, rendered, message) in OLD {
            if !volume.has(&[field]) {
                continue;
            }
            if *field == "ephemeral" {
                let template = volume.at(&["ephemeral", "volumeClaimTemplate"]);
                claim_spec(warnings, template.at(&["spec"]), &path.child("ephemeral.volumeClaimTemplate.spec"));
            } else {
                warnings.push(format!("{}: {message}", path.child(rendered)));
            }
        }
    }
}

/// Storage that is no whole number of bytes.
pub fn claim_spec(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    for side in ["requests", "limits"] {
        let path = path.child("resources");
        let path = path.child(side);
        fractional(warnings, spec.at(&["resources", side]).get("storage"), &path.key("storage"));
    }
}

pub fn fractional(warnings: &mut Vec<String>, value: Option<&Value>, path: &Path<'_>) {
    let Some(amount) = value.map(resources::quantity) else { return };
    if amount.milli_value() % 1000 != 0 {
        let text = quoted(&amount.to_string());
        warnings.push(format!("{path}: fractional byte value {text} is invalid, must be an integer"));
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

fn containers(
    warnings: &mut Vec<String>,
    holder: &Value,
    path: &Path<'_>,
    annotations_path: &Path<'_>,
    is_template: bool,
) {
    const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
    const APP_ARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
    let (spec, annotations) = (holder.at(&["spec"]), holder.at(&["metadata", "annotations"]));
    let for_pod = "seccomp.security.alpha.kubernetes.io/pod";
    if !spec.has(&["securityContext", "seccompProfile"]) && annotations.get(for_pod).is_some() {
        warnings.push(format!("{}: {SECCOMP}", annotations_path.key(for_pod)));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            let path = path.item(list, i);
            let name = container.text(&["name"]);
            if annotations.is_object() {
                let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
                if !container.has(&["securityContext", "seccompProfile"]) && annotations.get(&key).is_some() {
                    warnings.push(format!("{}: {SECCOMP}", annotations_path.key(&key)));
                }
                let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
                let of_pod = spec.at(&["securityContext", "appArmorProfile"]);
                if is_template
                    && !container.has(&["securityContext", "appArmorProfile"])
                    && let Some(profile) = annotations.get(&key).and_then(Value::as_str)
                    && !same(of_pod, &app_armor(profile))
                {
                    warnings.push(format!("{}: {APP_ARMOR}", annotations_path.key(&key)));
                }
            }
            let resources_path = path.child("resources");
            for name in ["memory", "ephemeral-storage"] {
                for side in ["limits", "requests"] {
                    let path = resources_path.child(side);
                    fractional(warnings, container.at(&["resources", side]).get(name), &path.key(name));
                }
            }
            hidden_variables(warnings, container, &path);
        }
    }
}

fn app_armor(annotation: &str) -> Value {
    match annotation {
        "unconfined" => serde_json::json!({"type": "Unconfined"}),
        "runtime/default" => serde_json::json!({"type": "RuntimeDefault"}),
        other => match other.strip_prefix("localhost/") {
            Some(local) => serde_json::json!({"type": "Localhost", "localhostProfile": local}),
            None => Value::Bool(true),
        },
    }
}

fn hidden_variables(warnings: &mut Vec<String>, container: &Value, path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (i, variable) in container.items(&["env"]).iter().enumerate() {
        let name = variable.text(&["name"]);
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let value = variable.text(&["value"]);
        if variable.has(&["valueFrom"]) || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                path.item("env", i),
                quoted(name)
            ));
        }
    }
}

fn ports(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
    let mut by_port: HashMap<(i64, &str), Vec<(String, &Value)>> = HashMap::new();
    let mut by_name: HashMap<&str, String> = HashMap::new();
    let mut repeated_names = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            let path = path.item(list, i);
            for (j, port) in container.items(&["ports"]).iter().enumerate() {
                let path = path.item("ports", j);
                let number = port.integer(&["containerPort"]).unwrap_or_default();
                port_warnings(warnings, port, &path, by_port.entry((number, port.text(&["protocol"]))).or_default());
                let name = port.text(&["name"]);
                if name.is_empty() {
                    continue;
                }
                match by_name.get(name) {
                    Some(other) => repeated_names.push(format!(
                        "{path}: duplicate port name {} with {other}, services and probes that select ports by name \
                         will use {other}",
                        quoted(name)
                    )),
                    None => {
                        by_name.insert(name, path.to_string());
                    }
                }
            }
        }
    }
    warnings.extend(repeated_names);
}

fn port_warnings<'a>(
    warnings: &mut Vec<String>,
    port: &'a Value,
    path: &Path<'_>,
    others: &mut Vec<(String, &'a Value)>,
) {
    let (host_ip, host_port) = (port.text(&["hostIP"]), port.integer(&["hostPort"]).unwrap_or_default());
    if !host_ip.is_empty() && host_port == 0 {
        warnings.push(format!(
            "{path}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{host_ip}}}",
            port.text(&["name"]),
            port.integer(&["containerPort"]).unwrap_or_default(),
            port.text(&["protocol"]),
        ));
    }
    for (other_path, other) in others.iter() {
        let (other_ip, other_port) = (other.text(&["hostIP"]), other.integer(&["hostPort"]).unwrap_or_default());
        let what = if host_ip == other_ip && host_port == other_port {
            "duplicate"
        } else if host_port == 0 || other_port == 0 {
            "overlapping"
        } else if host_port == other_port && host_ip.is_empty() != other_ip.is_empty() {
            "dangerously ambiguous"
        } else {
            continue;
        };
        warnings.push(format!("{path}: {what} port definition with {other_path}"));
    }
    others.push((path.to_string(), port));
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

/// Files of one volume that are in each other's way.
fn overlapping_paths(warnings: &mut Vec<String>, spec: &Value) {
    for volume in spec.items(&["volumes"]) {
        let name = quoted(volume.text(&["name"]));
        let simple = [
            ("configMap", "name", "ConfigMap "),
            ("secret", "secretName", "Secret "),
            ("downwardAPI", "", "DownwardAPI"),
        ];
        for (kind, name_field, rendered) in simple {
            let source = volume.at(&[kind]);
            let mut used = Vec::new();
            for item in source.items(&["items"]) {
                let what = if name_field.is_empty() { String::new() } else { quoted(source.text(&[name_field])) };
                for body in overlaps(&mut used, item.text(&["path"]), "") {
                    warnings.push(format!("volume {name} ({rendered}{what}): overlapping paths: {body}"));
                }
            }
        }
        let mut used = Vec::new();
        for source in volume.items(&["projected", "sources"]) {
            if source.as_object().is_none_or(serde_json::Map::is_empty) {
                warnings.push(format!("volume {name} (Projected) has no sources provided"));
                continue;
            }
            for (path, from) in projected_paths(source) {
                for body in overlaps(&mut used, path, &from) {
                    warnings.push(format!("volume {name} (Projected): overlapping paths: {body}"));
                }
            }
        }
    }
}

fn projected_paths(source: &Value) -> Vec<(&str, String)> {
    let items = |kind: &str, from: String| {
        source.items(&[kind, "items"]).iter().map(|item| (item.text(&["path"]), from.clone())).collect()
    };
    if source.has(&["configMap", "items"]) {
        items("configMap", format!("ConfigMap {}", quoted(source.text(&["configMap", "name"]))))
    } else if source.has(&["secret", "items"]) {
        items("secret", format!("Secret {}", quoted(source.text(&["secret", "name"]))))
    } else if source.has(&["downwardAPI", "items"]) {
        items("downwardAPI", "DownwardAPI".to_owned())
    } else if source.has(&["serviceAccountToken"]) {
        vec![(source.text(&["serviceAccountToken", "path"]), "ServiceAccountToken".to_owned())]
    } else {
        Vec::new()
    }
}

/// Adds a path to those taken; answers what it is in the way of.
fn overlaps(used: &mut Vec<(String, String)>, path: &str, from: &str) -> Vec<String> {
    let rendered = |path: &str, from: &str| {
        if from.is_empty() { quoted(path) } else { format!("{} ({from})", quoted(path)) }
    };
    let path = path.trim_end_matches('/');
    let is_inside = |inner: &str, outer: &str| {
        inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
    };
    let found = used
        .iter()
        .filter(|(other, _)| !path.is_empty() && !other.is_empty())
        .filter(|(other, _)| is_inside(other, path) || is_inside(path, other))
        .map(|(other, other_from)| format!("{} with {}", rendered(path, from), rendered(other, other_from)))
        .collect();
    used.push((path.to_owned(), from.to_owned()));
    found
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
