//! Crafted frames, as a pod with NET_RAW can send them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike, sendto, socket,
};

use crate::host::{Namespace, TIMEOUT, command};

pub type Mac = [u8; 6];

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// The IPv6 all-nodes multicast address and its hardware address.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
pub const EVERYBODY: Mac = [0xff; 6];

/// Sends a frame through an interface of the namespace that the caller is in.
pub fn send(interface: &str, frame: &[u8]) {
    let index = nix::net::if_::if_nametoindex(interface).unwrap();
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: i32::try_from(index).unwrap(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a complete address of the family that it names, which outlives the call.
    let to = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) }.unwrap();
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None::<SockProtocol>).unwrap();
    sendto(socket.as_raw_fd(), frame, &to, MsgFlags::empty()).unwrap();
}

fn frame(to: Mac, from: Mac, kind: u16, content: &[u8]) -> Vec<u8> {
    [&to[..], &from[..], &kind.to_be_bytes()[..], content].concat()
}

/// A datagram with any addresses.
pub fn datagram(macs: (Mac, Mac), from: IpAddr, to: IpAddr, port: u16, text: &str) -> Vec<u8> {
    datagram_of(macs, from, to, port, text.as_bytes())
}

fn datagram_of(macs: (Mac, Mac), from: IpAddr, to: IpAddr, port: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + content.len()).unwrap();
    let header = [5353u16, port, length, 0].map(u16::to_be_bytes).concat();
    packet(macs, from, to, UDP, 64, &[&header[..], content].concat(), 6)
}

/// A frame in a packet for the tunnel between nodes (RFC 7348).
pub fn tunnelled(macs: (Mac, Mac), from: IpAddr, to: IpAddr, frame: &[u8]) -> Vec<u8> {
    datagram_of(macs, from, to, 8472, &[&[8, 0, 0, 0, 0, 0, 107, 0], frame].concat())
}

/// An ICMPv6 message; its checksum is filled in.
pub fn icmpv6(macs: (Mac, Mac), from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    packet(macs, from.into(), to.into(), ICMPV6, 255, message, 2)
}

fn packet(
    (to_mac, from_mac): (Mac, Mac),
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    hops: u8,
    body: &[u8],
    checksum_at: usize,
) -> Vec<u8> {
    let mut body = body.to_vec();
    let length = u16::try_from(body.len()).unwrap();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let pseudo = [&from.octets()[..], &to.octets(), &[0, protocol], &length.to_be_bytes()].concat();
            fill(&mut body, checksum_at, &pseudo);
            let mut head = vec![0x45, 0];
            head.extend((20 + length).to_be_bytes());
            head.extend([0, 0, 0, 0, hops, protocol, 0, 0]);
            head.extend(from.octets());
            head.extend(to.octets());
            fill(&mut head, 10, &[]);
            frame(to_mac, from_mac, IPV4, &[head, body].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let pseudo =
                [&from.octets()[..], &to.octets(), &[0, 0], &length.to_be_bytes(), &[0, 0, 0, protocol]].concat();
            fill(&mut body, checksum_at, &pseudo);
            let mut head = vec![0x60, 0, 0, 0];
            head.extend(length.to_be_bytes());
            head.extend([protocol, hops]);
            head.extend(from.octets());
            head.extend(to.octets());
            frame(to_mac, from_mac, IPV6, &[head, body].concat())
        }
        _ => panic!("addresses of two families"),
    }
}

fn fill(bytes: &mut [u8], at: usize, pseudo: &[u8]) {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let mut sum = words(bytes) + words(pseudo);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).unwrap();
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// An unsolicited ARP reply: `claimed` is at `claimer`.
pub fn arp_claim(to: Mac, claimer: Mac, claimed: Ipv4Addr, told: Ipv4Addr) -> Vec<u8> {
    let mut content = vec![0, 1, 8, 0, 6, 4, 0, 2];
    content.extend(claimer);
    content.extend(claimed.octets());
    content.extend(to);
    content.extend(told.octets());
    frame(to, claimer, ARP, &content)
}

/// The same for IPv6: an overriding neighbour advertisement.
pub fn neighbour_claim(to: Mac, claimer: Mac, claimed: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(claimed.octets());
    message.extend([2, 1]);
    message.extend(claimer);
    icmpv6((to, claimer), claimed, ALL_NODES, &message)
}

/// The hardware address of an interface, in a namespace or here.
pub fn mac_of(namespace: Option<&Namespace>, interface: &str) -> Mac {
    let place = namespace.map(|one| format!("-n {}", one.name)).unwrap_or_default();
    let shown = command(&format!("ip {place} -o link show {interface}"));
    let text = shown.split("link/ether ").nth(1).unwrap().split_whitespace().next().unwrap();
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// The hardware address at the other end of a pod's link, as the pod's own neighbours have it.
pub fn gateway_mac(pod: &Namespace, gateway: IpAddr) -> Mac {
    pod.run(|| {
        // The neighbour must be resolved first.
        let any: SocketAddr = if gateway.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).unwrap();
        let deadline = std::time::Instant::now() + TIMEOUT;
        loop {
            socket.send_to(b"?", (gateway, 9)).unwrap();
            let shown = command(&format!("ip neigh show {gateway}"));
            if let Some(text) = shown.split("lladdr ").nth(1) {
                let text = text.split_whitespace().next().unwrap();
                let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
                return bytes.try_into().unwrap();
            }
            assert!(std::time::Instant::now() < deadline, "{gateway} is not found");
            std::thread::yield_now();
        }
    })
}

/// A socket that receives datagrams.
pub fn listen(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// All datagrams up to the last legitimate one.
pub fn until(socket: &UdpSocket, last: &str) -> Vec<String> {
    let mut heard = Vec::new();
    let mut bytes = [0; 256];
    loop {
        let (length, _) =
            socket.recv_from(&mut bytes).unwrap_or_else(|error| panic!("{last} after {heard:?}: {error}"));
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if text == last {
            return heard;
        }
        heard.push(text);
    }
}
