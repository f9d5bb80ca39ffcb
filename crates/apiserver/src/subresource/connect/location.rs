//! Where a request into the cluster goes: host, port, path and what is spoken.

use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use crate::persist::Call;
use crate::route::query::Query;
use crate::route::target::tail;

const KUBELET_PORT: i64 = 10_250;

/// Whom to ask.
#[derive(Debug, PartialEq, Eq)]
pub struct Location {
    pub host: String,
    pub port: u16,
    pub tls: bool,
    /// The path with its parameters.
    pub path: String,
    /// Whether it is a kubelet, to which this server shows its certificate.
    pub kubelet: bool,
}

/// A path on the kubelet of a node.
pub fn kubelet(call: &Call<'_>, node_name: &str, path: &str, query: &str) -> Result<Location, Status> {
    let node = call
        .server
        .objects
        .get("", "nodes", "", node_name)
        .ok_or_else(|| Status::not_found(knarr_api::status::Named { group: "", name: "nodes" }, node_name))?;
    let host = address_of(&node).ok_or_else(|| {
        Status::internal(format!("no preferred addresses found; known addresses: [] of node {node_name}"))
    })?;
    let port = node.integer(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).unwrap_or(KUBELET_PORT);
    let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    Ok(Location { host: host.to_owned(), port: port as u16, tls: true, path, kubelet: true })
}

/// Addresses come before names: not every cluster can resolve the names of its nodes.
fn address_of(node: &Value) -> Option<&str> {
    let addresses = node.items(&["status", "addresses"]);
    ["InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname"].into_iter().find_map(|kind| {
        addresses.iter().find(|address| address.text(&["type"]) == kind).map(|address| address.text(&["address"]))
    })
}

/// The same parameters, as far as they are known.
pub fn same(query: &Query, names: &[&str]) -> String {
    let mut parts = Vec::new();
    for name in names {
        for value in query.all(name) {
            parts.push(format!("{name}={}", encode(value)));
        }
    }
    parts.join("&")
}

/// The ports to forward, by the name and in the form kubelets know them by.
pub fn ports(query: &Query) -> String {
    let ports: Vec<String> = query.all("ports").flat_map(|list| list.split(',')).map(encode).collect();
    if ports.is_empty() { String::new() } else { format!("port={}", ports.join(",")) }
}

/// The parameters of a command, by the names kubelets know them by.
pub fn streams(query: &Query) -> String {
    let mut parts: Vec<String> = query.all("command").map(|part| format!("command={}", encode(part))).collect();
    for (name, known) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        let default =
            matches!(name, "stdout" | "stderr") && !query.has("stdin") && !query.has("stdout") && !query.has("stderr");
        if query.flag(name).unwrap_or(default) {
            parts.push(format!("{known}=1"));
        }
    }
    parts.join("&")
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => (byte as char).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// `https:name:port`, of which only the name is needed.
fn split_name(text: &str) -> (bool, &str, &str) {
    let (tls, rest) = match text.split_once(':') {
        Some(("https", rest)) => (true, rest),
        Some(("http" | "", rest)) => (false, rest),
        _ => (false, text),
    };
    let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
    (tls, name, port)
}

pub fn pod_proxy(call: &Call<'_>) -> Result<Location, Status> {
    let (tls, name, port) = split_name(&call.target.name);
    let pod = call
        .server
        .objects
        .get("", "pods", &call.target.namespace, name)
        .ok_or_else(|| Status::not_found(call.resource.named(), name))?;
    let ip = pod.text(&["status", "podIP"]);
    if ip.is_empty() {
        return Err(Status::bad_request(format!("address not allowed: pod {name} has no address")));
    }
    let first = || {
        let containers = pod.items(&["spec", "containers"]).iter();
        containers.flat_map(|container| container.items(&["ports"])).find_map(|port| port.integer(&["containerPort"]))
    };
    let port = match port {
        "" => first().unwrap_or(if tls { 443 } else { 80 }),
        port => port.parse().map_err(|_| Status::bad_request(format!("invalid pod request {:?}", call.target.name)))?,
    };
    Ok(Location { host: ip.to_owned(), port: port as u16, tls, path: proxied_path(call), kubelet: false })
}

pub fn service_proxy(call: &Call<'_>) -> Result<Location, Status> {
    let (tls, name, port) = split_name(&call.target.name);
    let objects = &call.server.objects;
    let service = objects
        .get("", "services", &call.target.namespace, name)
        .ok_or_else(|| Status::not_found(call.resource.named(), name))?;
    let ports = service.items(&["spec", "ports"]);
    let port_name = match port.parse::<i64>() {
        Ok(number) => {
            let declared = ports.iter().find(|port| port.integer(&["port"]) == Some(number));
            declared
                .map(|port| port.text(&["name"]))
                .ok_or_else(|| Status::unavailable(format!("no service port {number} found for service {name:?}")))?
        }
        Err(_) => port,
    };
    let slices = objects.list("discovery.k8s.io", "endpointslices", &call.target.namespace);
    let own = slices.iter().filter(|slice| slice.text(&["metadata", "labels", "kubernetes.io/service-name"]) == name);
    for slice in own {
        let found =
            slice.items(&["ports"]).iter().find(|port| port_name.is_empty() || port.text(&["name"]) == port_name);
        let ready =
            slice.items(&["endpoints"]).iter().find(|endpoint| endpoint.flag(&["conditions", "ready"]) != Some(false));
        let address = ready.and_then(|endpoint| endpoint.items(&["addresses"]).first()?.as_str());
        if let (Some(port), Some(address)) = (found.and_then(|port| port.integer(&["port"])), address) {
            let path = proxied_path(call);
            return Ok(Location { host: address.to_owned(), port: port as u16, tls, path, kubelet: false });
        }
    }
    Err(Status::unavailable(format!("no endpoints available for service {name:?}")))
}

pub fn node_proxy(call: &Call<'_>) -> Result<Location, Status> {
    let (_, name, port) = split_name(&call.target.name);
    let mut location = kubelet(call, name, &proxied_path(call), "")?;
    if let Ok(port) = port.parse() {
        location.port = port;
    }
    Ok(location)
}

/// The part of the path that is meant for what is behind the proxy, with its parameters.
fn proxied_path(call: &Call<'_>) -> String {
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

    #[test]
    fn commands_are_passed_on_by_other_names() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=1&tty=false&container=c");
        assert_eq!(streams(&query), "command=sh&command=-c&command=echo%20a%26b&input=1&output=1");
    }

    #[test]
    fn ports_are_passed_on_as_one_list() {
        for (asked, expected) in [("ports=80&ports=81,82", "port=80,81,82"), ("ports=80", "port=80"), ("", "")] {
            assert_eq!(ports(&Query::parse(asked)), expected, "{asked}");
        }
    }

    #[test]
    fn names_may_carry_scheme_and_port() {
        assert_eq!(split_name("web"), (false, "web", ""));
        assert_eq!(split_name("web:80"), (false, "web", "80"));
        assert_eq!(split_name("https:web:443"), (true, "web", "443"));
        assert_eq!(split_name("http:web:"), (false, "web", ""));
    }
}
