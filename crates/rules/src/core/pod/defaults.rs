//! Defaults of pods and pod templates.

use knarr_api::value::Read;
use serde_json::{Map, Value, json};

use crate::common::defaults::{self as set, Fields};
use crate::common::{image, resources};

const DEFAULT_MODE: i64 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Sets the defaults of a pod: those of its spec, and some that templates do not get.
pub fn set_pod_defaults(pod: &mut Value) {
    let Some(pod) = pod.as_object_mut() else { return };
    let spec = set::object_or_new(pod, "spec");
    for list in ["containers", "initContainers"] {
        for container in set::objects(spec, list) {
            requests_from_limits(container);
        }
    }
    default_pod_level_resources(spec);
    set::value(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default() {
        for list in ["containers", "initContainers"] {
            set::objects(spec, list).for_each(host_ports_from_container_ports);
        }
    }
    // A negative grace period means 1 second. Templates keep it until a pod is created from them.
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    set_spec_defaults(spec);
    set_status_defaults(pod);
}

/// Sets the defaults of a spec, in a pod or a template.
pub fn set_spec_defaults(spec: &mut Fields) {
    set::text(spec, "dnsPolicy", "ClusterFirst");
    set::text(spec, "restartPolicy", "Always");
    set::value(spec, "securityContext", Map::new());
    set::value(spec, "terminationGracePeriodSeconds", 30);
    set::text(spec, "schedulerName", "default-scheduler");
    mirror_service_account(spec);
    set::objects(spec, "volumes").for_each(set_volume_defaults);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        set::objects(spec, list).for_each(set_container_defaults);
    }
    resources::round_to_milli(spec.get_mut("overhead"));
    resources::round_requirements(spec.get_mut("resources"));
}

/// Synchronizes `serviceAccountName` with the deprecated `serviceAccount`; the former takes precedence.
pub fn mirror_service_account(spec: &mut Fields) {
    let name = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or_default();
    let (account, older) = (name("serviceAccountName"), name("serviceAccount"));
    match (account, older) {
        ("", "") => {}
        ("", older) => {
            let older = Value::from(older);
            spec.insert("serviceAccountName".to_owned(), older);
        }
        (account, older) if account != older => {
            let account = Value::from(account);
            spec.insert("serviceAccount".to_owned(), account);
        }
        _ => {}
    }
}

/// Synchronizes `podIP` with `podIPs`; the former takes precedence if they differ.
fn sync_pod_ips(status: &mut Fields) {
    let one = status.get("podIP").and_then(Value::as_str).unwrap_or_default();
    let first = status.get("podIPs").and_then(|list| list.get(0)).map(|ip| ip.text(&["ip"]));
    match (one, first) {
        ("", None | Some("")) => {}
        ("", Some(first)) => {
            let first = Value::from(first);
            status.insert("podIP".to_owned(), first);
        }
        (one, first) if first != Some(one) => {
            let list = json!([{"ip": one}]);
            status.insert("podIPs".to_owned(), list);
        }
        _ => {}
    }
}

fn set_status_defaults(pod: &mut Fields) {
    let Some(status) = set::object(pod, "status") else { return };
    sync_pod_ips(status);
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        for container in set::objects(status, list) {
            resources::round_to_milli(container.get_mut("allocatedResources"));
            resources::round_requirements(container.get_mut("resources"));
        }
    }
}

/// Sets the requests of a container to its limits where they are absent.
fn requests_from_limits(container: &mut Fields) {
    let Some(requirements) = set::object(container, "resources") else { return };
    let Some(Value::Object(limits)) = requirements.get("limits") else { return };
    if limits.is_empty() {
        return;
    }
    let limits = limits.clone();
    resources::fill_in(set::object_or_new(requirements, "requests"), &limits);
}

