//! Renders compiled policies as nftables rules, and names their chains and sets. Pure.

use sha2::{Digest, Sha256};

use super::compiled::{CompiledPolicy, Group, Peer, Port, Rule};
use super::tables::{EGRESS, INGRESS};
use crate::cidr::Cidr;
use crate::protocol::Protocol;
use crate::proxy::Family;

/// The direction of traffic, as seen by the selected pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::In, Direction::Out];

    pub fn name(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }

    pub fn map(self) -> &'static str {
        match self {
            Direction::In => INGRESS,
            Direction::Out => EGRESS,
        }
    }

    pub fn rules(self, policy: &CompiledPolicy) -> Option<&[Rule]> {
        match self {
            Direction::In => policy.ingress.as_deref(),
            Direction::Out => policy.egress.as_deref(),
        }
    }
}

/// The longest text that the rules of a permission repeat: one set or network and no list of them.
const MAX_REPEATED: usize = 128;

/// A policy's chain, and those to which it jumps. A permission of several peers on several ports, or of one with a list of
/// thousands of networks or ports, has a chain of its own for the ports: the product of both would grow with the square of the
/// policy.
pub fn chains(key: &str, rules: &[Rule], direction: Direction, family: Family) -> Vec<(String, Vec<String>)> {
    let ip = family.name();
    let side = if direction == Direction::In { "saddr" } else { "daddr" };
    let name = policy_chain(key, direction);
    let (mut own, mut chains) = (Vec::new(), Vec::new());
    for (number, rule) in rules.iter().enumerate() {
        let who: Vec<String> = match &rule.peers {
            None => vec![String::new()],
            Some(peers) => peers.iter().filter_map(|peer| write_peer(peer, ip, side, family)).collect(),
        };
        let places: Vec<String> = match &rule.ports {
            None => vec![String::new()],
            Some(ports) => write_ports(ports, ip),
        };
        let is_long = |texts: &[String]| texts.iter().any(|text| text.len() > MAX_REPEATED);
        let is_repeated = |one: &[String], other: &[String]| other.len() > 1 && (one.len() > 1 || is_long(one));
        if is_repeated(&who, &places) || is_repeated(&places, &who) {
            let inner = format!("{name}-{number}");
            own.extend(who.iter().map(|who| format!("{who}jump {inner}")));
            chains.push((inner, places.iter().map(|place| format!("{place}accept")).collect()));
        } else {
            own.extend(who.iter().flat_map(|who| places.iter().map(move |place| format!("{who}{place}accept"))));
        }
    }
    chains.push((name, own));
    chains
}

fn write_peer(peer: &Peer, ip: &str, side: &str, family: Family) -> Option<String> {
    match peer {
        Peer::Group(group) => Some(format!("{ip} {side} @{} ", group_set(group))),
        Peer::Block { network, except } => {
            let is_ours = |network: &Cidr| network.is_ipv4() == (family == Family::V4);
            if !is_ours(network) {
                return None;
            }
            let except = without_overlap(except.iter().filter(|one| is_ours(one)).copied().collect());
            let but =
                if except.is_empty() { String::new() } else { format!("{ip} {side} != {{ {} }} ", except.join(", ")) };
            // All addresses of the family need no match.
            let within = if network.length() == 0 { String::new() } else { format!("{ip} {side} {network} ") };
            Some(format!("{within}{but}"))
        }
    }
}

/// Drops networks that others of the list contain: nftables rejects overlapping intervals. Networks overlap only if one contains
/// the other, so each need be compared only with the last one kept before it.
fn without_overlap(mut networks: Vec<Cidr>) -> Vec<String> {
    networks.sort_unstable_by_key(|network| (network.first(), network.length()));
    let mut kept: Vec<Cidr> = Vec::new();
    for network in networks {
        if !kept.last().is_some_and(|wider| wider.contains(network.first())) {
            kept.push(network);
        }
    }
    kept.iter().map(Cidr::to_string).collect()
}

