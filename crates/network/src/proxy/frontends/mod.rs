//! Computes a Service's frontends on this node and the endpoints behind each. Pure: independent of the kernel.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::capture::{self, Protected};
use crate::cidr::Cidr;
use crate::load_balancer;
use crate::protocol::Protocol;

/// One port of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Namespace/name:port, for names of rules.
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    /// Addresses served inside the cluster.
    pub cluster_addresses: Vec<IpAddr>,
    /// Addresses served to the outside too: external ones and those of load balancers.
    pub external_addresses: Vec<IpAddr>,
    pub node_port: Option<u16>,
    /// Networks that may use the load balancer's addresses; all if empty.
    pub source_ranges: Vec<String>,
    /// Load balancer addresses, to which only the source ranges apply.
    pub balancer_addresses: Vec<IpAddr>,
    /// Session affinity timeout in seconds.
    pub affinity: Option<u32>,
    /// Endpoints for internal traffic; with `internalTrafficPolicy: Local` only those of this node.
    pub inside: Vec<Endpoint>,
    /// Endpoints for external traffic; with `externalTrafficPolicy: Local` only those of this node.
    pub outside: Vec<Endpoint>,
    /// External traffic keeps its source address.
    pub keeps_source: bool,
    /// External traffic without a local endpoint is dropped, since other nodes may have one.
    pub outside_is_local: bool,
    pub inside_is_local: bool,
    /// Whether the Service has any endpoint, on any node.
    pub has_endpoints: bool,
    pub health_port: Option<u16>,
    /// Ready endpoints on this node, for the health check port.
    pub local_ready: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
    pub is_local: bool,
}

/// The node's location and limits.
#[derive(Clone, Debug, Default)]
pub struct NodeContext {
    pub node: String,
    pub zone: Option<String>,
    pub protected: Arc<Protected>,
    /// Networks from which the built-in load balancer allocates (empty: it shares node addresses). Other addresses in the
    /// status of its Services are ignored. `None` if another load balancer is in use.
    pub balancer_pool: Option<Vec<Cidr>>,
}

impl NodeContext {
    /// The allowed addresses of `externalIPs`.
    fn external_addresses(&self, addresses: &[IpAddr], service: &str) -> Vec<IpAddr> {
        let is_allowed = |address: &&IpAddr| match capture::check_external(**address, &self.protected) {
            Ok(()) => true,
            Err(refusal) => {
                tracing::warn!(service, %refusal, "an external address is not served");
                false
            }
        };
        addresses.iter().filter(is_allowed).copied().collect()
    }

    /// Load balancer addresses that may be captured on a port.
    fn balancer_addresses(&self, frontend: &str, addresses: &[IpAddr], protocol: Protocol, port: u16) -> Vec<IpAddr> {
        let is_allowed = |address: &&IpAddr| match capture::check_balancer(**address, protocol, port, &self.protected) {
            Ok(()) => true,
            Err(refusal) => {
                tracing::warn!(frontend, %refusal, "a load balancer's address is not served");
                false
            }
        };
        addresses.iter().filter(is_allowed).copied().collect()
    }

    /// Whether an address in a Service's status can come from the responsible load balancer.
    fn is_given(&self, service: &Service, address: IpAddr) -> bool {
        match &self.balancer_pool {
            Some(pool) if load_balancer::is_our_class(service) => {
                pool.iter().any(|network| network.contains(address))
                    || (pool.is_empty() && self.protected.node_addresses.contains(&address))
            }
            _ => true,
        }
    }
}

/// The addresses of load balancers whose packets arrive with that address.
fn balancer_addresses(service: &Service, node_context: &NodeContext) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    points
        .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|ingress| ingress.ip.as_deref()?.parse().ok())
        .filter(|address| node_context.is_given(service, *address))
        .collect()
}

/// How long a client stays with its endpoint.
fn affinity_seconds(spec: &ServiceSpec) -> u32 {
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(10_800);
    u32::try_from(seconds).unwrap_or(10_800)
}

/// How many endpoints, external addresses and source ranges the ports of one Service have in all. Its author can name thousands of
/// each, and every node keeps them for each port: beyond that, each port has fewer of them.
const MAX_PER_SERVICE: usize = 200_000;

