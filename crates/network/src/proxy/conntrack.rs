//! Deletes connection tracking entries to endpoints that are gone. TCP recovers by itself; a UDP client that keeps sending
//! would reach nothing for as long as it sends.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::process::Command;
use tokio::sync::Notify;

use super::frontends::{Endpoint, Frontend};
use crate::protocol::Protocol;

/// If more endpoints of a Service's port are gone at once, all its flows are deleted instead: one command, after which clients
/// of the other endpoints get one again.
const MAX_ENDPOINTS: usize = 16;

/// UDP flows from a Service address to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// `None` for a node port.
    service: Option<IpAddr>,
    port: u16,
    endpoint: Option<IpAddr>,
}

/// Deletes flows beside the updates of Services, which must not wait: the author of a Service decides how many there are.
#[derive(Default)]
pub struct Cleaner {
    pending: Mutex<BTreeSet<Flow>>,
    notify: Notify,
}

impl Cleaner {
    pub fn add(&self, flows: BTreeSet<Flow>) {
        if !flows.is_empty() {
            self.pending.lock().extend(flows);
            self.notify.notify_one();
        }
    }

    /// Runs until dropped.
    pub async fn run(&self) {
        loop {
            let flows = std::mem::take(&mut *self.pending.lock());
            for flow in combined(flows) {
                delete(&flow).await;
            }
            self.notify.notified().await;
        }
    }
}

/// Flows that must be deleted when a Service changes. Its author decides how many ports, endpoints and addresses it has, and the
/// updates of all Services wait for this: neither pairs of ports are compared, nor all endpoints combined with all addresses.
pub fn stale(before: &[Frontend], after: &[Frontend]) -> BTreeSet<Flow> {
    let mut flows = BTreeSet::new();
    let (old_by_name, new_by_name) = (by_name(before), by_name(after));
    for old in before.iter().filter(|frontend| frontend.protocol == Protocol::Udp) {
        let new = new_by_name.get(old.name.as_str()).into_iter().flatten();
        let kept: HashSet<&Endpoint> = new.flat_map(|new| new.inside.iter().chain(&new.outside)).collect();
        let gone = old.inside.iter().chain(&old.outside).filter(|endpoint| !kept.contains(endpoint));
        let gone: BTreeSet<IpAddr> = gone.map(|endpoint| endpoint.address).collect();
        if gone.len() > MAX_ENDPOINTS {
            add(&mut flows, old, None);
        } else {
            gone.into_iter().for_each(|address| add(&mut flows, old, Some(address)));
        }
    }
    // Flows of a Service that had no endpoint may be tracked without one.
    for new in after.iter().filter(|frontend| frontend.protocol == Protocol::Udp && frontend.has_endpoints) {
        let mut old = old_by_name.get(new.name.as_str()).into_iter().flatten();
        if !old.any(|old| old.has_endpoints) {
            add(&mut flows, new, None);
        }
    }
    flows
}

fn by_name(frontends: &[Frontend]) -> HashMap<&str, Vec<&Frontend>> {
    let mut all: HashMap<&str, Vec<&Frontend>> = HashMap::new();
    for frontend in frontends {
        all.entry(&frontend.name).or_default().push(frontend);
    }
    all
}

fn add(flows: &mut BTreeSet<Flow>, frontend: &Frontend, endpoint: Option<IpAddr>) {
    let addresses = frontend.cluster_addresses.iter().chain(&frontend.external_addresses);
    flows.extend(addresses.map(|address| Flow { service: Some(*address), port: frontend.port, endpoint }));
    flows.extend(frontend.node_port.map(|port| Flow { service: None, port, endpoint }));
}

/// Few commands for many flows.
fn combined(flows: BTreeSet<Flow>) -> Vec<Flow> {
    let mut by_place: BTreeMap<(Option<IpAddr>, u16), Vec<Flow>> = BTreeMap::new();
    for flow in flows {
        by_place.entry((flow.service, flow.port)).or_default().push(flow);
    }
    let few = |((service, port), flows): ((Option<IpAddr>, u16), Vec<Flow>)| {
        let is_all = flows.len() > MAX_ENDPOINTS || flows.iter().any(|flow| flow.endpoint.is_none());
        if is_all { vec![Flow { service, port, endpoint: None }] } else { flows }
    };
    by_place.into_iter().flat_map(few).collect()
}

/// Deletes flows. Missing flows, or a missing tool, do not affect new clients.
async fn delete(flow: &Flow) {
    let mut command = Command::new("conntrack");
    command.args(["-D", "-p", "udp", "--orig-port-dst", &flow.port.to_string()]).kill_on_drop(true);
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

#[cfg(test)]
mod tests {
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

    /// A Service of hundreds of ports whose hundreds of endpoints are all replaced at once.
    #[test]
    fn many_flows_are_found_and_deleted_with_few_commands() {
        let endpoint = |number: u16, network: u8| {
            let [high, low] = number.to_be_bytes();
            Endpoint { address: [10, network, high, low].into(), port: 53, is_local: false }
        };
        let frontends = |network: u8| -> Vec<Frontend> {
            let endpoints: Vec<Endpoint> = (0..300).map(|number| endpoint(number, network)).collect();
            let one = |port: u16| Frontend {
                name: format!("n/s:p{port}"),
                port,
                inside: endpoints.clone(),
                outside: endpoints.clone(),
                ..frontend(Protocol::Udp, &[])
            };
            (1..=300).map(one).collect()
        };
        let flows = stale(&frontends(1), &frontends(2));
        assert_eq!(flows.len(), 300, "endpoints and addresses are not combined");
        let commands = combined(flows);
        assert_eq!(commands.len(), 300);
        assert!(commands.iter().all(|flow| flow.endpoint.is_none()));
        let few = combined(stale(&[frontend(Protocol::Udp, &[1, 2, 3])], &[frontend(Protocol::Udp, &[3])]));
        assert_eq!(few.iter().filter_map(|flow| flow.endpoint).count(), 2, "others keep their flows");
    }

    #[test]
    fn ports_are_not_compared_in_pairs() {
        let one = |port: u16| Frontend { name: format!("n/s:port{port:05}"), port, ..frontend(Protocol::Udp, &[1]) };
        let frontends: Vec<Frontend> = (1..=50_000).map(one).collect();
        let started = std::time::Instant::now();
        assert!(stale(&frontends, &frontends).is_empty());
        // Pairs take a minute and more.
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
