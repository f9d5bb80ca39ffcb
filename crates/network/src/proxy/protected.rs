//! Collects what Services must not capture, from the cluster's nodes and networks and from this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::capture::{Ports, Protected};
use crate::cidr::{Cidr, pod_cidrs};
use crate::listening;
use crate::netlink::{Netlink, NetlinkError};

/// A node's contribution: its addresses and its pod networks.
pub fn of_node(node: &Node) -> (Vec<IpAddr>, Vec<Cidr>) {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let addresses = addresses.filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"));
    (addresses.filter_map(|address| address.address.parse().ok()).collect(), pod_cidrs(node))
}

/// Finds what is protected. The nodes are read only after one of them changed: a sync must not cost more in a larger cluster.
#[derive(Default)]
pub struct Finder {
    knows_nodes: bool,
    /// Networks that are not of nodes, and the addresses of this node's interfaces.
    inputs: (BTreeSet<Cidr>, BTreeSet<IpAddr>),
    last: Arc<Protected>,
}

impl Finder {
    /// Reads the nodes again next time.
    pub fn forget_nodes(&mut self) {
        self.knows_nodes = false;
    }

    /// Everything that is protected at the moment.
    pub async fn find(
        &mut self,
        nodes: impl FnOnce() -> Vec<Arc<Node>>,
        services: &BTreeSet<Cidr>,
        pods: &[String],
    ) -> Arc<Protected> {
        let own = own_addresses().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read this node's addresses; only those of its Node object are protected");
            Vec::new()
        });
        let pods = pods.iter().filter_map(|text| text.parse::<Cidr>().ok());
        let networks = services.iter().copied().chain(pods).collect();
        self.join(nodes, (networks, own.into_iter().collect()), listening::ports)
    }

    /// Returns the same as before if nothing changed, which is cheap to compare.
    fn join(
        &mut self,
        nodes: impl FnOnce() -> Vec<Arc<Node>>,
        inputs: (BTreeSet<Cidr>, BTreeSet<IpAddr>),
        ports: impl FnOnce(&BTreeSet<IpAddr>) -> Ports,
    ) -> Arc<Protected> {
        if !self.knows_nodes || self.inputs != inputs {
            let (networks, node_addresses) = inputs.clone();
            let mut protected = Protected { networks, node_addresses, ports: Ports::new() };
            // Nodes say themselves what their addresses are: one of a Service or a pod would cut that off from all others.
            let is_of_cluster = |address: &IpAddr| inputs.0.iter().any(|network| network.contains(*address));
            for node in nodes() {
                let (addresses, networks) = of_node(&node);
                protected.node_addresses.extend(addresses.iter().filter(|address| !is_of_cluster(address)));
                protected.networks.extend(networks);
            }
            (self.knows_nodes, self.inputs, self.last) = (true, inputs, Arc::new(protected));
        }
        let ports = ports(&self.last.node_addresses);
        if ports != self.last.ports {
            self.last = Arc::new(Protected { ports, ..Protected::clone(&self.last) });
        }
        Arc::clone(&self.last)
    }
}

/// The addresses of this node's interfaces, without those of load balancers, which are on loopback or never used as a source
/// address.
async fn own_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let netlink = Netlink::open()?;
    let loopback = netlink.link("lo").await?.index;
    let passive = netlink.passive_addresses().await?;
    let all = netlink.addresses(None).await?.into_iter();
    let own = all.filter(|(link, address, _)| *link != loopback && !passive.contains(&(*link, *address)));
    Ok(own.map(|(_, address, _)| address).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Protocol;
    use serde_json::json;

    #[test]
    fn nodes_are_read_only_after_one_of_them_changed() {
        let node = |address: &str| {
            let node = json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.244.1.0/24"},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}});
            vec![Arc::new(serde_json::from_value::<Node>(node).unwrap())]
        };
        let inputs = |own: &str| (["10.96.0.0/12".parse().unwrap()].into(), [own.parse().unwrap()].into());
        let unread = || -> Vec<Arc<Node>> { panic!("the nodes did not change") };
        let no_ports = |_: &BTreeSet<IpAddr>| Ports::new();
        let texts = |all: &Protected| all.node_addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        let mut finder = Finder::default();
        let first = finder.join(|| node("192.168.1.1"), inputs("192.168.1.9"), no_ports);
        assert_eq!((texts(&first), first.networks.len()), ("192.168.1.1 192.168.1.9".to_owned(), 2));
        assert!(Arc::ptr_eq(&first, &finder.join(unread, inputs("192.168.1.9"), no_ports)));
        let port = (Protocol::Tcp, 8080);
        let listening = finder.join(unread, inputs("192.168.1.9"), |_| [port].into());
        assert!(listening.ports.contains(&port) && texts(&listening) == texts(&first));
        // This node got another address, or another node did.
        let moved = finder.join(|| node("192.168.1.1"), inputs("192.168.1.8"), no_ports);
        assert_eq!(texts(&moved), "192.168.1.1 192.168.1.8");
        finder.forget_nodes();
        let changed = finder.join(|| node("192.168.1.2"), inputs("192.168.1.8"), no_ports);
        assert_eq!(texts(&changed), "192.168.1.2 192.168.1.8");
    }

    /// Ports of nodes are not captured at their addresses: with the one of the API, no pod of any node could reach it.
    #[test]
    fn a_node_cannot_claim_the_address_of_a_service() {
        for (claimed, expected) in
            [("10.96.0.1", "10.244.0.1"), ("10.244.3.7", "10.244.0.1"), ("192.0.2.1", "10.244.0.1 192.0.2.1")]
        {
            let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": claimed}]}});
            let networks = ["10.96.0.0/12", "10.244.0.0/16"].map(|text| text.parse().unwrap()).into();
            // The gateway of pods is an address of this node.
            let inputs = (networks, ["10.244.0.1".parse().unwrap()].into());
            let nodes = || vec![Arc::new(serde_json::from_value::<Node>(node).unwrap())];
            let found = Finder::default().join(nodes, inputs, |_| Ports::new());
            let texts: Vec<String> = found.node_addresses.iter().map(IpAddr::to_string).collect();
            assert_eq!(texts.join(" "), expected, "{claimed}");
        }
    }
}
