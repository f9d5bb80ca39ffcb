//! Warnings about the containers of a pod: profiles, variables, ports.

use std::collections::{BTreeSet, HashMap};

use knarr_api::field::{Path, quoted};
use knarr_api::value::Read;
use serde_json::Value;

use super::volumes::fractional;
use crate::common::equality::same;

pub(super) fn containers(
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

pub(super) fn app_armor(annotation: &str) -> Value {
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

pub(super) fn ports(warnings: &mut Vec<String>, spec: &Value, path: &Path<'_>) {
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
