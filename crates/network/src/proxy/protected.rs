//! What services must not capture, from the cluster's nodes and networks and from this machine.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::capture::Protected;
use crate::cidr::Cidr;
use crate::netlink::{Netlink, NetlinkError};
use crate::{listening, pod_network};

/// What a node adds: its addresses and its pods' networks.
pub fn of_node(node: &Node) -> (Vec<IpAddr>, Vec<Cidr>) {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let addresses = addresses.filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"));
    (addresses.filter_map(|address| address.address.parse().ok()).collect(), pod_network::pod_cidrs(node))
}

/// All that is protected as of now.
pub async fn find(nodes: &[Arc<Node>], services: &BTreeSet<Cidr>, pods: &[String]) -> Protected {
    let mut protected = Protected { networks: services.clone(), ..Protected::default() };
    protected.networks.extend(pods.iter().filter_map(|text| text.parse::<Cidr>().ok()));
    for node in nodes {
        let (addresses, networks) = of_node(node);
        protected.node_addresses.extend(addresses);
        protected.networks.extend(networks);
    }
    match own_addresses().await {
        Ok(own) => protected.node_addresses.extend(own),
        Err(error) => tracing::warn!(%error, "this machine's addresses are not known, only those of its Node"),
    }
    protected.ports = listening::ports(&protected.node_addresses);
    protected
}

/// The addresses of this machine's interfaces. Those of load balancers are on loopback, or answered on and never spoken
/// from: they are no addresses of the machine.
async fn own_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let netlink = Netlink::open()?;
    let loopback = netlink.link("lo").await?.index;
    let passive = netlink.passive_addresses().await?;
    let all = netlink.addresses(None).await?.into_iter();
    let own = all.filter(|(link, address, _)| *link != loopback && !passive.contains(&(*link, *address)));
    Ok(own.map(|(_, address, _)| address).collect())
}