/// Sets pod-level requests and limits from those of the containers, for a pod with pod-level resources.
fn default_pod_level_resources(spec: &mut Fields) {
    let given = |side: &str| {
        spec.get("resources").and_then(|r| r.get(side)).and_then(Value::as_object).is_some_and(|list| !list.is_empty())
    };
    let (has_limits, has_requests) = (given("limits"), given("requests"));
    if !has_limits && !has_requests {
        return;
    }
    let whole = Value::Object(spec.clone());
    let limits = resources::of_containers(&whole, resources::Side::Limits);
    let requests = resources::of_containers(&whole, resources::Side::Requests);
    let Some(level) = set::object(spec, "resources") else { return };

    let requested = level.get("requests").and_then(Value::as_object).cloned().unwrap_or_default();
    let huge: Map<String, Value> = limits
        .iter()
        .filter(|(name, _)| resources::is_huge_page(name) && !requested.contains_key(*name))
        .map(|(name, quantity)| (name.clone(), Value::from(quantity.to_string())))
        .collect();
    if has_limits || !huge.is_empty() {
        resources::fill_in(set::object_or_new(level, "limits"), &huge);
    }

    let Some(Value::Object(limits)) = level.get("limits") else { return };
    let mut desired: Map<String, Value> = requests
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"))
        .map(|(name, quantity)| (name.clone(), Value::from(quantity.to_string())))
        .collect();
    for (name, limit) in limits {
        if resources::is_pod_level(name) && !desired.contains_key(name) {
            desired.insert(name.clone(), limit.clone());
        }
    }
    if !desired.is_empty() || !requested.is_empty() {
        resources::fill_in(set::object_or_new(level, "requests"), &desired);
    }
}

fn host_ports_from_container_ports(container: &mut Fields) {
    for port in set::objects(container, "ports") {
        let container_port = port.get("containerPort").and_then(Value::as_i64).unwrap_or_default();
        if container_port != 0 {
            set::number(port, "hostPort", container_port);
        }
    }
}

fn set_container_defaults(container: &mut Fields) {
    let policy = image::default_pull_policy(container.get("image").and_then(Value::as_str).unwrap_or_default());
    set::text(container, "imagePullPolicy", policy);
    set::text(container, "terminationMessagePath", "/dev/termination-log");
    set::text(container, "terminationMessagePolicy", "File");
    for port in set::objects(container, "ports") {
        set::text(port, "protocol", "TCP");
    }
    for variable in set::objects(container, "env") {
        if let Some(source) = set::object(variable, "valueFrom") {
            set_field_reference_defaults(source);
            if let Some(key) = set::object(source, "fileKeyRef") {
                set::value(key, "optional", false);
            }
        }
    }
    resources::round_requirements(container.get_mut("resources"));
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = set::object(container, name) {
            set_probe_defaults(probe);
        }
    }
    if let Some(lifecycle) = set::object(container, "lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(handler) = set::object(lifecycle, name) {
                set_http_defaults(handler);
            }
        }
    }
}

fn set_probe_defaults(probe: &mut Fields) {
    set::number(probe, "timeoutSeconds", 1);
    set::number(probe, "periodSeconds", 10);
    set::number(probe, "successThreshold", 1);
    set::number(probe, "failureThreshold", 3);
    set_http_defaults(probe);
    if let Some(grpc) = set::object(probe, "grpc") {
        set::value(grpc, "service", "");
    }
}

fn set_http_defaults(handler: &mut Fields) {
    if let Some(get) = set::object(handler, "httpGet") {
        set::text(get, "path", "/");
        set::text(get, "scheme", "HTTP");
    }
}

fn set_field_reference_defaults(holder: &mut Fields) {
    if let Some(reference) = set::object(holder, "fieldRef") {
        set::text(reference, "apiVersion", "v1");
    }
}

fn set_volume_defaults(volume: &mut Fields) {
    let has_source = volume.iter().any(|(name, value)| name != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".to_owned(), Value::Object(Map::new()));
    }
    set_source_defaults(volume);
    for (name, source) in volume.iter_mut() {
        let Some(source) = source.as_object_mut() else { continue };
        match name.as_str() {
            "secret" | "configMap" => set::value(source, "defaultMode", DEFAULT_MODE),
            "downwardAPI" => {
                set::value(source, "defaultMode", DEFAULT_MODE);
                set::objects(source, "items").for_each(set_field_reference_defaults);
            }
            "projected" => {
                set::value(source, "defaultMode", DEFAULT_MODE);
                set::objects(source, "sources").for_each(set_projection_defaults);
            }
            "ephemeral" => {
                if let Some(template) = set::object(source, "volumeClaimTemplate") {
                    set_claim_spec_defaults(set::object_or_new(template, "spec"));
                }
            }
            "image" => {
                let reference = source.get("reference").and_then(Value::as_str).unwrap_or_default();
                let policy = image::default_pull_policy(reference);
                set::text(source, "pullPolicy", policy);
            }
            _ => {}
        }
    }
}

