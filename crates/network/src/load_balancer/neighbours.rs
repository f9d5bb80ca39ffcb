//! Announces to the hosts of a local network that an address has moved here. Without that, hosts would keep sending to the
//! previous node until their cache expires, which takes up to a minute.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike, sendto, socket,
};

use crate::netlink::Link;

type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
/// The IPv6 all-nodes multicast address and its hardware address.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// Sends one announcement through an interface. An interface without a hardware address has no such neighbours.
pub fn announce(link: &Link, address: IpAddr) -> std::io::Result<()> {
    let Ok(mac) = Mac::try_from(link.mac.as_slice()) else { return Ok(()) };
    let frame = match address {
        IpAddr::V4(address) => arp_announcement(mac, address),
        IpAddr::V6(address) => neighbour_advertisement(mac, address),
    };
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None::<SockProtocol>)?;
    sendto(socket.as_raw_fd(), &frame, &through(link.index)?, MsgFlags::MSG_DONTWAIT)?;
    Ok(())
}

fn through(interface: u32) -> std::io::Result<LinkAddr> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: i32::try_from(interface).map_err(std::io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a complete address of the family that it names, which outlives the call.
    let read = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) };
    read.ok_or_else(|| std::io::Error::other("cannot convert an interface's link-layer address"))
}

/// A gratuitous ARP request for our own address, sent to all hosts (RFC 5227, section 3).
fn arp_announcement(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let address = address.octets();
    [
        ethernet(BROADCAST, mac, 0x0806).as_slice(),
        // Ethernet, IPv4, lengths of their addresses, a request.
        &[0, 1, 8, 0, 6, 4, 0, 1],
        &mac,
        &address,
        &[0; 6],
        &address,
    ]
    .concat()
}

/// An unsolicited neighbour advertisement with the override flag (RFC 4861, section 7.2.6).
fn neighbour_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let (source, target) = (address.octets(), ALL_NODES.octets());
    // Type, code, room for the checksum, "override", the address, and an option with the hardware address.
    let mut message = [[136, 0, 0, 0, 0x20, 0, 0, 0].as_slice(), &address.octets(), &[2, 1], mac.as_slice()].concat();
    let length = message.len() as u8;
    let sum = checksum(&[source.as_slice(), &target, &[0, 0, 0, length, 0, 0, 0, 58], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    // Version 6, the length, ICMP, and the hop limit that proves that no router forwarded it.
    let head = [0x60, 0, 0, 0, 0, length, 58, 255];
    [ethernet(ALL_NODES_MAC, mac, 0x86dd).as_slice(), &head, &source, &target, &message].concat()
}

fn ethernet(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    [to.as_slice(), &from, &kind.to_be_bytes()].concat()
}

/// The Internet checksum of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn an_ipv4_address_is_announced_by_gratuitous_arp() {
        let frame = arp_announcement(MAC, Ipv4Addr::new(192, 168, 7, 1));
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 8, 6]);
        assert_eq!(frame[22..], [2, 0, 0, 0, 0, 7, 192, 168, 7, 1, 0, 0, 0, 0, 0, 0, 192, 168, 7, 1]);
    }

    #[test]
    fn an_ipv6_advertisement_has_a_valid_checksum() {
        let frame = neighbour_advertisement(MAC, "fd07::1".parse().unwrap());
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[frame.len() - 8..], [2, 1, 2, 0, 0, 0, 0, 7]);
        let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &frame[54..]].concat();
        assert_eq!(checksum(&pseudo), 0, "with its checksum a message sums up to nothing");
    }
}
