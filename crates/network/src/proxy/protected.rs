//! Collects what Services must not capture, from the cluster's nodes and networks and from this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::capture::Protected;
use crate::cidr::{Cidr, pod_cidrs};
use crate::listening;
use crate::netlink::{Netlink, NetlinkError};

/// A node's contribution: its addresses and its pod networks.
pub fn of_node(node: &Node) -> (Vec<IpAddr>, Vec<Cidr>) {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let addresses = addresses.filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"));
    (addresses.filter_map(|address| address.address.parse().ok()).collect(), pod_cidrs(node))
}

/// Everything that is protected at the moment.
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
        Err(error) => {
            tracing::warn!(%error, "cannot read this node's addresses; only those of its Node object are protected")
        }
    }
    protected.ports = listening::ports(&protected.node_addresses);
    protected
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