/// All frontends of a Service. Headless and ExternalName Services have none.
pub fn of(service: &Service, slices: &[Arc<EndpointSlice>], node_context: &NodeContext) -> Vec<Frontend> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let addresses = |texts: Option<&Vec<String>>| -> Vec<IpAddr> {
        texts.into_iter().flatten().filter_map(|text| text.parse().ok()).collect()
    };
    let mut cluster = addresses(spec.cluster_ips.as_ref());
    if cluster.is_empty() {
        cluster.extend(spec.cluster_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok()));
    }
    if cluster.is_empty() || spec.type_.as_deref() == Some("ExternalName") || is_left_to_others(service) {
        return Vec::new();
    }
    let balancers = balancer_addresses(service, node_context);
    let external = addresses(spec.external_ips.as_ref());
    let mut external = node_context.external_addresses(&external, service.metadata.name.as_deref().unwrap_or_default());
    let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| affinity_seconds(spec));
    let inside_is_local = spec.internal_traffic_policy.as_deref() == Some("Local");
    let outside_is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    // With session affinity each endpoint has a chain and a set of its own, and not only an element.
    let max = if affinity.is_some() { MAX_PER_SERVICE / 10 } else { MAX_PER_SERVICE };
    let max_per_port = (max / spec.ports.as_ref().map_or(1, Vec::len).max(1)).max(1);
    external.truncate(max_per_port);
    // Of each family: without any range of one, everybody of that may use the load balancer.
    let ranges = |of_ipv6: bool| {
        let all = spec.load_balancer_source_ranges.iter().flatten();
        all.filter(move |range| range.contains(':') == of_ipv6).take(max_per_port)
    };
    let source_ranges: Vec<String> = ranges(false).chain(ranges(true)).cloned().collect();
    let slices = ported(slices, node_context, max_per_port);
    if slices.iter().any(|slice| slice.is_cut) {
        let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
        tracing::warn!(
            ?namespace,
            ?name,
            max_per_port,
            "a Service has too many ports and endpoints; some are not used"
        );
    }
    let ports = spec.ports.iter().flatten();
    ports
        .filter_map(|port| {
            let name = format!(
                "{}/{}:{}",
                service.metadata.namespace.as_deref().unwrap_or_default(),
                service.metadata.name.as_deref().unwrap_or_default(),
                port.name.as_deref().unwrap_or_default()
            );
            let candidates = candidates(&slices, port);
            let protocol = Protocol::parse(port.protocol.as_deref());
            let number = u16::try_from(port.port).ok()?;
            let balancers = node_context.balancer_addresses(&name, &balancers, protocol, number);
            let of_cluster = choose(&candidates, node_context);
            let of_node = choose_local(&candidates);
            let local_ready = count_local(&candidates);
            Some(Frontend {
                name,
                protocol,
                port: number,
                cluster_addresses: cluster.clone(),
                external_addresses: external.iter().chain(&balancers).copied().collect(),
                node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
                source_ranges: source_ranges.clone(),
                balancer_addresses: balancers,
                affinity,
                inside: if inside_is_local { of_node.clone() } else { of_cluster.clone() },
                outside: if outside_is_local { of_node } else { of_cluster },
                keeps_source: outside_is_local,
                outside_is_local,
                inside_is_local,
                has_endpoints: candidates.iter().any(|candidate| candidate.is_usable()),
                health_port: spec
                    .health_check_node_port
                    .filter(|_| outside_is_local)
                    .and_then(|port| u16::try_from(port).ok())
                    .filter(|port| *port != 0),
                local_ready,
            })
        })
        .collect()
}

/// The number of ready endpoints on this node. A dual-stack one counts once.
fn count_local(candidates: &[Candidate]) -> usize {
    let of = |is_ipv4: bool| {
        let own = candidates.iter().filter(|candidate| candidate.is_local && candidate.is_ready);
        own.filter(|candidate| candidate.endpoint.address.is_ipv4() == is_ipv4).count()
    };
    of(true).max(of(false))
}

/// Whether a Service is labelled for another proxy.
fn is_left_to_others(service: &Service) -> bool {
    let labels = service.metadata.labels.iter().flatten();
    let mut labels = labels.filter(|(key, _)| *key == "service.kubernetes.io/service-proxy-name");
    labels.next().is_some()
}

/// Slices labelled as headless, for DNS only.
fn is_headless(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("service.kubernetes.io/headless"))
}

#[derive(Clone)]
struct Candidate {
    endpoint: Endpoint,
    is_local: bool,
    is_ready: bool,
    /// Still serving while it terminates.
    is_serving: bool,
    for_zones: Vec<String>,
    for_nodes: Vec<String>,
}

impl Candidate {
    fn is_usable(&self) -> bool {
        self.is_ready || self.is_serving
    }
}

/// A slice as all ports of a Service read it. A Service may have thousands of ports, and thousands of endpoints behind each.
struct PortedSlice<'a> {
    /// Its ports by name and protocol.
    ports: HashMap<(&'a str, Protocol), u16>,
    /// Its endpoints, without a port.
    endpoints: Vec<Candidate>,
    /// Whether there are more.
    is_cut: bool,
}

