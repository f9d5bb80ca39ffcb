//! The checks of each Pod Security level.

use std::collections::BTreeSet;

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
    let mut checks: Vec<Check> = vec![app_armor];
    if !(restricted && level.is_at_least(22)) {
        checks.push(capabilities_baseline);
    }
    checks.push(host_namespaces);
    if !restricted {
        checks.push(host_path_volumes);
    }
    checks.extend([host_ports as Check, host_probes, privileged]);
    if !(restricted && level.is_at_least(35)) {
        checks.push(proc_mount);
    }
    checks.push(selinux);
    if !(restricted && level.is_at_least(19)) {
        checks.push(seccomp_baseline);
    }
    checks.extend([sysctls as Check, windows_host_process]);
    if restricted {
        checks.extend([
            privilege_escalation as Check,
            capabilities_restricted,
            proc_mount_restricted,
            restricted_volumes,
            run_as_non_root,
            run_as_user,
            seccomp_restricted,
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

fn app_armor(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let path = ["securityContext", "appArmorProfile", "type"];
    let mut values = BTreeSet::new();
    let bad = |object: &Value| !matches!(object.text(&path), "" | "RuntimeDefault" | "Localhost");
    let pod_bad = bad(pod.spec);
    let names = pod.named(bad);
    let all = std::iter::once(pod.spec).chain(pod.containers.iter().copied());
    values.extend(all.filter(|object| bad(object)).map(|object| object.text(&path).to_owned()));
    let mut annotations: Vec<String> = Vec::new();
    for (key, value) in pod.metadata.fields(&["annotations"]).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let allowed = value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
        if key.starts_with(ANNOTATION) && !allowed {
            annotations.push(format!("{key}={value:?}"));
        }
    }
    let mut who: Vec<String> = setters(pod_bad, &names).into_iter().collect();
    if !annotations.is_empty() {
        who.push(plural("annotation", "annotations", annotations.len()).to_owned());
    }
    if who.is_empty() {
        return None;
    }
    let profiles: Vec<String> = values.into_iter().chain(annotations).collect();
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", profiles.len());
    violation(reason, format!("{} must not set AppArmor profile type to {}", who.join(" and "), quote(&profiles)))
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn added(container: &Value) -> impl Iterator<Item = &str> {
    container.items(&["securityContext", "capabilities", "add"]).iter().filter_map(Value::as_str)
}

fn capabilities_baseline(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let is_bad = |name: &&str| !DEFAULT_CAPABILITIES.contains(name);
    let names = pod.named(|container| added(container).any(|name| is_bad(&name)));
    let values: BTreeSet<String> =
        pod.containers.iter().flat_map(|c| added(c)).filter(is_bad).map(str::to_owned).collect();
    if names.is_empty() {
        return None;
    }
    let detail =
        format!("{} must not include {} in securityContext.capabilities.add", containers(&names), quote(&values));
    violation("non-default capabilities", detail)
}

fn capabilities_restricted(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(22) || (level.is_at_least(25) && pod.is_windows()) {
        return None;
    }
    let keeps = pod.named(|container| {
        !container.items(&["securityContext", "capabilities", "drop"]).iter().any(|name| name == "ALL")
    });
    let adds = pod.named(|container| added(container).any(|name| name != "NET_BIND_SERVICE"));
    let all = pod.containers.iter().flat_map(|container| added(container));
    let values: BTreeSet<String> = all.filter(|name| *name != "NET_BIND_SERVICE").map(str::to_owned).collect();
    let mut details = Vec::new();
    if !keeps.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeps)));
    }
    if !adds.is_empty() {
        let list = quote(&values);
        details.push(format!("{} must not include {list} in securityContext.capabilities.add", containers(&adds)));
    }
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let used: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod.spec.flag(&[field]) == Some(true))
        .map(|field| format!("{field}=true"))
        .collect();
    if used.is_empty() { None } else { violation("host namespaces", used.join(", ")) }
}

fn host_path_volumes(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let volumes = pod.spec.items(&["volumes"]).iter().filter(|volume| volume.has(&["hostPath"]));
    let names: Vec<String> = volumes.map(|volume| volume.text(&["name"]).to_owned()).collect();
    if names.is_empty() {
        return None;
    }
    violation("hostPath volumes", format!("{} {}", plural("volume", "volumes", names.len()), quote(&names)))
}

