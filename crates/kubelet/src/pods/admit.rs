//! Admission of pods on the node, which checks again what the scheduler decided from its cache.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use knarr_client::node_fit::{affinity_allows, untolerated};

use super::room::Room;
use crate::cgroup::qos::{QosClass, qos_class};
use crate::context::Context;
use crate::eviction::Pressure;
use crate::pod;
use crate::worker::resize::Pending;

#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

fn refusal_of(reason: &str, message: impl Into<String>) -> Option<Refusal> {
    Some(Refusal { reason: reason.to_string(), message: message.into() })
}

/// Sysctls that only affect the pod.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// The reason to reject a pod; none if it may run.
pub fn refusal(
    context: &Context,
    pod: &Pod,
    others: &[(Arc<Pod>, PodStatus)],
    pressure: Pressure,
    shutting_down: bool,
) -> Option<Refusal> {
    if shutting_down {
        return refusal_of("NodeShutdown", "Pod was rejected as the node is shutting down.");
    }
    let critical = pod::is_critical(pod);
    if !critical && pressure != Pressure::default() {
        let best_effort = qos_class(pod) == QosClass::BestEffort;
        let tolerates = pod::spec(pod)
            .tolerations
            .iter()
            .flatten()
            .any(|toleration| toleration.key.as_deref() == Some("node.kubernetes.io/memory-pressure"));
        let only_memory = Pressure { memory: true, ..Default::default() } == pressure;
        if !(only_memory && (!best_effort || tolerates)) {
            let names = names(pressure);
            return refusal_of("Evicted", format!("The node had condition: [{names}]. "));
        }
    }
    if pod::spec(pod).os.as_ref().is_some_and(|os| os.name != "linux") {
        return refusal_of("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    if needs_app_armor(pod) && !has_app_armor() {
        return refusal_of("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    }
    let groups = pod::spec(pod).security_context.as_ref().and_then(|own| own.supplemental_groups_policy.as_deref());
    if groups == Some("Strict") && !context.runtime_features.read().strict_groups {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return refusal_of("SupplementalGroupsPolicyNotSupported", message);
    }
    if let Some(why) = forbidden_sysctl(&context.settings.allowed_unsafe_sysctls, pod) {
        return refusal_of("SysctlForbidden", format!("forbidden sysctl: {why}"));
    }
    let node = context.node.get("", &context.settings.node_name);
    if let Some(refusal) = node.and_then(|node| wrong_node(&node, pod)) {
        return Some(refusal);
    }
    if critical { None } else { insufficient_resources(context, pod, others) }.or_else(|| port_conflict(pod, others))
}

fn names(pressure: Pressure) -> String {
    let all =
        [("MemoryPressure", pressure.memory), ("DiskPressure", pressure.disk), ("PIDPressure", pressure.processes)];
    all.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
}

/// An unconfined profile needs no kernel support.
fn needs_app_armor(pod: &Pod) -> bool {
    let spec = pod::spec(pod);
    let whole = spec.security_context.iter().filter_map(|context| context.app_armor_profile.as_ref());
    let containers = pod::roles(pod).filter_map(|(_, name)| pod::find(pod, name));
    let own = containers.filter_map(|found| found.container.security_context?.app_armor_profile);
    whole.cloned().chain(own).any(|profile| profile.type_ != "Unconfined")
}

fn has_app_armor() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'))
        && std::path::Path::new("/sys/kernel/security/apparmor").exists()
}

/// Why a sysctl must not be set: it may affect more than the pod.
fn forbidden_sysctl(allowed_unsafe: &[String], pod: &Pod) -> Option<String> {
    let spec = pod::spec(pod);
    let is_allowed = |name: &str| {
        SAFE_SYSCTLS.contains(&name)
            || allowed_unsafe.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => pattern == name,
            })
    };
    let needed = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    needed.map(|sysctl| sysctl.name.replace('/', ".")).find_map(|name| {
        let of_host = match name.split('.').next() {
            Some("net") => spec.host_network.filter(|shared| *shared).map(|_| "Net"),
            // All others that are known to be of a namespace.
            _ => spec.host_ipc.filter(|shared| *shared).map(|_| "IPC"),
        };
        match (is_allowed(&name), of_host) {
            (false, _) => Some(format!("\"{name}\" not allowlisted")),
            (true, Some(namespace)) => Some(format!("\"{name}\" not allowed with host {namespace} enabled")),
            (true, None) => None,
        }
    })
}

