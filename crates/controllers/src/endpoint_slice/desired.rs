//! Computes which endpoints a service should have.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, ForNode, ForZone};
use k8s_openapi::jiff::Timestamp;
use knarr_client::{owner, pod};

use super::plan::{Desired, Parent};
use super::topology;
use super::{CONTROLLER, MANAGED_BY, SERVICE_NAME};
use crate::common::key::{name, namespace};
use crate::common::port_order;
use crate::common::service_pods::{
    HEADLESS, TRIGGER_TIME, addresses, belongs_in_endpoints, families, hostname_for, is_headless, target_port,
};

pub(super) struct DesiredEndpoints {
    pub families: Vec<&'static str>,
    pub endpoints: Vec<Desired>,
    /// Why pods that should be included were left out.
    pub skipped: Vec<String>,
}

pub(super) fn of_service(
    service: &Service,
    spec: &ServiceSpec,
    pods: &[Arc<Pod>],
    node: impl Fn(&str) -> Option<Arc<Node>>,
) -> DesiredEndpoints {
    let mut desired = DesiredEndpoints { families: families(spec), endpoints: Vec::new(), skipped: Vec::new() };
    let publish_unready = spec.publish_not_ready_addresses == Some(true);
    let mut lists = PortLists::default();
    for pod in pods.iter().filter(|pod| belongs_in_endpoints(pod, true)) {
        let node_name = pod::node_name(pod).unwrap_or("");
        let node = node(node_name);
        if node.is_none() && !publish_unready {
            desired.skipped.push(format!(
                "skipping Pod {} for Service {}/{}: Node {node_name} Not Found",
                name(&**pod),
                namespace(service),
                name(service)
            ));
            continue;
        }
        let Some(ports) = lists.shared(ports(spec, pod)) else {
            desired.skipped.push(format!(
                "skipping Pod {} for Service {}/{}: its pods have too many different ports",
                name(&**pod),
                namespace(service),
                name(service)
            ));
            continue;
        };
        for family in desired.families.clone() {
            let endpoint = endpoint(pod, node.as_deref(), service, spec, family);
            if !endpoint.addresses.is_empty() {
                desired.endpoints.push(Desired { family, ports: ports.clone(), endpoint });
            }
        }
    }
    desired
}

/// The different lists of ports that pods of a Service have. Usually there is one; a pod can give a named port any number, though.
#[derive(Default)]
struct PortLists(Vec<Arc<[EndpointPort]>>);

impl PortLists {
    /// How many ports the lists may have in all: each list becomes a slice.
    const MAX_PORTS: usize = 100_000;

    /// The list itself, shared with other pods; `None` if there are too many.
    fn shared(&mut self, ports: Vec<EndpointPort>) -> Option<Arc<[EndpointPort]>> {
        if let Some(known) = self.0.iter().rev().find(|known| ***known == *ports) {
            return Some(known.clone());
        }
        let all = self.0.iter().map(|known| known.len()).sum::<usize>();
        if !self.0.is_empty() && all + ports.len() > Self::MAX_PORTS {
            return None;
        }
        let ports: Arc<[EndpointPort]> = ports.into();
        self.0.push(ports.clone());
        Some(ports)
    }
}

pub(super) fn parent_of(service: &Service, spec: &ServiceSpec, trigger_time: Option<Timestamp>) -> Parent {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(spec) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), name(service).to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let trigger = trigger_time.map(|at| (TRIGGER_TIME.to_owned(), at.to_string()));
    Parent {
        namespace: namespace(service).to_owned(),
        name: name(service).to_owned(),
        owner: owner::controller_reference(service),
        labels,
        annotations: None,
        written_annotations: trigger.into_iter().collect::<BTreeMap<_, _>>(),
        is_leaving: service.metadata.deletion_timestamp.is_some(),
    }
}

fn ports(spec: &ServiceSpec, pod: &Pod) -> Vec<EndpointPort> {
    let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(target_port(pod, port)?),
            protocol: port.protocol.clone().or_else(|| Some("TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
    };
    let mut ports: Vec<EndpointPort> = spec.ports.iter().flatten().filter_map(port).collect();
    ports.sort_by_cached_key(port_order::in_slice);
    ports
}

fn endpoint(pod: &Pod, node: Option<&Node>, service: &Service, spec: &ServiceSpec, family: &str) -> Endpoint {
    let serving = pod::is_ready(pod);
    let terminating = pod::is_terminating(pod);
    let ready = spec.publish_not_ready_addresses == Some(true) || serving && !terminating;
    let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned());
    let zone = zone.filter(|zone| !zone.is_empty());
    let node_name = pod::node_name(pod).map(str::to_owned);
    Endpoint {
        addresses: addresses(pod, family == "IPv6"),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: (ready && !topology::is_requested(service))
            .then(|| hints(spec, zone.as_deref(), node_name.as_deref()))
            .flatten(),
        hostname: hostname_for(pod, service),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        node_name,
        zone,
        deprecated_topology: None,
    }
}

