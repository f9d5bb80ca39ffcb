//! Host ports: forwards a port of the node to a port of a pod.
//!
//! One table serves all pods of the node: a lookup by protocol and port, or by address, protocol and port for those bound to
//! one address. Services take precedence: a host port never captures connections to a Service address, a node port or the
//! cluster DNS. A port on which a process of the node listens is refused: the pod would receive what is meant for the node.

use std::fmt::Write;
use std::net::IpAddr;

use super::leases::Lease;
use super::request::PortMapping;
use crate::capture::Refusal;
use crate::listening::{self, Socket};
use crate::nft::{self, NftError};
use crate::protocol::Protocol;

const TABLE: &str = "knarr-host-ports";
/// The address that the kernel uses as source on a host that has only loopback (RFC 7600).
const LOOPBACK_ONLY_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 0, 8));

/// Refuses ports on which the node itself listens.
pub fn check(ports: &[PortMapping]) -> Result<(), Refusal> {
    if ports.iter().all(|port| port.host_port == 0) {
        return Ok(());
    }
    in_use(ports, &listening::all(), &held_on_loopback()).map_or(Ok(()), Err)
}

/// Why a port is refused. It may be in use on loopback, too, since connections to it are captured; Services' addresses are not.
fn in_use(ports: &[PortMapping], listening: &[Socket], of_services: &[IpAddr]) -> Option<Refusal> {
    ports.iter().filter(|port| port.host_port != 0).find_map(|port| {
        // A port meant for one address must not be opened at all of them.
        if !port.host_ip.is_empty() && port.host_ip.parse::<IpAddr>().is_err() {
            return Some(Refusal::NotAddress(port.host_ip.clone()));
        }
        let protocol = Protocol::parse(Some(&port.protocol.to_uppercase()));
        let at = port.host_address();
        let is_captured = |address: IpAddr| {
            let address = address.to_canonical();
            at.is_none_or(|at| address.is_unspecified() || at == address) && !of_services.contains(&address)
        };
        let found = listening
            .iter()
            .find(|(used, address, number)| (*used, *number) == (protocol, port.host_port) && is_captured(*address));
        found.map(|(_, address, _)| Refusal::HostPort {
            address: *address,
            protocol: protocol.api_name(),
            port: port.host_port,
        })
    })
}

pub fn open(lease: &Lease) -> Result<(), NftError> {
    let commands = opening(&lease.addresses, &lease.ports);
    if commands.is_empty() { Ok(()) } else { nft::run(&commands) }
}

pub fn close(lease: &Lease) -> Result<(), NftError> {
    let commands = closing(&lease.addresses, &lease.ports);
    let is_missing = |error: &NftError| matches!(error, NftError::Refused(message) if message.contains("No such file"));
    // All at once, as all other calls wait; one by one if some are missing, which must not keep the others.
    match if commands.is_empty() { Ok(()) } else { nft::run(&commands.concat()) } {
        Err(error) if is_missing(&error) => {}
        result => return result,
    }
    commands.iter().try_for_each(|command| match nft::run(command) {
        Err(error) if is_missing(&error) => Ok(()),
        result => result,
    })
}

fn opening(addresses: &[IpAddr], ports: &[PortMapping]) -> String {
    let mut text = String::new();
    for address in addresses {
        let elements = elements(*address, ports);
        if elements.is_empty() {
            continue;
        }
        text.push_str(&table(address.is_ipv4(), &held_on_loopback()));
        let ip = family(address.is_ipv4());
        for Element { map, key, value } in elements {
            // A port that a terminated pod still holds moves to the new one.
            let _ = writeln!(text, "add element {ip} {TABLE} {map} {{ {key} : {value} }}");
        }
        let _ = writeln!(text, "add element {ip} {TABLE} pods {{ {address} . {address} }}");
    }
    text
}

fn closing(addresses: &[IpAddr], ports: &[PortMapping]) -> Vec<String> {
    let mut commands = Vec::new();
    for address in addresses {
        let ip = family(address.is_ipv4());
        let elements = elements(*address, ports);
        if elements.is_empty() {
            continue;
        }
        for Element { map, key, value } in elements {
            commands.push(format!("delete element {ip} {TABLE} {map} {{ {key} : {value} }}\n"));
        }
        commands.push(format!("delete element {ip} {TABLE} pods {{ {address} . {address} }}\n"));
    }
    commands
}

struct Element {
    map: &'static str,
    key: String,
    value: String,
}

fn elements(address: IpAddr, ports: &[PortMapping]) -> Vec<Element> {
    let desired = ports.iter().filter(|port| port.host_port != 0);
    let own = desired.filter(|port| {
        let one = port.host_ip.parse::<IpAddr>().ok();
        one.is_none_or(|one| one.is_ipv4() == address.is_ipv4())
    });
    own.map(|port| {
        let protocol = Protocol::parse(Some(&port.protocol.to_uppercase())).name();
        let value = format!("{address} . {}", port.container_port);
        match port.host_address() {
            Some(one) => Element { map: "at", key: format!("{one} . {protocol} . {}", port.host_port), value },
            None => Element { map: "everywhere", key: format!("{protocol} . {}", port.host_port), value },
        }
    })
    .collect()
}

fn family(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "ip" } else { "ip6" }
}

/// Addresses that this node serves for the cluster: DNS and load balancers. They are on the loopback interface.
fn held_on_loopback() -> Vec<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().into_iter().flatten().filter(|one| one.interface_name == "lo");
    let addresses = addresses.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    addresses.filter(|address| !address.is_loopback() && *address != LOOPBACK_ONLY_ADDRESS).collect()
}

