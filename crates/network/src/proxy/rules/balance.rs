//! The choice of an endpoint for a connection, with or without session affinity.

use std::net::IpAddr;

use super::{ENDPOINTS, PICK, Rules, short_hash};
use crate::proxy::frontends::{Endpoint, Frontend};
use crate::proxy::slots::Slots;

/// Rules that send a connection to one of the endpoints, with equal probability.
pub fn balance(
    rules: &mut Rules,
    frontend: &Frontend,
    endpoints: &[Endpoint],
    list: &str,
    slots: &mut Slots,
) -> Vec<String> {
    let protocol = frontend.protocol.name();
    let Some(seconds) = frontend.affinity else {
        return match endpoints {
            [one] => vec![format!("meta l4proto {protocol} {}", destination(one))],
            many => vec![numbered(rules, many, list, slots)],
        };
    };
    // With session affinity, a client's previous endpoint has the client in its set.
    let mut chain = Vec::new();
    let mut picks = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let ip = if endpoint.address.is_ipv4() { "ip" } else { "ip6" };
        let kind = if endpoint.address.is_ipv4() { "ipv4_addr" } else { "ipv6_addr" };
        let tag = short_hash(&format!("{}:{}", endpoint.address, endpoint.port));
        let (target, set) = (format!("endpoint-{list}-{tag}"), format!("clients-{list}-{tag}"));
        rules.sets.insert(set.clone(), format!("{{ type {kind} ; flags dynamic, timeout ; timeout {seconds}s ; }}"));
        rules.chains.insert(
            target.clone(),
            vec![
                format!("update @{set} {{ {ip} saddr }}"),
                format!("meta l4proto {protocol} {}", destination(endpoint)),
            ],
        );
        chain.push(format!("{ip} saddr @{set} goto {target}"));
        picks.push(format!("{index} : goto {target}"));
    }
    chain.push(format!("numgen random mod {} vmap {{ {} }}", endpoints.len(), picks.join(", ")));
    chain
}

fn destination(endpoint: &Endpoint) -> String {
    match endpoint.address {
        IpAddr::V4(address) => format!("dnat to {address}:{}", endpoint.port),
        IpAddr::V6(address) => format!("dnat to [{address}]:{}", endpoint.port),
    }
}

/// Assigns consecutive numbers to the endpoints, and picks one of them. The connection mark carries the number.
fn numbered(rules: &mut Rules, endpoints: &[Endpoint], list: &str, slots: &mut Slots) -> String {
    let (run, first) = slots.allocate(list, endpoints.len());
    rules.runs.insert(run);
    for (number, endpoint) in (first..).zip(endpoints) {
        let value = format!("{} . {}", endpoint.address, endpoint.port);
        rules.elements.insert((ENDPOINTS, number.to_string()), value);
    }
    format!("ct mark set numgen random mod {} offset {first} goto {PICK}", endpoints.len())
}
