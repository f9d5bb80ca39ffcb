//! Frontends as nftables content: chains with their rules, sets, and map elements that jump to them.
//!
//! One map lookup finds a Service whatever their number: `services` by address, protocol and port, `node-ports` by protocol
//! and port. Each element jumps to a chain that picks an endpoint by its number in `endpoints`, which all Services share: one
//! map per Service would make the kernel slow, since it scans all maps to name a new one.

mod balance;
mod tables;

pub use tables::{set_networks, set_protected, tables};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use super::frontends::{Endpoint, Frontend};
use super::slots::{Run, Slots};
use super::{Settings, is_of};
use crate::cidr::Cidr;
use balance::balance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// The name in nftables, for tables and before addresses.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    pub fn address_type(self) -> &'static str {
        match self {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        }
    }
}

pub const TABLE: &str = "knarr-proxy";
/// The set of cluster IPs.
const CLUSTER_ADDRESSES: &str = "cluster-addresses";
/// The set of Service networks.
pub const NETWORKS: &str = "service-networks";
/// The set of node addresses, and that of ports which are never captured there.
pub const NODE_ADDRESSES: &str = "node-addresses";
pub const HOST_PORTS: &str = "host-ports";
/// The map from numbers to endpoints.
pub const ENDPOINTS: &str = "endpoints";
/// The only chain that uses that map: the kernel checks the whole map for each further chain that does.
const PICK: &str = "pick";

/// The content of the table for one Service. Equal entries of two of these need no change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Chain → its rules.
    pub chains: BTreeMap<String, Vec<String>>,
    /// Set → its declaration.
    pub sets: BTreeMap<String, String>,
    /// Map or set and key → value (empty for a set).
    pub elements: BTreeMap<(&'static str, String), String>,
    /// Pairs of equal addresses: pods that may reach themselves through a Service. Several Services may share a pod.
    pub hairpins: BTreeSet<String>,
    /// Slot runs of its endpoint lists.
    pub runs: BTreeSet<Run>,
}

/// The rules of all frontends of one Service.
pub fn of(frontends: &[Frontend], family: Family, settings: &Settings, slots: &mut Slots) -> Rules {
    let mut rules = Rules::default();
    for frontend in frontends {
        add_front(&mut rules, frontend, family, settings, slots);
    }
    rules
}

fn add_front(rules: &mut Rules, frontend: &Frontend, family: Family, settings: &Settings, slots: &mut Slots) {
    let own = |addresses: &[IpAddr]| -> Vec<IpAddr> {
        addresses.iter().filter(|address| is_of(address, family)).copied().collect()
    };
    let (cluster, external) = (own(&frontend.cluster_addresses), own(&frontend.external_addresses));
    if cluster.is_empty() && external.is_empty() && frontend.node_port.is_none() {
        return;
    }
    let of_family = |endpoints: &[Endpoint]| -> Vec<Endpoint> {
        endpoints.iter().filter(|endpoint| is_of(&endpoint.address, family)).cloned().collect()
    };
    let (inside, outside) = (of_family(&frontend.inside), of_family(&frontend.outside));
    let name = short_name(&frontend.name, frontend);
    let protocol = frontend.protocol.name();
    let at = |address: &IpAddr| format!("{address} . {protocol} . {}", frontend.port);

    for address in &cluster {
        rules.elements.insert((CLUSTER_ADDRESSES, address.to_string()), String::new());
    }
    let service_chain = format!("service-{name}");
    let nobody = verdict_without_endpoints(frontend);
    if inside.is_empty() {
        for address in &cluster {
            rules.elements.insert(("refused", at(address)), verdict_inside(frontend).to_owned());
        }
    } else {
        let mut chain = from_outside(family, settings);
        chain.extend(balance(rules, frontend, &inside, &format!("{name}-in"), slots));
        rules.chains.insert(service_chain.clone(), chain);
        for address in &cluster {
            rules.elements.insert(("services", at(address)), format!("goto {service_chain}"));
        }
    }

    let external_chain = format!("external-{name}");
    let reached_from_outside = !external.is_empty() || frontend.node_port.is_some();
    let node_key = frontend.node_port.map(|port| format!("{protocol} . {port}"));
    if reached_from_outside {
        let usable = !outside.is_empty() || (frontend.outside_is_local && !inside.is_empty());
        if usable {
            let chain = external_rules(rules, frontend, [&outside, &inside], family, settings, &name, slots);
            rules.chains.insert(external_chain.clone(), chain);
            for address in &external {
                let target = limited(rules, frontend, address, &name, &external_chain, family);
                rules.elements.insert(("services", at(address)), format!("goto {target}"));
            }
            if let Some(key) = &node_key {
                rules.elements.insert(("node-ports", key.clone()), format!("goto {external_chain}"));
            }
        }
        // Without an endpoint for external traffic here, what the chain lets through is rejected or dropped.
        if outside.is_empty() {
            for address in &external {
                rules.elements.insert(("refused", at(address)), nobody.to_owned());
            }
            if let Some(key) = node_key {
                rules.elements.insert(("refused-ports", key), nobody.to_owned());
            }
        }
    }
    for endpoint in inside.iter().chain(&outside).filter(|endpoint| endpoint.is_local) {
        rules.hairpins.insert(format!("{} . {}", endpoint.address, endpoint.address));
    }
}

