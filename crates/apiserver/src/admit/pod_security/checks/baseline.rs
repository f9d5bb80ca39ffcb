//! The checks of the baseline level.

use std::collections::BTreeSet;

use knarr_api::value::Read;
use serde_json::Value;

use super::{Pod, Violation, containers, plural, quote, setters, violation};
use crate::admit::pod_security::level::LevelVersion;

pub fn app_armor(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
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

pub fn added(container: &Value) -> impl Iterator<Item = &str> {
    container.items(&["securityContext", "capabilities", "add"]).iter().filter_map(Value::as_str)
}

pub fn capabilities_baseline(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
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

pub fn host_namespaces(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let used: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod.spec.flag(&[field]) == Some(true))
        .map(|field| format!("{field}=true"))
        .collect();
    if used.is_empty() { None } else { violation("host namespaces", used.join(", ")) }
}

pub fn host_path_volumes(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let volumes = pod.spec.items(&["volumes"]).iter().filter(|volume| volume.has(&["hostPath"]));
    let names: Vec<String> = volumes.map(|volume| volume.text(&["name"]).to_owned()).collect();
    if names.is_empty() {
        return None;
    }
    violation("hostPath volumes", format!("{} {}", plural("volume", "volumes", names.len()), quote(&names)))
}

pub fn host_ports(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
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

pub fn host_probes(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
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

pub fn privileged(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let names = pod.named(|container| container.flag(&["securityContext", "privileged"]) == Some(true));
    if names.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", containers(&names)))
}

pub fn proc_mount(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
    if level.is_at_least(35) && pod.has_own_users() { None } else { any_proc_mount(pod) }
}

pub fn any_proc_mount(pod: &Pod<'_>) -> Option<Violation> {
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

pub fn selinux(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
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

pub const SECCOMP: [&str; 3] = ["securityContext", "seccompProfile", "type"];

fn bad_seccomp(object: &Value) -> bool {
    object.has(&SECCOMP[..2]) && !matches!(object.text(&SECCOMP), "RuntimeDefault" | "Localhost")
}

pub fn explicit_seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let who = setters(bad_seccomp(pod.spec), &pod.named(bad_seccomp))?;
    let all = std::iter::once(pod.spec).chain(pod.containers.iter().copied());
    let values: BTreeSet<String> =
        all.filter(|object| bad_seccomp(object)).map(|object| object.text(&SECCOMP).to_owned()).collect();
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {}", quote(&values));
    violation("seccompProfile", detail)
}

pub fn seccomp_baseline(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
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

pub fn sysctls(pod: &Pod<'_>, level: LevelVersion) -> Option<Violation> {
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

pub fn windows_host_process(pod: &Pod<'_>, _: LevelVersion) -> Option<Violation> {
    let bad = |object: &Value| object.flag(&["securityContext", "windowsOptions", "hostProcess"]) == Some(true);
    let who = setters(bad(pod.spec), &pod.named(bad))?;
    violation("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}