/// The node's labels and taints may have changed since the pod was bound, and its author may have chosen the node without the
/// scheduler.
fn wrong_node(node: &Node, pod: &Pod) -> Option<Refusal> {
    if !affinity_allows(pod::spec(pod), node) {
        let message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        return refusal_of("NodeAffinity", message);
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tolerations = pod::spec(pod).tolerations.as_deref().unwrap_or_default();
    if !pod::is_static(pod) && untolerated(taints, tolerations, &["NoExecute"]).is_some() {
        let message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
        return refusal_of("TaintToleration", message);
    }
    None
}

fn insufficient_resources(context: &Context, pod: &Pod, others: &[(Arc<Pod>, PodStatus)]) -> Option<Refusal> {
    let room = Room::new(&context.allocatable.read());
    let requests: Vec<_> = others.iter().map(|(other, _)| room.requests(other)).collect();
    room.refusal(&room.requests(pod), &requests.iter().collect())
}

/// Why a running pod cannot be resized to these resources.
pub fn resize_obstacle(pods: &super::Pods, pod: &Arc<Pod>) -> Option<Pending> {
    let room = Room::new(&pods.context.allocatable.read());
    let active = || pods.active().into_iter().map(|(pod, _)| pod).collect();
    pods.resizes.decide(pod, active, &room, Instant::now())
}

fn port_conflict(pod: &Pod, others: &[(Arc<Pod>, PodStatus)]) -> Option<Refusal> {
    let needed: Vec<_> = host_ports(pod).collect();
    if needed.is_empty() {
        return None;
    }
    let mut used: HashMap<(i32, String), Vec<String>> = HashMap::new();
    for (port, protocol, address) in others.iter().flat_map(|(other, _)| host_ports(other)) {
        used.entry((port, protocol)).or_default().push(address);
    }
    let clash = |(port, protocol, address): &(i32, String, String)| {
        let any = |address: &str| address.is_empty() || address == "0.0.0.0" || address == "::";
        let mut others = used.get(&(*port, protocol.clone())).into_iter().flatten();
        others.any(|other| any(address) || any(other) || address == other)
    };
    if needed.iter().any(clash) {
        return refusal_of(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        );
    }
    None
}

fn host_ports(pod: &Pod) -> impl Iterator<Item = (i32, String, String)> {
    let containers = pod::init_containers(pod).map(|(_, c)| c).chain(pod::main_containers(pod));
    containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        let number = port.host_port.filter(|port| *port > 0)?;
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        Some((number, protocol, port.host_ip.clone().unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sysctls_change_nothing_of_the_host() {
        let unsafe_ones = ["kernel.msg*".to_string(), "net.core.somaxconn".to_string()];
        for (name, host, expected) in [
            ("net.ipv4.tcp_syncookies", json!({}), None),
            ("net/ipv4/tcp_syncookies", json!({}), None),
            ("net.core.somaxconn", json!({}), None),
            ("kernel.msgmax", json!({ "hostNetwork": true }), None),
            ("kernel.panic", json!({}), Some("\"kernel.panic\" not allowlisted")),
            ("net.core.somaxconn.x", json!({}), Some("\"net.core.somaxconn.x\" not allowlisted")),
            (
                "net/ipv4/tcp_syncookies",
                json!({ "hostNetwork": true }),
                Some("\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
            ),
            ("kernel.msgmax", json!({ "hostIPC": true }), Some("\"kernel.msgmax\" not allowed with host IPC enabled")),
        ] {
            let mut spec = host;
            spec["containers"] = json!([]);
            spec["securityContext"] = json!({ "sysctls": [{ "name": name, "value": "1" }] });
            let pod = serde_json::from_value(json!({ "spec": spec.clone() })).expect("a pod");
            assert_eq!(forbidden_sysctl(&unsafe_ones, &pod).as_deref(), expected, "{spec}");
        }
    }

    #[test]
    fn a_pod_is_refused_that_does_not_fit_the_node() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": "n", "labels": { "zone": "a" } },
            "spec": { "taints": [{ "key": "ours", "effect": "NoExecute" }, { "key": "full", "effect": "NoSchedule" }] },
        }))
        .expect("a node");
        let tolerations = json!([{ "key": "ours", "operator": "Exists" }]);
        let refused = |source: &str, spec: serde_json::Value| {
            let mut pod = json!({ "metadata": { "annotations": { pod::CONFIG_SOURCE: source } }, "spec": spec });
            pod["spec"]["containers"] = json!([]);
            wrong_node(&node, &serde_json::from_value(pod).expect("a pod")).map(|refusal| refusal.reason)
        };
        assert_eq!(refused("api", json!({ "tolerations": tolerations })), None);
        assert_eq!(refused("api", json!({})).as_deref(), Some("TaintToleration"));
        assert_eq!(refused("file", json!({})), None);
        let elsewhere = json!({ "tolerations": tolerations, "nodeSelector": { "zone": "b" } });
        assert_eq!(refused("api", elsewhere).as_deref(), Some("NodeAffinity"));
    }

    #[test]
    fn profiles_that_confine_need_app_armor() {
        let profile = |kind: &str| json!({ "appArmorProfile": { "type": kind } });
        for (pod, container, expected) in [
            (json!({}), json!({}), false),
            (profile("RuntimeDefault"), json!({}), true),
            (profile("Unconfined"), profile("Unconfined"), false),
            (profile("Unconfined"), profile("Localhost"), true),
        ] {
            let spec = json!({ "securityContext": pod, "containers": [{ "name": "a", "securityContext": container }] });
            let pod = serde_json::from_value(json!({ "spec": spec.clone() })).expect("a pod");
            assert_eq!(needs_app_armor(&pod), expected, "{spec}");
        }
    }
}