fn verdict_inside(frontend: &Frontend) -> &'static str {
    if frontend.inside_is_local && frontend.has_endpoints { "drop" } else { "goto refuse" }
}

fn verdict_without_endpoints(frontend: &Frontend) -> &'static str {
    if frontend.outside_is_local && frontend.has_endpoints { "drop" } else { "goto refuse" }
}

/// Masquerades traffic from outside the pod networks, so that replies return through this node.
fn from_outside(family: Family, settings: &Settings) -> Vec<String> {
    if pod_networks(family, settings).is_empty() {
        return Vec::new();
    }
    vec![format!("{} saddr != @pods jump masquerade-later", family.name())]
}

fn pod_networks(family: Family, settings: &Settings) -> Vec<&str> {
    let all = settings.cluster_cidrs.iter().map(String::as_str);
    all.filter(|text| text.contains(':') == (family == Family::V6)).collect()
}

fn external_rules(
    rules: &mut Rules,
    frontend: &Frontend,
    [outside, inside]: [&[Endpoint]; 2],
    family: Family,
    settings: &Settings,
    name: &str,
    slots: &mut Slots,
) -> Vec<String> {
    if !frontend.keeps_source {
        let mut chain = vec!["jump masquerade-later".to_owned()];
        // Equal traffic policies have equal endpoints, which need not be written twice.
        let list = if outside == inside { "in" } else { "out" };
        chain.extend(balance(rules, frontend, outside, &format!("{name}-{list}"), slots));
        return chain;
    }
    let ip = family.name();
    let mut chain = Vec::new();
    // Pods and this node itself may use any endpoint: their address is routable in the whole cluster.
    if !inside.is_empty() {
        let cluster = format!("anywhere-{name}");
        let picked = balance(rules, frontend, inside, &format!("{name}-in"), slots);
        rules.chains.insert(cluster.clone(), picked);
        if !pod_networks(family, settings).is_empty() {
            chain.push(format!("{ip} saddr @pods goto {cluster}"));
        }
        chain.push("fib saddr type local jump masquerade-later".to_owned());
        chain.push(format!("fib saddr type local goto {cluster}"));
    }
    if !outside.is_empty() {
        chain.extend(balance(rules, frontend, outside, &format!("{name}-out"), slots));
    }
    chain
}

/// A chain for a load balancer address that allows only the source ranges.
fn limited(
    rules: &mut Rules,
    frontend: &Frontend,
    address: &IpAddr,
    name: &str,
    chain: &str,
    family: Family,
) -> String {
    let own: Vec<&str> = frontend
        .source_ranges
        .iter()
        .map(|range| range.trim())
        .filter(|text| text.contains(':') == (family == Family::V6))
        .collect();
    if own.is_empty() || !frontend.balancer_addresses.contains(address) {
        return chain.to_owned();
    }
    // An invalid range allows nothing.
    let ranges = own.iter().filter_map(|text| text.parse::<Cidr>().ok()).map(|range| format!("{range}, "));
    let ranges: String = ranges.collect();
    let guard = format!("allowed-{name}");
    let rule = format!("{} saddr {{ {ranges}{address} }} goto {chain}", family.name());
    rules.chains.insert(guard.clone(), vec![rule, "drop".to_owned()]);
    guard
}

/// A valid nftables name: a unique hash, and as much of the Service's name as fits.
fn short_name(name: &str, frontend: &Frontend) -> String {
    let readable: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(60).collect();
    format!("{}-{}", short_hash(&format!("{name}/{}", frontend.protocol.name())), readable.trim_end_matches('-'))
}

