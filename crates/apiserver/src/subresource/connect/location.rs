//! The destination of a connect request: host, port, path and TLS.

use std::sync::Arc;

use knarr_api::status::Status;
use knarr_api::value::Read;
use rand::seq::SliceRandom;
use serde_json::Value;

use crate::outbound::{AddressError, is_global_unicast};
use crate::resource_request::ResourceRequest;
use crate::route::target::tail;

const KUBELET_PORT: i64 = 10_250;

/// The destination of a forwarded request.
#[derive(Debug, PartialEq, Eq)]
pub struct Location {
    pub host: String,
    pub port: u16,
    pub tls: bool,
    /// The path with its parameters.
    pub path: String,
    pub peer: Peer,
    /// The node on which it is, whose tunnel leads there.
    pub node: Option<String>,
    /// Whether a user chose the address: then only global unicast addresses are connected to.
    pub global_only: bool,
}

/// Whose endpoint a location is, which decides the credentials that go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The port of the kubelet of this node. Only the kubelet gets the client certificate of this server, once it is verified.
    Kubelet { node: String },
    /// Anything else. It gets no credentials, and its certificate is not verified.
    Workload,
}

/// A path on the kubelet of a node.
pub fn kubelet(call: &ResourceRequest<'_>, node_name: &str, path: &str, query: &str) -> Result<Location, Status> {
    let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    kubelet_of(&*node_of(call, node_name)?, path, &call.backend.behaviour.kubelet_address_types)
}

fn node_of(call: &ResourceRequest<'_>, name: &str) -> Result<Arc<Value>, Status> {
    let nodes = knarr_api::status::GroupResource { group: "", name: "nodes" };
    call.backend.objects.get("", "nodes", "", name).ok_or_else(|| Status::not_found(nodes, name))
}

fn kubelet_of(node: &Value, path: String, address_types: &[String]) -> Result<Location, Status> {
    let name = node.text(&["metadata", "name"]);
    let host = address_of(node, address_types)
        .ok_or_else(|| Status::internal(format!("no preferred addresses found; known addresses: [] of node {name}")))?;
    let port = node.integer(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).unwrap_or(KUBELET_PORT);
    let port = u16::try_from(port).map_err(|_| Status::internal(format!("{port} is not a kubelet's port")))?;
    let peer = Peer::Kubelet { node: name.to_owned() };
    let node = Some(name.to_owned());
    Ok(Location { host: host.to_owned(), port, tls: true, path, peer, node, global_only: false })
}

/// The address of the first type that the node has.
fn address_of<'a>(node: &'a Value, types: &[String]) -> Option<&'a str> {
    let addresses = node.items(&["status", "addresses"]);
    types.iter().find_map(|kind| {
        addresses.iter().find(|address| address.text(&["type"]) == kind).map(|address| address.text(&["address"]))
    })
}

/// The scheme, name and port of `https:name:port`, of which only the name is needed.
fn split_name<'a>(kind: &str, id: &'a str) -> Result<(bool, &'a str, &'a str), Status> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => ("", "", ""),
    };
    if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
        return Err(Status::bad_request(format!("invalid {kind} request {id:?}")));
    }
    Ok((scheme == "https", name, port))
}

fn parse_port(kind: &str, id: &str, port: &str) -> Result<u16, Status> {
    port.parse().map_err(|_| Status::bad_request(format!("invalid {kind} request {id:?}")))
}

/// The location of a pod proxy.
pub fn pod_proxy(call: &ResourceRequest<'_>) -> Result<Location, Status> {
    let (_, name, _) = split_name("pod", &call.target.name)?;
    let pod = call
        .backend
        .objects
        .get("", "pods", &call.target.namespace, name)
        .ok_or_else(|| Status::not_found(call.resource.named(), name))?;
    pod_location(&pod, &call.target.name, proxied_path(call))
}