/// The table, created if it does not exist. Its rules are rewritten each time.
fn table(is_ipv4: bool, of_services: &[IpAddr]) -> String {
    let ip = family(is_ipv4);
    let (address, loopback) = if is_ipv4 { ("ipv4_addr", "127.0.0.0/8") } else { ("ipv6_addr", "::1") };
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    line(format!("add table {ip} {TABLE}"));
    line(format!("add map {ip} {TABLE} everywhere {{ type inet_proto . inet_service : {address} . inet_service ; }}"));
    line(format!(
        "add map {ip} {TABLE} at {{ type {address} . inet_proto . inet_service : {address} . inet_service ; }}"
    ));
    line(format!("add set {ip} {TABLE} pods {{ type {address} . {address} ; }}"));
    line(format!("add chain {ip} {TABLE} lead"));
    // The first two are empty: an earlier version had its rules there, before those of Services.
    for (chain, hook, priority) in [
        ("prerouting", "prerouting", "-101"),
        ("output", "output", "-101"),
        ("prerouting-late", "prerouting", "-99"),
        ("output-late", "output", "-99"),
        ("postrouting", "postrouting", "99"),
    ] {
        line(format!("add chain {ip} {TABLE} {chain} {{ type nat hook {hook} priority {priority} ; }}"));
    }
    for chain in ["lead", "prerouting", "output", "prerouting-late", "output-late", "postrouting"] {
        line(format!("flush chain {ip} {TABLE} {chain}"));
    }
    let protocols = "meta l4proto { tcp, udp, sctp }";
    line(format!("add rule {ip} {TABLE} lead {protocols} dnat {ip} to {ip} daddr . meta l4proto . th dport map @at"));
    line(format!("add rule {ip} {TABLE} lead {protocols} dnat {ip} to meta l4proto . th dport map @everywhere"));
    let own: Vec<String> = of_services.iter().filter(|one| one.is_ipv4() == is_ipv4).map(IpAddr::to_string).collect();
    let but = if own.is_empty() { String::new() } else { format!("{ip} daddr != {{ {} }} ", own.join(", ")) };
    for chain in ["prerouting-late", "output-late"] {
        line(format!("add rule {ip} {TABLE} {chain} fib daddr type local {but}jump lead"));
    }
    // Connections of a pod to itself, and from the node's loopback, need a source address that replies can return to.
    line(format!("add rule {ip} {TABLE} postrouting {ip} saddr . {ip} daddr @pods masquerade"));
    line(format!("add rule {ip} {TABLE} postrouting ct status dnat {ip} saddr {loopback} masquerade"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(host: u16, host_ip: &str) -> PortMapping {
        PortMapping { host_port: host, container_port: 8080, protocol: "TCP".into(), host_ip: host_ip.into() }
    }

    #[test]
    fn ports_of_the_node_are_refused() {
        let listening = [
            (Protocol::Tcp, "0.0.0.0".parse().unwrap(), 22),
            (Protocol::Tcp, "::".parse().unwrap(), 10250),
            (Protocol::Tcp, "127.0.0.1".parse().unwrap(), 10248),
            (Protocol::Tcp, "10.0.0.1".parse().unwrap(), 9000),
            (Protocol::Tcp, "10.96.0.10".parse().unwrap(), 53),
            (Protocol::Udp, "0.0.0.0".parse().unwrap(), 8472),
        ];
        let of_services = ["10.96.0.10".parse().unwrap()];
        for (host, host_ip, protocol, refused) in [
            (22, "", "tcp", true),
            (22, "0.0.0.0", "TCP", true),
            (22, "10.0.0.1", "TCP", true),
            (22, "", "udp", false),
            (10250, "", "", true),
            (10248, "", "TCP", true),
            (10248, "10.0.0.1", "TCP", false),
            (9000, "10.0.0.1", "TCP", true),
            (9000, "10.0.0.2", "TCP", false),
            (8472, "", "UDP", true),
            (53, "", "TCP", false),
            (8080, "", "TCP", false),
            (8080, "010.0.0.1", "TCP", true),
            (0, "", "TCP", false),
        ] {
            let mapping = PortMapping { protocol: protocol.into(), ..port(host, host_ip) };
            let verdict = in_use(&[port(8081, ""), mapping], &listening, &of_services);
            assert_eq!(verdict.is_some(), refused, "{host_ip}:{host}/{protocol}: {verdict:?}");
        }
    }

    #[test]
    fn ports_are_forwarded_in_their_own_family() {
        let addresses: [IpAddr; 2] = ["10.244.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let keys = |ports: &[PortMapping]| -> Vec<String> {
            addresses.iter().flat_map(|one| elements(*one, ports)).map(|e| format!("{} {}", e.map, e.key)).collect()
        };
        for (ports, expected) in [
            (vec![port(80, "")], vec!["everywhere tcp . 80", "everywhere tcp . 80"]),
            (vec![port(80, "0.0.0.0")], vec!["everywhere tcp . 80"]),
            (vec![port(80, "10.0.0.1")], vec!["at 10.0.0.1 . tcp . 80"]),
            (vec![port(0, "")], vec![]),
        ] {
            assert_eq!(keys(&ports), expected);
        }
        // No text of a mapping becomes a command.
        let hostile = PortMapping { protocol: "tcp . 1 : 1 }\nflush ruleset".into(), ..port(80, "") };
        assert_eq!(keys(&[hostile]), ["everywhere tcp . 80", "everywhere tcp . 80"]);
        assert!(opening(&addresses, &[]).is_empty());
    }
}