fn write_ports(ports: &[Port], ip: &str) -> Vec<String> {
    let mut places = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let name = protocol.name();
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        let mut is_whole = false;
        for port in ports {
            match port {
                Port::All(of) if *of == protocol => is_whole = true,
                Port::Range { protocol: of, first, last } if *of == protocol => ranges.push((*first, *last)),
                Port::Named { protocol: of, name: port } if *of == protocol => {
                    let set = port_set(&(protocol, port.clone()));
                    places.push(format!("meta l4proto {name} {ip} daddr . th dport @{set} "));
                }
                _ => {}
            }
        }
        if is_whole {
            places.push(format!("meta l4proto {name} "));
        } else if !ranges.is_empty() {
            places.push(format!("{name} dport {{ {} }} ", joined(ranges).join(", ")));
        }
    }
    places
}

/// Ranges without overlap, as nftables requires within one set.
fn joined(mut ranges: Vec<(u16, u16)>) -> Vec<String> {
    ranges.sort_unstable();
    let mut whole: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match whole.last_mut() {
            Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
            _ => whole.push((first, last)),
        }
    }
    let text = |(first, last): &(u16, u16)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    whole.iter().map(text).collect()
}

pub fn policy_chain(key: &str, direction: Direction) -> String {
    format!("policy-{}-{}", direction.name(), short_hash(key))
}

pub fn group_set(group: &Group) -> String {
    format!("pods-{}", short_hash(&group.identity))
}

pub fn port_set((protocol, name): &(Protocol, String)) -> String {
    format!("port-{}", short_hash(&format!("{} {name}", protocol.name())))
}

/// Long enough that nobody finds two objects of the same name: a transaction that fails would fail for all policies.
pub fn short_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_without_overlap() {
        let block = |network: &str, except: &[&str]| Peer::Block {
            network: network.parse().unwrap(),
            except: except.iter().map(|text| text.parse().unwrap()).collect(),
        };
        for (peer, expected) in [
            (block("10.0.0.0/8", &[]), Some("ip saddr 10.0.0.0/8 ")),
            (
                block("10.0.0.0/8", &["10.1.0.0/16", "10.1.2.0/24"]),
                Some("ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16 } "),
            ),
            (
                block("10.0.0.0/8", &["10.2.0.0/24", "10.1.2.0/24", "10.1.0.0/16", "10.1.0.0/24", "10.2.0.0/24"]),
                Some("ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16, 10.2.0.0/24 } "),
            ),
            (block("0.0.0.0/0", &[]), Some("")),
            (block("fd00::/8", &[]), None),
        ] {
            assert_eq!(write_peer(&peer, "ip", "saddr", Family::V4).as_deref(), expected);
        }
    }

    /// One list of networks for each of many ports, or one list of ports for each of many peers, would be gigabytes of rules.
    #[test]
    fn long_lists_are_not_repeated_in_rules() {
        let address = |number: u32| Cidr::of_address(std::net::Ipv4Addr::from_bits(0x0a00_0000 + 2 * number).into());
        let length = |peers: Vec<Peer>, ports: Vec<Port>| {
            let rules = [Rule { peers: Some(peers), ports: Some(ports) }];
            let chains = chains("n/p", &rules, Direction::In, Family::V4);
            chains.iter().flat_map(|(_, rules)| rules).map(String::len).sum::<usize>()
        };
        let named = |number: u32| Port::Named { protocol: Protocol::Tcp, name: format!("p{number}") };
        let numbered = |number: u16| Port::Range { protocol: Protocol::Tcp, first: 2 * number, last: 2 * number };
        let without = Peer::Block { network: "0.0.0.0/0".parse().unwrap(), except: (0..40_000).map(address).collect() };
        let single = |number: u32| Peer::Block { network: address(number), except: vec![] };
        let started = std::time::Instant::now();
        let (few, many) = (100, 25_000);
        for (peers, ports) in [
            (vec![without.clone()], (0..few).map(named).collect()),
            (vec![without], (0..many).map(named).collect()),
            ((0..few).map(single).collect(), (0..32_000).map(numbered).collect()),
            ((0..many).map(single).collect(), (0..32_000).map(numbered).collect()),
        ] {
            let length = length(peers, ports);
            assert!(length < 10 << 20, "{length}");
        }
        // Comparing each network with all others takes minutes.
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