fn host_ports(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let ports = |container: &Value| -> Vec<i64> {
        let ports = container.items(&["ports"]).iter().filter_map(|port| port.integer(&["hostPort"]));
        ports.filter(|port| *port != 0).collect()
    };
    let names = pod.named(|container| !ports(container).is_empty());
    if names.is_empty() {
        return None;
    }
    let used: BTreeSet<String> =
        pod.containers.iter().flat_map(|container| ports(container)).map(|port| port.to_string()).collect();
    let detail = format!(
        "{} {} {} {}",
        containers(&names),
        plural("uses", "use", names.len()),
        plural("hostPort", "hostPorts", used.len()),
        used.into_iter().collect::<Vec<_>>().join(", ")
    );
    violation("hostPort", detail)
}

fn host_probes(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(34) {
        return None;
    }
    let hosts = |container: &Value| -> Vec<String> {
        let handlers = [
            container.at(&["livenessProbe"]),
            container.at(&["readinessProbe"]),
            container.at(&["startupProbe"]),
            container.at(&["lifecycle", "postStart"]),
            container.at(&["lifecycle", "preStop"]),
        ];
        let hosts = handlers.into_iter().flat_map(|handler| {
            [handler.text(&["httpGet", "host"]).to_owned(), handler.text(&["tcpSocket", "host"]).to_owned()]
        });
        hosts.filter(|host| !host.is_empty()).collect()
    };
    let mut names = pod.named(|container| !hosts(container).is_empty());
    names.sort();
    if names.is_empty() {
        return None;
    }
    let used: BTreeSet<String> = pod.containers.iter().flat_map(|container| hosts(container)).collect();
    let detail = format!(
        "{} {} {} {}",
        containers(&names),
        plural("uses", "use", names.len()),
        plural("probe or lifecycle host", "probe or lifecycle hosts", used.len()),
        quote(&used)
    );
    violation("probe or lifecycle host", detail)
}

fn privileged(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let names = pod.named(|container| container.flag(&["securityContext", "privileged"]) == Some(true));
    if names.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", containers(&names)))
}

fn proc_mount(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(35) && pod.has_own_users() { None } else { any_proc_mount(pod) }
}

fn proc_mount_restricted(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(35) { any_proc_mount(pod) } else { None }
}

fn any_proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let path = ["securityContext", "procMount"];
    let bad = |container: &Value| !matches!(container.text(&path), "" | "Default");
    let names = pod.named(bad);
    if names.is_empty() {
        return None;
    }
    let values: BTreeSet<String> =
        pod.containers.iter().filter(|c| bad(c)).map(|container| container.text(&path).to_owned()).collect();
    violation(
        "procMount",
        format!("{} must not set securityContext.procMount to {}", containers(&names), quote(&values)),
    )
}

fn selinux(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    let allowed: &[&str] = if level.is_at_least(31) {
        &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"]
    } else {
        &["", "container_t", "container_init_t", "container_kvm_t"]
    };
    let options =
        |object: &'_ Value, field: &str| object.text(&["securityContext", "seLinuxOptions", field]).to_owned();
    let bad_type = |object: &Value| !allowed.contains(&options(object, "type").as_str());
    let bad =
        |object: &Value| bad_type(object) || !options(object, "user").is_empty() || !options(object, "role").is_empty();
    let who = setters(bad(pod.spec), &pod.named(bad))?;
    let all = || std::iter::once(pod.spec).chain(pod.containers.iter().copied());
    let types: BTreeSet<String> =
        all().filter(|object| bad_type(object)).map(|object| options(object, "type")).collect();
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", types.len()), quote(&types)));
    }
    for field in ["user", "role"] {
        if all().any(|object| !options(object, field).is_empty()) {
            data.push(format!("{field} may not be set"));
        }
    }
    violation("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")))
}

const SECCOMP: [&str; 3] = ["securityContext", "seccompProfile", "type"];

fn bad_seccomp(object: &Value) -> bool {
    object.has(&SECCOMP[..2]) && !matches!(object.text(&SECCOMP), "RuntimeDefault" | "Localhost")
}

fn explicit_seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let who = setters(bad_seccomp(pod.spec), &pod.named(bad_seccomp))?;
    let all = std::iter::once(pod.spec).chain(pod.containers.iter().copied());
    let values: BTreeSet<String> =
        all.filter(|object| bad_seccomp(object)).map(|object| object.text(&SECCOMP).to_owned()).collect();
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {}", quote(&values));
    violation("seccompProfile", detail)
}

