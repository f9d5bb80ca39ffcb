//! The ports on which processes of this node listen, from `/proc/net`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::capture::Ports;
use crate::protocol::Protocol;

const LISTEN: &str = "0A";
/// The state of a UDP socket that is bound and not connected.
const UNCONNECTED: &str = "07";

/// A listening socket: its protocol, address and port.
pub type Socket = (Protocol, IpAddr, u16);

/// Ports on which this node listens at one of these addresses. An unreadable table counts as empty; the ports that every
/// node needs are protected without it.
pub fn ports(addresses: &BTreeSet<IpAddr>) -> Ports {
    let own = all().into_iter().filter(|(_, address, _)| is_at(*address, addresses));
    own.map(|(protocol, _, port)| (protocol, port)).collect()
}

/// All sockets on which this node listens.
pub fn all() -> Vec<Socket> {
    // Ephemeral ports of clients come and go, and are not services.
    let ephemeral = read("/proc/sys/net/ipv4/ip_local_port_range");
    let ephemeral = ephemeral_range(&ephemeral);
    let mut found = Vec::new();
    for (file, protocol) in
        [("tcp", Protocol::Tcp), ("tcp6", Protocol::Tcp), ("udp", Protocol::Udp), ("udp6", Protocol::Udp)]
    {
        let table = read(&format!("/proc/thread-self/net/{file}"));
        let lasting =
            sockets(&table, protocol).filter(|(_, port)| protocol != Protocol::Udp || !ephemeral.contains(port));
        found.extend(lasting.map(|(address, port)| (protocol, address, port)));
    }
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| {
        // Without IPv6 the kernel has no such tables.
        if error.kind() != std::io::ErrorKind::NotFound {
            tracing::warn!(path, %error, "cannot read a table of sockets; only the ports of every node are protected");
        }
        String::new()
    })
}

fn ephemeral_range(text: &str) -> std::ops::RangeInclusive<u16> {
    let mut words = text.split_whitespace().filter_map(|word| word.parse().ok());
    words.next().unwrap_or(32_768)..=words.next().unwrap_or(60_999)
}

fn is_at(address: IpAddr, desired: &BTreeSet<IpAddr>) -> bool {
    address.is_unspecified() || desired.contains(&address.to_canonical())
}

/// Listening sockets, with their local address and port.
fn sockets(table: &str, protocol: Protocol) -> impl Iterator<Item = (IpAddr, u16)> + '_ {
    let desired = if protocol == Protocol::Udp { UNCONNECTED } else { LISTEN };
    table.lines().skip(1).filter_map(move |line| {
        let mut columns = line.split_whitespace().skip(1);
        let (own, _, state) = (columns.next()?, columns.next()?, columns.next()?);
        let (address, port) = own.split_once(':')?;
        (state == desired).then_some((address_of(address)?, u16::from_str_radix(port, 16).ok()?))
    })
}

/// Parses an address, which the kernel prints as words in host byte order.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, place) in bytes.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(index * 8)?);
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn listeners_are_found_at_their_addresses() {
        let at = |text: &str| -> BTreeSet<IpAddr> { [text.parse().unwrap()].into() };
        let loopback = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = (Protocol::Tcp, loopback.local_addr().unwrap().port());
        assert!(ports(&at("127.0.0.1")).contains(&port));
        assert!(!ports(&at("192.0.2.1")).contains(&port), "it does not respond at that address");
        let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = (Protocol::Tcp, everywhere.local_addr().unwrap().port());
        assert!(ports(&at("192.0.2.1")).contains(&port));
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = (Protocol::Udp, client.local_addr().unwrap().port());
        assert!(!ports(&at("192.0.2.1")).contains(&port), "a client's port of the moment");
    }

    #[test]
    fn the_socket_tables_are_parsed() {
        let table = "  sl  local_address rem_address   st\n\
            0: 0100007F:1F90 00000000:0000 0A 0\n   1: 00000000:0016 00000000:0000 0A 0\n\
            2: 0100007F:1F91 0100007F:1F90 01 0\n   x\n   3: 00:00 00:00 0A\n";
        let found: Vec<_> = sockets(table, Protocol::Tcp).collect();
        assert_eq!(found, [("127.0.0.1".parse().unwrap(), 8080), ("0.0.0.0".parse().unwrap(), 22)]);
        let six = address_of("00000000000000000000000001000000");
        assert_eq!(six, Some("::1".parse().unwrap()));
    }
}
