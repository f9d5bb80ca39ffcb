//! Decides which addresses and ports a Service may capture on nodes. Users choose the addresses in `externalIPs` and the ports
//! of load balancers: neither may capture traffic of a node or of the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cidr::Cidr;
use crate::protocol::Protocol;

/// Ports of a node that are never captured, whether or not something listens there: SSH, etcd, the API server, and the
/// ports of kubelet, proxy, controller manager and scheduler.
const NODE_TCP_PORTS: [u16; 12] = [22, 2379, 2380, 2381, 6443, 10248, 10249, 10250, 10255, 10256, 10257, 10259];
/// VXLAN between nodes.
const NODE_UDP_PORTS: [u16; 1] = [8472];
/// Node ports belong to Services.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// Ports by protocol.
pub type Ports = BTreeSet<(Protocol, u16)>;

/// Addresses, networks and ports that no Service may capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// Addresses of all nodes, and all addresses of this node's interfaces.
    pub node_addresses: BTreeSet<IpAddr>,
    /// Networks of pods and of Services.
    pub networks: BTreeSet<Cidr>,
    /// Ports on which this node listens.
    pub ports: Ports,
}

/// Why an address or port must not be captured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0} is not a unicast address of a host on a network (loopback, link-local, unspecified or multicast)")]
    NotRoutable(IpAddr),
    #[error("{0} belongs to the cluster network {1}")]
    Cluster(IpAddr, Cidr),
    #[error("{0} is the address of a node")]
    Node(IpAddr),
    #[error("port {port}/{protocol} of {address} is used by the node itself")]
    HostPort { address: IpAddr, protocol: &'static str, port: u16 },
    #[error("{0:?} is not an IP address")]
    NotAddress(String),
}

/// Whether traffic can be forwarded from or to an address: unicast, and not limited to a link.
pub fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            !(first == 0 || v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            let is_link_local = v6.segments()[0] & 0xffc0 == 0xfe80;
            let is_v4 = v6.to_ipv4_mapped().is_some();
            !(v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || is_link_local || is_v4)
        }
    }
}

/// Checks an address in `externalIPs`, for any port.
pub fn check_external(address: IpAddr, protected: &Protected) -> Result<(), Refusal> {
    check_network(address, protected)?;
    if protected.node_addresses.contains(&address) { Err(Refusal::Node(address)) } else { Ok(()) }
}

/// Checks a load balancer's address and port. Load balancers may share a node's address, except for the ports that the
/// node needs.
pub fn check_balancer(address: IpAddr, protocol: Protocol, port: u16, protected: &Protected) -> Result<(), Refusal> {
    check_network(address, protected)?;
    if protected.node_addresses.contains(&address) && is_host_port(protocol, port, &protected.ports) {
        return Err(Refusal::HostPort { address, protocol: protocol.api_name(), port });
    }
    Ok(())
}

/// Whether a node needs a port on its own addresses.
pub fn is_host_port(protocol: Protocol, port: u16, listening: &Ports) -> bool {
    let is_fixed = match protocol {
        Protocol::Tcp => NODE_TCP_PORTS.contains(&port),
        Protocol::Udp => NODE_UDP_PORTS.contains(&port),
        Protocol::Sctp => false,
    };
    is_fixed || NODE_PORTS.contains(&port) || listening.contains(&(protocol, port))
}

/// All ports that must not be captured on node addresses, except the range of node ports.
pub fn host_ports(listening: &Ports) -> Ports {
    let fixed = NODE_TCP_PORTS.map(|port| (Protocol::Tcp, port));
    let tunnel = NODE_UDP_PORTS.map(|port| (Protocol::Udp, port));
    let outside_range = |(_, port): &(Protocol, u16)| !NODE_PORTS.contains(port);
    fixed.into_iter().chain(tunnel).chain(listening.iter().copied()).filter(outside_range).collect()
}

fn check_network(address: IpAddr, protected: &Protected) -> Result<(), Refusal> {
    if !is_routable(address) {
        return Err(Refusal::NotRoutable(address));
    }
    match protected.networks.iter().find(|network| network.contains(address)) {
        Some(network) => Err(Refusal::Cluster(address, *network)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected() -> Protected {
        Protected {
            node_addresses: ["192.168.1.1", "192.168.1.2", "fd50::1"].map(|text| text.parse().unwrap()).into(),
            networks: ["10.96.0.0/12", "10.244.0.0/16", "fd00:244::/32"].map(|text| text.parse().unwrap()).into(),
            ports: [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)].into(),
        }
    }

    #[test]
    fn external_addresses_must_not_belong_to_nodes_or_the_cluster() {
        for (address, is_allowed) in [
            ("203.0.113.7", true),
            ("192.168.1.3", true),
            ("2001:db8::7", true),
            ("192.168.1.1", false),
            ("192.168.1.2", false),
            ("fd50::1", false),
            ("10.96.0.1", false),
            ("10.244.3.4", false),
            ("fd00:244:1::2", false),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:192.168.1.1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("255.255.255.255", false),
        ] {
            let checked = check_external(address.parse().unwrap(), &protected());
            assert_eq!(checked.is_ok(), is_allowed, "{address}: {checked:?}");
        }
    }

    #[test]
    fn load_balancers_share_a_node_address_but_not_its_ports() {
        for (address, protocol, port, is_allowed) in [
            ("192.168.1.1", Protocol::Tcp, 80, true),
            ("192.168.1.1", Protocol::Tcp, 22, false),
            ("192.168.1.2", Protocol::Tcp, 6443, false),
            ("fd50::1", Protocol::Tcp, 10_250, false),
            ("192.168.1.1", Protocol::Tcp, 10_256, false),
            ("192.168.1.1", Protocol::Tcp, 2379, false),
            ("192.168.1.1", Protocol::Udp, 8472, false),
            ("192.168.1.1", Protocol::Udp, 22, true),
            ("192.168.1.1", Protocol::Tcp, 8080, false),
            ("192.168.1.1", Protocol::Udp, 5353, false),
            ("192.168.1.1", Protocol::Udp, 30_000, false),
            ("203.0.113.7", Protocol::Tcp, 22, true),
            ("127.0.0.1", Protocol::Tcp, 80, false),
            ("10.96.0.1", Protocol::Tcp, 443, false),
            ("10.244.1.2", Protocol::Tcp, 80, false),
        ] {
            let checked = check_balancer(address.parse().unwrap(), protocol, port, &protected());
            assert_eq!(checked.is_ok(), is_allowed, "{address}:{port}: {checked:?}");
        }
    }

    #[test]
    fn node_ports_are_no_host_ports_in_the_kernel() {
        let ports = host_ports(&[(Protocol::Tcp, 31_000), (Protocol::Tcp, 8080)].into());
        assert!(ports.contains(&(Protocol::Tcp, 22)) && ports.contains(&(Protocol::Tcp, 8080)));
        assert!(!ports.contains(&(Protocol::Tcp, 31_000)), "a health check port must stay reachable as a node port");
    }
}
