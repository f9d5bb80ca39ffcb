//! The checks of each Pod Security level.

mod baseline;
mod restricted;

use knarr_api::value::Read;
use serde_json::Value;

use super::level::{Level, LevelVersion};

#[derive(Debug)]
pub struct Violation {
    pub reason: String,
    pub detail: String,
}

type Check = fn(&Pod<'_>, LevelVersion) -> Option<Violation>;

/// A pod or pod template with all its containers.
struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
    containers: Vec<&'a Value>,
}

/// All violations of the level by the pod, in the order of messages.
pub fn evaluate(level: LevelVersion, pod: &Value) -> Vec<Violation> {
    if level.level == Level::Privileged {
        return Vec::new();
    }
    let spec = pod.at(&["spec"]);
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let containers = lists.into_iter().flat_map(|list| spec.items(&[list])).collect();
    let pod = Pod { metadata: pod.at(&["metadata"]), spec, containers };
    let restricted = level.level == Level::Restricted;
    let mut checks: Vec<Check> = vec![baseline::app_armor];
    if !(restricted && level.is_at_least(22)) {
        checks.push(baseline::capabilities_baseline);
    }
    checks.push(baseline::host_namespaces);
    if !restricted {
        checks.push(baseline::host_path_volumes);
    }
    checks.extend([baseline::host_ports as Check, baseline::host_probes, baseline::privileged]);
    if !(restricted && level.is_at_least(35)) {
        checks.push(baseline::proc_mount);
    }
    checks.push(baseline::selinux);
    if !(restricted && level.is_at_least(19)) {
        checks.push(baseline::seccomp_baseline);
    }
    checks.extend([baseline::sysctls as Check, baseline::windows_host_process]);
    if restricted {
        checks.extend([
            restricted::privilege_escalation as Check,
            restricted::capabilities_restricted,
            restricted::proc_mount_restricted,
            restricted::restricted_volumes,
            restricted::run_as_non_root,
            restricted::run_as_user,
            restricted::seccomp_restricted,
        ]);
    }
    checks.into_iter().filter_map(|check| check(&pod, level)).collect()
}

impl<'a> Pod<'a> {
    /// Names of the containers for which the test is true.
    fn named(&self, test: impl Fn(&'a Value) -> bool) -> Vec<String> {
        let bad = self.containers.iter().filter(|container| test(container));
        bad.map(|container| container.text(&["name"]).to_owned()).collect()
    }

    fn is_windows(&self) -> bool {
        self.spec.text(&["os", "name"]) == "windows"
    }

    fn has_own_users(&self) -> bool {
        self.spec.flag(&["hostUsers"]) == Some(false)
    }
}

fn violation(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail: detail.into() })
}

fn quote<'a>(items: impl IntoIterator<Item = &'a String>) -> String {
    items.into_iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ")
}

fn containers(names: &[String]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quote(names))
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `pod`, `containers "a", "b"`, or both.
fn setters(pod: bool, names: &[String]) -> Option<String> {
    let mut parts = Vec::new();
    if pod {
        parts.push("pod".to_owned());
    }
    if !names.is_empty() {
        parts.push(containers(names));
    }
    if parts.is_empty() { None } else { Some(parts.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_violation_is_reported() {
        let baseline = LevelVersion { level: Level::Baseline, version: None };
        for (spec, expected) in [
            (json!({"hostNetwork": true, "hostPID": true}), "host namespaces (hostNetwork=true, hostPID=true)"),
            (json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), "hostPath volumes (volume \"v\")"),
            (
                json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}]}, {"name": "b", "ports": [{"hostPort": 81}]}]}),
                "hostPort (containers \"a\", \"b\" use hostPorts 80, 81)",
            ),
            (
                json!({"containers": [{"name": "a", "securityContext": {"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}}]}),
                "non-default capabilities (container \"a\" must not include \"NET_ADMIN\" in \
                 securityContext.capabilities.add)",
            ),
            (
                json!({"securityContext": {"seLinuxOptions": {"type": "x", "user": "u"}}}),
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"x\"; user may not be set)",
            ),
            (json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}), "forbidden sysctls (kernel.msgmax)"),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
                "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
        ] {
            let found = evaluate(baseline, &json!({"spec": spec}));
            let rendered: Vec<String> = found.iter().map(|v| format!("{} ({})", v.reason, v.detail)).collect();
            assert_eq!(rendered, [expected], "{spec}");
        }
    }
}
