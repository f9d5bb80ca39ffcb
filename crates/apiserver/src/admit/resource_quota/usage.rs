//! How much of each quota resource an object uses.

use knarr_api::quantity::{Format, Quantity};
use knarr_api::value::Read;
use knarr_rules::common::resources::{ResourceList, Side, list as amounts, of_pod};
use serde_json::Value;

const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

fn number(value: i64) -> Quantity {
    Quantity::new(value, Format::DecimalSi)
}

/// The usage of one object, by quota resource name.
pub fn usage(group: &str, resource: &str, object: &Value) -> ResourceList {
    let counted = match group {
        "" => format!("count/{resource}"),
        group => format!("count/{resource}.{group}"),
    };
    let mut used = ResourceList::from([(counted, number(1))]);
    match (group, resource) {
        ("", "pods") => add_pod(&mut used, object),
        ("", "services") => add_service(&mut used, object),
        ("", "persistentvolumeclaims") => add_claim(&mut used, object),
        ("", "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas") => {
            used.insert(resource.to_owned(), number(1));
        }
        _ => {}
    }
    used
}

/// A terminated pod counts only as an object.
fn add_pod(used: &mut ResourceList, pod: &Value) {
    if matches!(pod.text(&["status", "phase"]), "Failed" | "Succeeded") {
        return;
    }
    used.insert("pods".to_owned(), number(1));
    for (name, amount) in of_pod(pod, Side::Requests) {
        let is_compute = COMPUTE.contains(&name.as_str());
        if is_compute || name.starts_with("hugepages-") {
            used.insert(format!("requests.{name}"), amount.clone());
            used.insert(name, amount);
        } else if name.contains('/') {
            used.insert(format!("requests.{name}"), amount);
        }
    }
    for (name, amount) in of_pod(pod, Side::Limits) {
        if COMPUTE.contains(&name.as_str()) {
            used.insert(format!("limits.{name}"), amount);
        }
    }
}

fn add_service(used: &mut ResourceList, service: &Value) {
    let ports = service.items(&["spec", "ports"]);
    let all = i64::try_from(ports.len()).unwrap_or(i64::MAX);
    let (node_ports, balancers) = match service.text(&["spec", "type"]) {
        "NodePort" => (all, 0),
        "LoadBalancer" if service.flag(&["spec", "allocateLoadBalancerNodePorts"]) == Some(false) => {
            let given = ports.iter().filter(|port| port.integer(&["nodePort"]).is_some_and(|port| port != 0)).count();
            (i64::try_from(given).unwrap_or(i64::MAX), 1)
        }
        "LoadBalancer" => (all, 1),
        _ => (0, 0),
    };
    used.insert("services".to_owned(), number(1));
    used.insert("services.nodeports".to_owned(), number(node_ports));
    used.insert("services.loadbalancers".to_owned(), number(balancers));
}

fn add_claim(used: &mut ResourceList, claim: &Value) {
    let class = match claim.at(&["metadata", "annotations"]).text(&["volume.beta.kubernetes.io/storage-class"]) {
        "" => claim.text(&["spec", "storageClassName"]),
        class => class,
    };
    let size = amounts(claim.at(&["spec", "resources", "requests"])).remove("storage");
    for prefix in [String::new(), format!("{class}.storageclass.storage.k8s.io/")] {
        if class.is_empty() && !prefix.is_empty() {
            continue;
        }
        used.insert(format!("{prefix}persistentvolumeclaims"), number(1));
        if let Some(size) = &size {
            used.insert(format!("{prefix}requests.storage"), size.clone());
        }
    }
}

/// Whether this kind of object counts towards a quota resource.
pub fn concerns(group: &str, resource: &str, name: &str) -> bool {
    // Events are created by components, not by the users that quotas limit.
    if let ("" | "events.k8s.io", "events") = (group, resource) {
        return false;
    }
    let counted = match group {
        "" => name.strip_prefix("count/") == Some(resource),
        group => name.strip_prefix("count/") == Some(format!("{resource}.{group}").as_str()),
    };
    let own = match (group, resource) {
        ("", "pods") => {
            let plain = name.strip_prefix("requests.").or(name.strip_prefix("limits.")).unwrap_or(name);
            name == "pods"
                || COMPUTE.contains(&plain)
                || plain.starts_with("hugepages-")
                || (name.starts_with("requests.") && plain.contains('/'))
        }
        ("", "services") => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
        ("", "persistentvolumeclaims") => {
            let plain = name.split_once(".storageclass.storage.k8s.io/").map_or(name, |(_, plain)| plain);
            matches!(plain, "persistentvolumeclaims" | "requests.storage")
        }
        ("", "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas") => name == resource,
        _ => false,
    };
    counted || own
}

/// The error for containers that do not set compute resources that a quota limits.
pub fn unnamed(pod: &Value, hard: &[&str]) -> Option<String> {
    if pod.has(&["spec", "resources"]) && !amounts(pod.at(&["spec", "resources", "requests"])).is_empty() {
        return None;
    }
    let mut required: Vec<&str> = hard
        .iter()
        .copied()
        .filter(|name| {
            matches!(*name, "cpu" | "memory" | "requests.cpu" | "requests.memory" | "limits.cpu" | "limits.memory")
        })
        .collect();
    required.sort_unstable();
    let mut texts = Vec::new();
    for name in required {
        let (which, resource) = match name.strip_prefix("limits.") {
            Some(resource) => ("limits", resource),
            None => ("requests", name.strip_prefix("requests.").unwrap_or(name)),
        };
        let lists = ["containers", "initContainers"];
        let containers = lists.into_iter().flat_map(|list| pod.items(&["spec", list]));
        let mut missing: Vec<&str> = containers
            .filter(|container| container.at(&["resources", which]).get(resource).is_none())
            .map(|container| container.text(&["name"]))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        if !missing.is_empty() {
            texts.push(format!("{name} for: {}", missing.join(",")));
        }
    }
    if texts.is_empty() { None } else { Some(format!("must specify {}", texts.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_count_as_quotas_name_them() {
        let rendered = |group: &str, resource: &str, object: Value| -> Vec<String> {
            usage(group, resource, &object).iter().map(|(name, amount)| format!("{name}={amount}")).collect()
        };
        assert_eq!(rendered("apps", "deployments", json!({})), ["count/deployments.apps=1"]);
        assert_eq!(
            rendered("", "services", json!({"spec": {"type": "NodePort", "ports": [{}, {}]}})),
            ["count/services=1", "services=1", "services.loadbalancers=0", "services.nodeports=2"]
        );
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "1", "example.com/gpu": "2"}}}]}});
        assert_eq!(
            rendered("", "pods", pod),
            ["count/pods=1", "cpu=1", "pods=1", "requests.cpu=1", "requests.example.com/gpu=2"]
        );
        let ended = json!({"status": {"phase": "Succeeded"}});
        assert_eq!(rendered("", "pods", ended), ["count/pods=1"]);
    }

    #[test]
    fn which_objects_count_towards_a_name() {
        for (group, resource, name, expected) in [
            ("", "configmaps", "count/configmaps", true),
            ("apps", "deployments", "count/deployments.apps", true),
            ("apps", "deployments", "count/deployments", false),
            ("", "events", "count/events", false),
            ("events.k8s.io", "events", "count/events.events.k8s.io", false),
        ] {
            assert_eq!(concerns(group, resource, name), expected, "{resource}.{group} for {name}");
        }
    }
}