fn seccomp_baseline(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(19) {
        return explicit_seccomp(pod);
    }
    let mut forbidden = BTreeSet::new();
    for (key, value) in pod.metadata.fields(&["annotations"]).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let of_container = key
            .strip_prefix("container.seccomp.security.alpha.kubernetes.io/")
            .is_some_and(|name| pod.containers.iter().any(|container| container.text(&["name"]) == name));
        let allowed = matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
        if (key == "seccomp.security.alpha.kubernetes.io/pod" || of_container) && !allowed {
            forbidden.insert(format!("{key}={value:?}"));
        }
    }
    if forbidden.is_empty() {
        return None;
    }
    let title = plural("annotation", "annotations", forbidden.len());
    let list = forbidden.iter().cloned().collect::<Vec<_>>().join(", ");
    violation("seccompProfile", format!("forbidden {title} {list}"))
}

fn seccomp_restricted(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(19) || (level.is_at_least(25) && pod.is_windows()) {
        return None;
    }
    if let Some(found) = explicit_seccomp(pod) {
        return Some(found);
    }
    if pod.spec.has(&SECCOMP[..2]) {
        return None;
    }
    let names = pod.named(|container| !container.has(&SECCOMP[..2]));
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        containers(&names)
    );
    violation("seccompProfile", detail)
}

fn sysctls(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    const SINCE: [(u32, &[&str]); 4] = [
        (
            0,
            &[
                "kernel.shm_rmid_forced",
                "net.ipv4.ip_local_port_range",
                "net.ipv4.tcp_syncookies",
                "net.ipv4.ping_group_range",
                "net.ipv4.ip_unprivileged_port_start",
            ],
        ),
        (27, &["net.ipv4.ip_local_reserved_ports"]),
        (
            29,
            &[
                "net.ipv4.tcp_keepalive_time",
                "net.ipv4.tcp_fin_timeout",
                "net.ipv4.tcp_keepalive_intvl",
                "net.ipv4.tcp_keepalive_probes",
            ],
        ),
        (32, &["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]),
    ];
    let allowed = |name: &str| SINCE.iter().any(|(minor, names)| level.is_at_least(*minor) && names.contains(&name));
    let names = pod.spec.items(&["securityContext", "sysctls"]).iter().map(|sysctl| sysctl.text(&["name"]));
    let forbidden: Vec<&str> = names.filter(|name| !allowed(name)).collect();
    if forbidden.is_empty() { None } else { violation("forbidden sysctls", forbidden.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let bad = |object: &Value| object.flag(&["securityContext", "windowsOptions", "hostProcess"]) == Some(true);
    let who = setters(bad(pod.spec), &pod.named(bad))?;
    violation("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(25) && pod.is_windows() {
        return None;
    }
    let names = pod.named(|container| container.flag(&["securityContext", "allowPrivilegeEscalation"]) != Some(false));
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names));
    violation("allowPrivilegeEscalation != false", detail)
}

fn restricted_volumes(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let mut names = Vec::new();
    let mut kinds = BTreeSet::new();
    for volume in pod.spec.items(&["volumes"]) {
        if ALLOWED.iter().any(|kind| volume.has(&[kind])) {
            continue;
        }
        names.push(volume.text(&["name"]).to_owned());
        let kind = volume.as_object().and_then(|fields| fields.keys().find(|key| *key != "name"));
        kinds.insert(kind.map_or("unknown", String::as_str).to_owned());
    }
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", names.len()),
        quote(&names),
        plural("uses", "use", names.len()),
        plural("restricted volume type", "restricted volume types", kinds.len()),
        quote(&kinds)
    );
    violation("restricted volume types", detail)
}

fn run_as_non_root(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(35) && pod.has_own_users() {
        return None;
    }
    let path = ["securityContext", "runAsNonRoot"];
    let explicit = pod.named(|container| container.flag(&path) == Some(false));
    let of_pod = pod.spec.flag(&path);
    if let Some(who) = setters(of_pod == Some(false), &explicit) {
        return violation("runAsNonRoot != true", format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    if of_pod == Some(true) {
        return None;
    }
    let implicit = pod.named(|container| container.flag(&path).is_none());
    if implicit.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&implicit));
    violation("runAsNonRoot != true", detail)
}

fn run_as_user(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if !level.is_at_least(23) || (level.is_at_least(35) && pod.has_own_users()) {
        return None;
    }
    let bad = |object: &Value| object.integer(&["securityContext", "runAsUser"]) == Some(0);
    let who = setters(bad(pod.spec), &pod.named(bad))?;
    violation("runAsUser=0", format!("{who} must not set runAsUser=0"))
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