fn pod_location(pod: &Value, id: &str, path: String) -> Result<Location, Status> {
    let (tls, _, port) = split_name("pod", id)?;
    let first = || {
        let containers = pod.items(&["spec", "containers"]).iter();
        let mut ports = containers.flat_map(|container| container.items(&["ports"]));
        ports.find_map(|port| port.integer(&["containerPort"])).and_then(|port| u16::try_from(port).ok())
    };
    let port = match port {
        "" => first().unwrap_or(if tls { 443 } else { 80 }),
        port => parse_port("pod", id, port)?,
    };
    let ip = pod_ips(pod).next().unwrap_or_default();
    workload(ip, port, tls, path, node_of_pod(pod))
}

fn node_of_pod(pod: &Value) -> Option<String> {
    Some(pod.text(&["spec", "nodeName"]).to_owned()).filter(|name| !name.is_empty())
}

fn pod_ips(pod: &Value) -> impl Iterator<Item = &str> {
    let all = pod.items(&["status", "podIPs"]).iter().map(|entry| entry.text(&["ip"]));
    all.chain(std::iter::once(pod.text(&["status", "podIP"]))).filter(|ip| !ip.is_empty())
}

/// The location of a pod or service; its host must be an IP address.
fn workload(ip: &str, port: u16, tls: bool, path: String, node: Option<String>) -> Result<Location, Status> {
    let allowed = ip.parse().is_ok_and(is_global_unicast);
    if !allowed {
        return Err(Status::bad_request(AddressError::NotAllowed.to_string()));
    }
    Ok(Location { host: ip.to_owned(), port, tls, path, peer: Peer::Workload, node, global_only: true })
}

/// The location of a service proxy.
pub fn service_proxy(call: &ResourceRequest<'_>) -> Result<Location, Status> {
    let namespace = &call.target.namespace;
    let (_, name, _) = split_name("service", &call.target.name)?;
    let objects = &call.backend.objects;
    let service =
        objects.get("", "services", namespace, name).ok_or_else(|| Status::not_found(call.resource.named(), name))?;
    let slices = objects.list("discovery.k8s.io", "endpointslices", namespace);
    let own: Vec<&Value> = slices
        .iter()
        .map(|slice| &**slice)
        .filter(|slice| slice.text(&["metadata", "labels", "kubernetes.io/service-name"]) == name)
        .collect();
    let pod = |name: &str| objects.get("", "pods", namespace, name);
    service_location(&service, &own, &pod, &call.target.name, proxied_path(call))
}

/// An endpoint of a Service that is a pod of its namespace. Users may write endpoints, so an address that no pod has is
/// refused.
fn service_location(
    service: &Value,
    slices: &[&Value],
    pod: &dyn Fn(&str) -> Option<Arc<Value>>,
    id: &str,
    path: String,
) -> Result<Location, Status> {
    let (tls, name, port) = split_name("service", id)?;
    let port_name = match port.parse::<i64>() {
        Ok(number) => {
            let ports = service.items(&["spec", "ports"]);
            let declared = ports.iter().find(|port| port.integer(&["port"]) == Some(number));
            declared
                .map(|port| port.text(&["name"]))
                .ok_or_else(|| Status::unavailable(format!("no service port {number} found for service {name:?}")))?
        }
        Err(_) => port,
    };
    let namespace = service.text(&["metadata", "namespace"]);
    let pod_at = |endpoint: &Value, address: &str| {
        let target = endpoint.at(&["targetRef"]);
        let is_here = target.text(&["namespace"]) == namespace;
        let found = is_here.then(|| pod(target.text(&["name"]))).flatten();
        found.filter(|pod| pod_ips(pod).any(|ip| ip == address))
    };
    let mut candidates: Vec<(&Value, &str, u16)> = Vec::new();
    for slice in slices {
        let port = slice.items(&["ports"]).iter().find(|port| port.text(&["name"]) == port_name);
        let Some(port) = port.and_then(|port| port.integer(&["port"])).and_then(|port| u16::try_from(port).ok()) else {
            continue;
        };
        let ready = slice.items(&["endpoints"]).iter().filter(|one| one.flag(&["conditions", "ready"]) != Some(false));
        candidates.extend(ready.filter_map(|one| Some((one, one.items(&["addresses"]).first()?.as_str()?, port))));
    }
    // Reading a pod costs more than shuffling, and the first usually matches.
    candidates.shuffle(&mut rand::rng());
    let found =
        candidates.iter().find_map(|(endpoint, address, port)| Some((pod_at(endpoint, address)?, address, port)));
    match found {
        Some((pod, address, port)) => workload(address, *port, tls, path, node_of_pod(&pod)),
        None => {
            let label = if slices.iter().all(|slice| slice.items(&["endpoints"]).is_empty()) { name } else { id };
            Err(Status::unavailable(format!("no endpoints available for service {label:?}")))
        }
    }
}