/// Long enough that nobody finds two Services of the same name: a transaction that fails would fail for all of them.
fn short_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::frontends::{Endpoint, Frontend};
    use super::*;
    use crate::protocol::Protocol;

    fn frontend(endpoints: usize) -> Frontend {
        let endpoints: Vec<Endpoint> = (0..endpoints)
            .map(|index| Endpoint {
                address: IpAddr::from([10, 244, 0, u8::try_from(index + 2).unwrap()]),
                port: 8080,
                is_local: index == 0,
            })
            .collect();
        Frontend {
            name: "n/s:http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            cluster_addresses: vec!["10.96.0.7".parse().unwrap()],
            external_addresses: vec![],
            node_port: None,
            source_ranges: vec![],
            balancer_addresses: vec![],
            affinity: None,
            inside: endpoints.clone(),
            outside: endpoints.clone(),
            keeps_source: false,
            outside_is_local: false,
            inside_is_local: false,
            has_endpoints: !endpoints.is_empty(),
            health_port: None,
            local_ready: 0,
        }
    }

    fn settings() -> Settings {
        Settings {
            node_name: "one".into(),
            cluster_cidrs: vec!["10.244.0.0/16".into()],
            node_port_addresses: vec![],
            balancer_pool: None,
            status: Default::default(),
        }
    }

    #[test]
    fn a_service_is_forwarded_to_its_endpoints() {
        let rules = of(&[frontend(2)], Family::V4, &settings(), &mut Slots::default());
        let (key, target) = rules.elements.iter().find(|((map, _), _)| *map == "services").unwrap();
        assert_eq!(key.1, "10.96.0.7 . tcp . 80");
        let chain = &rules.chains[target.strip_prefix("goto ").unwrap()];
        assert_eq!(
            chain,
            &["ip saddr != @pods jump masquerade-later", "ct mark set numgen random mod 2 offset 0 goto pick",]
        );
        assert_eq!(rules.elements[&(ENDPOINTS, "1".to_owned())], "10.244.0.3 . 8080");
        assert!(rules.hairpins.contains("10.244.0.2 . 10.244.0.2"));
        assert!(!rules.hairpins.contains("10.244.0.3 . 10.244.0.3"));
    }

    #[test]
    fn a_service_without_endpoints_is_rejected() {
        let rules = of(&[frontend(0)], Family::V4, &settings(), &mut Slots::default());
        assert_eq!(rules.elements[&("refused", "10.96.0.7 . tcp . 80".to_owned())], "goto refuse");
        assert!(rules.chains.is_empty());
    }

    #[test]
    fn invalid_source_ranges_allow_nothing() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        for (ranges, expected) in [
            (vec!["10.0.0.0/8"], "ip saddr { 10.0.0.0/8, 192.0.2.1 } goto external"),
            (vec!["010.0.0.0/8"], "ip saddr { 192.0.2.1 } goto external"),
            (vec!["0.0.0.0/0 } accept #"], "ip saddr { 192.0.2.1 } goto external"),
        ] {
            let frontend = Frontend {
                external_addresses: vec![address],
                balancer_addresses: vec![address],
                source_ranges: ranges.iter().map(|range| (*range).to_owned()).collect(),
                ..frontend(1)
            };
            let rules = of(&[frontend], Family::V4, &settings(), &mut Slots::default());
            let guard = rules.chains.iter().find(|(name, _)| name.starts_with("allowed-")).unwrap().1;
            assert!(guard[0].starts_with(expected) && guard[1] == "drop", "{ranges:?}: {guard:?}");
        }
    }

    /// The digests of these names begin with the same 40 bits, which a program finds within seconds.
    #[test]
    fn services_of_similar_names_share_nothing() {
        let mut slots = Slots::default();
        let [one, other] = ["afn3a", "apz73"].map(|end| {
            let name = format!("n/{}{end}:http", "a".repeat(58));
            of(&[Frontend { name, ..frontend(2) }], Family::V4, &settings(), &mut slots)
        });
        assert!(one.chains.keys().all(|chain| !other.chains.contains_key(chain)), "{:?}", one.chains);
        let numbers = |rules: &Rules| {
            rules.elements.keys().filter(|(map, _)| *map == ENDPOINTS).cloned().collect::<BTreeSet<_>>()
        };
        assert!(numbers(&one).is_disjoint(&numbers(&other)), "one of them would get the endpoints of the other");
    }

    #[test]
    fn the_other_family_has_nothing() {
        assert_eq!(of(&[frontend(2)], Family::V6, &settings(), &mut Slots::default()), Rules::default());
    }

    #[test]
    fn affinity_keeps_clients_by_endpoint() {
        let rules =
            of(&[Frontend { affinity: Some(60), ..frontend(2) }], Family::V4, &settings(), &mut Slots::default());
        assert_eq!(rules.sets.len(), 2);
        assert!(rules.sets.values().all(|set| set.contains("timeout 60s")));
    }
}