/// The zones and nodes that should use an endpoint of a service that prefers close endpoints.
fn hints(spec: &ServiceSpec, zone: Option<&str>, node: Option<&str>) -> Option<EndpointHints> {
    let (close, same_node) = match spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => (true, false),
        Some("PreferSameNode") => (true, true),
        _ => (false, false),
    };
    let for_zones = zone.filter(|_| close).map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let for_nodes = node.filter(|_| same_node).map(|node| vec![ForNode { name: node.to_owned() }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_zones, for_nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, ready: bool, extra: Value) -> Arc<Pod> {
        let mut value = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}
        });
        json_patch_like(&mut value, extra);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn json_patch_like(value: &mut Value, extra: Value) {
        for (section, fields) in extra.as_object().cloned().unwrap_or_default() {
            for (key, field) in fields.as_object().cloned().unwrap_or_default() {
                value[&section][&key] = field;
            }
        }
    }

    fn desired(spec: Value, pods: &[Arc<Pod>]) -> DesiredEndpoints {
        let service: Service =
            serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": spec})).unwrap();
        let spec = service.spec.clone().unwrap();
        of_service(&service, &spec, pods, |node| {
            let labels = json!({"topology.kubernetes.io/zone": "z1"});
            (node == "n1").then(|| Arc::new(serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap()))
        })
    }

    #[test]
    fn pods_become_endpoints() {
        let spec = json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "raw", "port": 81}]});
        let found = desired(spec, &[pod("a", "n1", true, json!({})), pod("b", "n1", false, json!({}))]);
        assert_eq!(found.endpoints.len(), 2);
        let first = &found.endpoints[0];
        assert_eq!(first.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [Some(8080), Some(81)]);
        assert_eq!(first.endpoint.addresses, ["10.0.0.1"]);
        assert_eq!(first.endpoint.zone.as_deref(), Some("z1"));
        assert_eq!(first.endpoint.conditions.as_ref().unwrap().ready, Some(true));
        assert_eq!(found.endpoints[1].endpoint.conditions.as_ref().unwrap().ready, Some(false));
    }

    /// A pod can give a named port any number, so that its list of ports is like no other's.
    #[test]
    fn ports_of_many_pods_are_kept_once_and_different_ones_are_limited() {
        let ports: Vec<Value> =
            (1..=30_000).map(|port| json!({"name": format!("p{port}"), "port": port, "targetPort": "web"})).collect();
        let spec = json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "ports": ports});
        let pods: Vec<Arc<Pod>> = (0..5).map(|n| pod(&format!("p{n}"), "n1", true, json!({}))).collect();
        let found = desired(spec.clone(), &pods);
        assert_eq!((found.endpoints.len(), found.skipped.len()), (5, 0));
        assert!(found.endpoints.iter().all(|each| Arc::ptr_eq(&each.ports, &found.endpoints[0].ports)));
        let different = |n: usize| {
            let containers = json!([{"name": "c", "ports": [{"name": "web", "containerPort": 1000 + n}]}]);
            pod(&format!("p{n}"), "n1", true, json!({"spec": {"containers": containers}}))
        };
        let pods: Vec<Arc<Pod>> = (0..5).map(different).collect();
        let found = desired(spec, &pods);
        assert_eq!((found.endpoints.len(), found.skipped.len()), (3, 2));
    }

    #[test]
    fn who_is_left_out_and_who_is_not() {
        let spec = json!({"clusterIP": "None", "ipFamilies": ["IPv4", "IPv6"]});
        let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let done = json!({"status": {"phase": "Succeeded"}});
        let named = json!({"spec": {"hostname": "db-0", "subdomain": "s"}});
        let pods = [
            pod("gone", "n1", true, done),
            pod("leaving", "n1", true, leaving),
            pod("named", "n1", true, named),
            pod("lost", "n9", true, json!({})),
        ];
        let found = desired(spec, &pods);
        assert_eq!(found.endpoints.len(), 4, "two pods in two families");
        let conditions = found.endpoints[0].endpoint.conditions.clone().unwrap();
        assert_eq!(
            (conditions.ready, conditions.serving, conditions.terminating),
            (Some(false), Some(true), Some(true))
        );
        assert_eq!(found.endpoints[2].endpoint.hostname.as_deref(), Some("db-0"));
        assert_eq!(found.skipped, ["skipping Pod lost for Service ns/s: Node n9 Not Found"]);
    }

    #[test]
    fn close_traffic_is_hinted() {
        let hint = |how: &str| {
            let spec = json!({"ipFamilies": ["IPv4"], "trafficDistribution": how});
            desired(spec, &[pod("a", "n1", true, json!({}))]).endpoints[0].endpoint.hints.clone()
        };
        assert!(hint("None").is_none());
        assert_eq!(hint("PreferClose").unwrap().for_zones.unwrap()[0].name, "z1");
        assert_eq!(hint("PreferSameNode").unwrap().for_nodes.unwrap()[0].name, "n1");
    }
}