/// The location of a node proxy.
pub fn node_proxy(call: &ResourceRequest<'_>) -> Result<Location, Status> {
    let (_, name, _) = split_name("node", &call.target.name)?;
    let types = &call.backend.behaviour.kubelet_address_types;
    node_location(&*node_of(call, name)?, &call.target.name, proxied_path(call), types)
}

/// The kubelet of a node, or, with another port, any server on it.
fn node_location(node: &Value, id: &str, path: String, address_types: &[String]) -> Result<Location, Status> {
    let (tls, _, port) = split_name("node", id)?;
    let kubelet = Location { global_only: true, ..kubelet_of(node, path, address_types)? };
    if port.is_empty() || port == kubelet.port.to_string() {
        return Ok(kubelet);
    }
    Ok(Location { port: parse_port("node", id, port)?, tls, peer: Peer::Workload, node: None, ..kubelet })
}

/// The path and query after the proxy subresource.
fn proxied_path(call: &ResourceRequest<'_>) -> String {
    let rest = tail(&call.target.path, call.target);
    let mut path = if rest.is_empty() { "/".to_owned() } else { rest.to_owned() };
    let query = call.query.encoded();
    if !query.is_empty() {
        path.push('?');
        path.push_str(query);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn types() -> Vec<String> {
        crate::behaviour::KUBELET_ADDRESS_TYPES.map(str::to_owned).to_vec()
    }

    #[test]
    fn kubelets_are_called_at_the_preferred_type_of_address() {
        let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [
            {"type": "Hostname", "address": "n"}, {"type": "ExternalIP", "address": "203.0.113.7"},
            {"type": "InternalIP", "address": "10.0.0.7"}]}});
        for (types, host) in [
            (&["InternalIP", "Hostname"][..], Some("10.0.0.7")),
            (&["Hostname", "InternalIP"], Some("n")),
            (&["InternalDNS", "ExternalIP"], Some("203.0.113.7")),
            (&["InternalDNS"], None),
        ] {
            let types: Vec<String> = types.iter().map(|kind| (*kind).to_owned()).collect();
            let found = kubelet_of(&node, "/".into(), &types).ok().map(|location| location.host);
            assert_eq!(found.as_deref(), host, "{types:?}");
        }
    }

    #[test]
    fn names_may_carry_scheme_and_port() {
        for (id, expected) in [
            ("web", Some((false, "web", ""))),
            ("web:80", Some((false, "web", "80"))),
            ("https:web:443", Some((true, "web", "443"))),
            ("http:web:", Some((false, "web", ""))),
            (":web:", Some((false, "web", ""))),
            ("ftp:web:21", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            let split = split_name("pod", id);
            assert_eq!(split.as_ref().ok(), expected.as_ref(), "{id}");
            if let Err(status) = split {
                assert_eq!((status.code, status.message), (400, format!("invalid pod request {id:?}")));
            }
        }
    }

    #[test]
    fn only_the_port_of_the_kubelet_gets_the_certificate() {
        let node = json!({
            "metadata": {"name": "n"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            },
        });
        let kubelet = || Peer::Kubelet { node: "n".into() };
        for (id, port, tls, peer) in [
            ("n", 10250, true, kubelet()),
            ("n:10250", 10250, true, kubelet()),
            ("http:n:10250", 10250, true, kubelet()),
            ("https:n:", 10250, true, kubelet()),
            ("n:6443", 6443, false, Peer::Workload),
            ("https:n:6443", 6443, true, Peer::Workload),
            ("https:n:2379", 2379, true, Peer::Workload),
            ("n:010250", 10250, false, Peer::Workload),
        ] {
            let location = node_location(&node, id, "/".into(), &types()).unwrap();
            assert_eq!((location.port, location.tls, location.peer), (port, tls, peer), "{id}");
            assert!(location.global_only, "{id}");
        }
        assert_eq!(node_location(&node, "n:http", "/".into(), &types()).unwrap_err().code, 400);
        let mut odd = node.clone();
        odd["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] = json!(75_786);
        assert_eq!(
            node_location(&odd, "n", "/".into(), &types()).unwrap_err().code,
            500,
            "a port out of range is refused"
        );
    }

    #[test]
    fn pods_at_addresses_of_the_control_plane_are_not_proxied_to() {
        for (address, port, allowed) in [
            ("10.1.0.3", "8080", true),
            ("fd00::3", "8080", true),
            ("127.0.0.1", "2379", false),
            ("169.254.169.254", "80", false),
            ("0.0.0.0", "6443", false),
            ("::ffff:127.0.0.1", "6443", false),
            ("224.0.0.1", "80", false),
            ("metadata.internal", "80", false),
            ("", "80", false),
        ] {
            let pod = json!({"status": {"podIP": address}});
            let location = pod_location(&pod, &format!("p:{port}"), "/".into());
            match location {
                Ok(location) => assert!(allowed && location.host == address, "{address}"),
                Err(status) => {
                    assert!(!allowed, "{address}");
                    assert_eq!((status.code, status.message.as_str()), (400, "address not allowed"), "{address}");
                }
            }
        }
    }

    #[test]
    fn services_lead_only_to_pods_of_their_namespace() {
        let service = json!({
            "metadata": {"name": "s", "namespace": "a"}, "spec": {"ports": [{"port": 80, "name": "web"}]},
        });
        let pods = |name: &str| {
            let ip = match name {
                "good" => "10.1.0.3",
                "local" => "127.0.0.1",
                _ => return None,
            };
            Some(Arc::new(json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}})))
        };
        let slice = |address: &str, target: Value| {
            json!({
                "ports": [{"name": "web", "port": 8080}],
                "endpoints": [{"addresses": [address], "targetRef": target}],
            })
        };
        let target = |namespace: &str, name: &str| json!({"kind": "Pod", "namespace": namespace, "name": name});
        for (id, slice, expected) in [
            ("s:80", slice("10.1.0.3", target("a", "good")), Ok("10.1.0.3")),
            ("s:web", slice("10.1.0.3", target("a", "good")), Ok("10.1.0.3")),
            ("s:81", slice("10.1.0.3", target("a", "good")), Err(503)),
            ("s:80", slice("10.1.0.4", target("a", "good")), Err(503)),
            ("s:80", slice("10.1.0.3", target("b", "good")), Err(503)),
            ("s:80", slice("10.1.0.3", target("a", "gone")), Err(503)),
            ("s:80", slice("10.1.0.3", Value::Null), Err(503)),
            ("s:80", slice("127.0.0.1", target("a", "local")), Err(400)),
        ] {
            let found = service_location(&service, &[&slice], &pods, id, "/".into());
            let found = found.as_ref().map(|location| location.host.as_str()).map_err(|status| status.code);
            assert_eq!(found, expected, "{id} {slice}");
        }
    }
}
