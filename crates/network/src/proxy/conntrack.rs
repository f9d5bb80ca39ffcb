//! Deletes connection tracking entries to endpoints that are gone. TCP recovers by itself; a UDP client that keeps sending
//! would reach nothing for as long as it sends.

use std::net::IpAddr;

use tokio::process::Command;

use super::frontends::Frontend;
use crate::protocol::Protocol;

/// UDP flows from a Service address to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// `None` for a node port.
    service: Option<IpAddr>,
    port: u16,
    endpoint: Option<IpAddr>,
}

/// Flows that must be deleted when a Service changes.
pub fn stale(before: &[Frontend], after: &[Frontend]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for old in before.iter().filter(|frontend| frontend.protocol == Protocol::Udp) {
        let new = after.iter().find(|frontend| frontend.name == old.name);
        for endpoint in old.inside.iter().chain(&old.outside) {
            let stays = new.is_some_and(|new| new.inside.contains(endpoint) || new.outside.contains(endpoint));
            if !stays {
                add(&mut flows, old, Some(endpoint.address));
            }
        }
    }
    // Flows of a Service that had no endpoint may be tracked without one.
    for new in after.iter().filter(|frontend| frontend.protocol == Protocol::Udp && frontend.has_endpoints) {
        let had = before.iter().any(|old| old.name == new.name && old.has_endpoints);
        if !had {
            add(&mut flows, new, None);
        }
    }
    flows
}

fn add(flows: &mut Vec<Flow>, frontend: &Frontend, endpoint: Option<IpAddr>) {
    let addresses = frontend.cluster_addresses.iter().chain(&frontend.external_addresses);
    let of_addresses = addresses.map(|address| Flow { service: Some(*address), port: frontend.port, endpoint });
    let of_node = frontend.node_port.map(|port| Flow { service: None, port, endpoint });
    for flow in of_addresses.chain(of_node) {
        if !flows.contains(&flow) {
            flows.push(flow);
        }
    }
}

/// Deletes flows. Missing flows, or a missing tool, do not affect new clients.
pub async fn remove(flows: Vec<Flow>) {
    for flow in flows {
        let mut command = Command::new("conntrack");
        command.args(["-D", "-p", "udp", "--orig-port-dst", &flow.port.to_string()]);
        if let Some(service) = flow.service {
            command.args(["--orig-dst", &service.to_string()]);
        }
        if let Some(endpoint) = flow.endpoint {
            command.args(["--dst-nat", &endpoint.to_string()]);
        }
        match command.output().await {
            Ok(output) if output.status.success() => {}
            Ok(output) => tracing::trace!(message = %String::from_utf8_lossy(&output.stderr), "conntrack"),
            Err(error) => tracing::debug!(%error, "cannot run conntrack"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frontends::Endpoint;
    use super::*;

    fn frontend(protocol: Protocol, last: &[u8]) -> Frontend {
        let endpoint = |last: &u8| Endpoint { address: [10, 0, 0, *last].into(), port: 53, is_local: false };
        let endpoints: Vec<Endpoint> = last.iter().map(endpoint).collect();
        Frontend {
            name: "n/dns:dns".into(),
            protocol,
            port: 53,
            cluster_addresses: vec![[10, 96, 0, 10].into()],
            external_addresses: vec![],
            node_port: None,
            source_ranges: vec![],
            balancer_addresses: vec![],
            affinity: None,
            has_endpoints: !endpoints.is_empty(),
            inside: endpoints.clone(),
            outside: endpoints,
            keeps_source: false,
            outside_is_local: false,
            inside_is_local: false,
            health_port: None,
            local_ready: 0,
        }
    }

    #[test]
    fn udp_flows_to_gone_endpoints_are_stale() {
        for (protocol, before, after, count) in [
            (Protocol::Udp, &[1, 2][..], &[2][..], 1),
            (Protocol::Udp, &[1], &[1], 0),
            (Protocol::Udp, &[], &[1], 1),
            (Protocol::Tcp, &[1, 2], &[2], 0),
        ] {
            assert_eq!(stale(&[frontend(protocol, before)], &[frontend(protocol, after)]).len(), count);
        }
    }
}