/// The slices with at most about so many endpoints in all. Those of this node, and then ready ones, are kept before others.
fn ported<'a>(slices: &'a [Arc<EndpointSlice>], node_context: &NodeContext, max: usize) -> Vec<PortedSlice<'a>> {
    let used = slices.iter().filter(|slice| slice.address_type != "FQDN" && !is_headless(slice));
    let mut all: Vec<PortedSlice<'a>> = used
        .map(|slice| {
            let mut ports = HashMap::new();
            for port in slice.ports.iter().flatten() {
                let key = (port.name.as_deref().unwrap_or_default(), Protocol::parse(port.protocol.as_deref()));
                if let Some(number) = port.port.and_then(|port| u16::try_from(port).ok()) {
                    ports.entry(key).or_insert(number);
                }
            }
            let endpoints = slice.endpoints.iter().flatten().filter_map(|one| Candidate::of(one, node_context));
            PortedSlice { ports, endpoints: endpoints.collect(), is_cut: false }
        })
        .collect();
    let count: usize = all.iter().map(|slice| slice.endpoints.len()).sum();
    if count > max {
        for PortedSlice { endpoints, is_cut, .. } in &mut all {
            *is_cut = true;
            endpoints.sort_by_key(|candidate| (!candidate.is_local, !candidate.is_ready));
            endpoints.truncate((max * endpoints.len() / count).max(1));
        }
    }
    all
}

impl Candidate {
    fn of(endpoint: &k8s_openapi::api::discovery::v1::Endpoint, node_context: &NodeContext) -> Option<Candidate> {
        let conditions = endpoint.conditions.as_ref();
        let is_ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
        let is_terminating = conditions.and_then(|conditions| conditions.terminating).unwrap_or(false);
        let is_serving = conditions.and_then(|conditions| conditions.serving).unwrap_or(is_ready);
        let is_local = endpoint.node_name.as_deref() == Some(node_context.node.as_str());
        let hints = endpoint.hints.as_ref();
        let zones = hints.and_then(|hints| hints.for_zones.as_ref()).into_iter().flatten();
        let nodes = hints.and_then(|hints| hints.for_nodes.as_ref()).into_iter().flatten();
        // The addresses of an endpoint are one pod; Kubernetes' proxy uses the first of them, too.
        let address: IpAddr = endpoint.addresses.first().and_then(|text| text.parse().ok())?;
        capture::is_routable(address).then(|| Candidate {
            endpoint: Endpoint { address, port: 0, is_local },
            is_local,
            is_ready,
            is_serving: is_serving && is_terminating,
            for_zones: zones.map(|zone| zone.name.clone()).collect(),
            for_nodes: nodes.map(|node| node.name.clone()).collect(),
        })
    }
}

fn candidates(slices: &[PortedSlice<'_>], service_port: &ServicePort) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    let mut known = HashSet::new();
    let key = (service_port.name.as_deref().unwrap_or_default(), Protocol::parse(service_port.protocol.as_deref()));
    for PortedSlice { ports, endpoints, .. } in slices {
        let Some(port) = ports.get(&key).copied() else { continue };
        for candidate in endpoints {
            let endpoint = Endpoint { port, ..candidate.endpoint.clone() };
            if known.insert(endpoint.clone()) {
                found.push(Candidate { endpoint, ..candidate.clone() });
            }
        }
    }
    found.sort_by(|one, other| one.endpoint.cmp(&other.endpoint));
    found
}

/// Ready endpoints, near ones if topology hints allow; terminating ones that still serve if none is ready.
fn choose(candidates: &[Candidate], node_context: &NodeContext) -> Vec<Endpoint> {
    let ready: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.is_ready).collect();
    if ready.is_empty() {
        return candidates.iter().filter(|c| c.is_serving).map(|c| c.endpoint.clone()).collect();
    }
    let near = |hinted: fn(&Candidate) -> &Vec<String>, here: &str| -> Option<Vec<Endpoint>> {
        // Hints are used only if every endpoint has them and one is for this zone or node.
        if here.is_empty() || ready.iter().any(|candidate| hinted(candidate).is_empty()) {
            return None;
        }
        let chosen: Vec<Endpoint> = ready
            .iter()
            .filter(|candidate| hinted(candidate).iter().any(|hint| hint == here))
            .map(|candidate| candidate.endpoint.clone())
            .collect();
        (!chosen.is_empty()).then_some(chosen)
    };
    near(|candidate| &candidate.for_nodes, &node_context.node)
        .or_else(|| near(|candidate| &candidate.for_zones, node_context.zone.as_deref().unwrap_or_default()))
        .unwrap_or_else(|| ready.iter().map(|candidate| candidate.endpoint.clone()).collect())
}

fn choose_local(candidates: &[Candidate]) -> Vec<Endpoint> {
    let of = |test: fn(&Candidate) -> bool| -> Vec<Endpoint> {
        candidates.iter().filter(|c| c.is_local && test(c)).map(|c| c.endpoint.clone()).collect()
    };
    let ready = of(|candidate| candidate.is_ready);
    if ready.is_empty() { of(|candidate| candidate.is_serving) } else { ready }
}

#[cfg(test)]
mod tests;