/// Sets the defaults of volume sources that pods and PersistentVolumes share.
pub fn set_source_defaults(volume: &mut Fields) {
    for (name, source) in volume.iter_mut() {
        let Some(source) = source.as_object_mut() else { continue };
        match name.as_str() {
            "hostPath" => set::value(source, "type", ""),
            "iscsi" => set::text(source, "iscsiInterface", "default"),
            "rbd" => {
                set::text(source, "pool", "rbd");
                set::text(source, "user", "admin");
                set::text(source, "keyring", "/etc/ceph/keyring");
            }
            "azureDisk" => {
                set::value(source, "cachingMode", "ReadWrite");
                set::value(source, "fsType", "ext4");
                set::value(source, "readOnly", false);
                set::value(source, "kind", "Shared");
            }
            "scaleIO" => {
                set::text(source, "storageMode", "ThinProvisioned");
                set::text(source, "fsType", "xfs");
            }
            _ => {}
        }
    }
}

fn set_projection_defaults(projection: &mut Fields) {
    if let Some(downward) = set::object(projection, "downwardAPI") {
        set::objects(downward, "items").for_each(set_field_reference_defaults);
    }
    if let Some(token) = set::object(projection, "serviceAccountToken") {
        set::value(token, "expirationSeconds", TOKEN_SECONDS);
    }
}

/// Sets the defaults of the spec of a claim, in a PersistentVolumeClaim or in a template.
pub fn set_claim_spec_defaults(spec: &mut Fields) {
    set::value(spec, "volumeMode", "Filesystem");
    resources::round_requirements(spec.get_mut("resources"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
        set_pod_defaults(&mut pod);
        let once = pod.clone();
        set_pod_defaults(&mut pod);
        assert_eq!(pod, once, "defaults are idempotent");
        pod["spec"].take()
    }

    #[test]
    fn a_bare_pod_is_filled_in() {
        let spec = defaulted(json!({"containers": [{"name": "c", "image": "nginx", "resources": {}}]}));
        assert_eq!(
            spec,
            json!({
                "containers": [{
                    "name": "c", "image": "nginx", "resources": {}, "imagePullPolicy": "Always",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            })
        );
    }

    #[test]
    fn single_fields_are_filled_in() {
        for (given, pointer, expected) in [
            (json!({"volumes": [{"name": "v"}]}), "/volumes/0/emptyDir", json!({})),
            (json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), "/volumes/0/hostPath/type", json!("")),
            (json!({"volumes": [{"name": "v", "secret": {}}]}), "/volumes/0/secret/defaultMode", json!(420)),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                "/volumes/0/projected/sources/0/serviceAccountToken/expirationSeconds",
                json!(3600),
            ),
            (
                json!({"containers": [{"livenessProbe": {"httpGet": {"port": 80}}}]}),
                "/containers/0/livenessProbe",
                json!({
                    "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                    "successThreshold": 1, "failureThreshold": 3,
                }),
            ),
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1m"}}}]}),
                "/containers/0/resources/requests",
                json!({"cpu": "1m", "memory": "1Gi"}),
            ),
            (
                json!({"hostNetwork": true, "containers": [{"ports": [{"containerPort": 80}]}]}),
                "/containers/0/ports/0",
                json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}),
            ),
            (
                json!({
                    "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
                    "containers": [{"resources": {"requests": {"cpu": "500m"}}}],
                }),
                "/resources/requests",
                json!({"cpu": "500m", "memory": "1Gi"}),
            ),
            (json!({"serviceAccount": "a"}), "/serviceAccountName", json!("a")),
            (json!({"serviceAccount": "a", "serviceAccountName": "b"}), "/serviceAccount", json!("b")),
            (json!({"terminationGracePeriodSeconds": -5}), "/terminationGracePeriodSeconds", json!(1)),
        ] {
            assert_eq!(defaulted(given.clone()).pointer(pointer), Some(&expected), "{given}");
        }
    }
}
