//! Routes to the pods of other nodes: direct to a node on the same subnet, through a VXLAN tunnel to others.
//!
//! A tunnel endpoint has the first address of its node's pod CIDR and a hardware address derived from it, so that every
//! node can compute those of all others.
//!
//! If no route leads to the Service networks, as on a host without a default route, one is added here: otherwise processes
//! on the node could not connect to a Service at all, although the packets are rewritten afterwards.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::jiff::Timestamp;
use knarr_client::Informers;
use tokio::sync::Notify;

use super::tunnel_guard;
use crate::capture;
use crate::cidr::{Cidr, pod_cidrs};
use crate::cni::hardware_address;
use crate::interfaces::TUNNEL;
use crate::netlink::{Netlink, NetlinkError, Route};
use crate::proxy::kernel::{self, KernelError};
use crate::proxy::networks_of;
use crate::sysctl;

const TUNNEL_ID: u32 = 107;
pub(super) const TUNNEL_PORT: u16 = 8472;
/// Overhead of the tunnel per packet, over IPv4 and over IPv6.
const TUNNEL_HEADERS: [u32; 2] = [50, 70];
/// Routes vanish with their interface; they are checked this often even if no node changes.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(2);

/// Configuration of the routes to other nodes.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Networks of all pods. Routes to other networks are refused; a family without a network here is not restricted.
    pub cluster_cidrs: Vec<Cidr>,
    /// The bridge of pods that an earlier version attached.
    pub bridge: String,
}

/// Keeps the routes in sync until dropped.
pub async fn run(informers: Informers, settings: Settings) {
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |change| {
        let is_same = |before: &Node| NodeNetwork::of(before) == NodeNetwork::of(change.latest());
        if !change.previous().is_some_and(|before| is_same(before)) {
            notify.notify_one();
        }
    });
    let services = informers.of::<ServiceCIDR>();
    let notify = Arc::clone(&changed);
    services.on_change(move |_| notify.notify_one());
    nodes.synced().await;
    services.synced().await;
    let mut reported = BTreeSet::new();
    let mut guarded = String::new();
    loop {
        let places: Vec<NodeNetwork> = nodes.list().iter().map(|node| NodeNetwork::of(node)).collect();
        let of_services = networks_of(&services.list());
        let peers = places.iter().flat_map(|place| place.addresses.iter().copied()).collect();
        let guard = tunnel_guard::table(&peers, &settings.bridge);
        let (places, refused) = accept_networks(places, &settings, &of_services);
        for refusal in refused.difference(&reported) {
            tracing::warn!(node = refusal.node, "no route to {}: {}", refusal.network, refusal.reason);
        }
        reported = refused;
        // The tunnel is not used before it is guarded.
        let applied = match protect(&guard, &mut guarded).await {
            Ok(()) => apply(&places, &settings.node_name, &of_services).await.map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        let pause = match applied {
            Ok(()) => RESYNC_INTERVAL,
            Err(error) => {
                tracing::error!(error, "cannot set the routes to other nodes' pods");
                RETRY
            }
        };
        // Wakes up on a change or after the resync interval.
        let _ = tokio::time::timeout(pause, changed.notified()).await;
    }
}

/// Installs the rules that guard the tunnel, if they have changed.
async fn protect(rules: &str, installed: &mut String) -> Result<(), KernelError> {
    if rules != *installed {
        kernel::run(rules.to_owned()).await?;
        rules.clone_into(installed);
    }
    Ok(())
}

/// The addresses and pod networks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeNetwork {
    name: String,
    addresses: Vec<IpAddr>,
    pods: Vec<Cidr>,
    created: Option<Timestamp>,
}

/// A node's pod network that is refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Refusal {
    node: String,
    network: Cidr,
    reason: &'static str,
}

impl NodeNetwork {
    fn of(node: &Node) -> Self {
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            addresses: internal
                .filter_map(|address| address.address.parse().ok())
                .filter(|address| capture::is_routable(*address))
                .collect(),
            pods: pod_cidrs(node),
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
        }
    }
}

/// Refuses pod networks that would capture the traffic of others: a node may claim any network when it registers. A network
/// must be within the cluster's, and disjoint from Services, nodes, this node's pods and those of older nodes.
fn accept_networks(
    mut places: Vec<NodeNetwork>,
    settings: &Settings,
    services: &BTreeSet<Cidr>,
) -> (Vec<NodeNetwork>, BTreeSet<Refusal>) {
    // This node's own network first; then by age.
    places.sort_by_key(|place| (place.name != settings.node_name, place.created, place.name.clone()));
    // Networks are given to nodes; addresses are what nodes say of themselves. An address of pods protects nobody but this
    // node, and no address makes others lose a network that they had before.
    let is_of_pods = |address: &IpAddr| settings.cluster_cidrs.iter().any(|one| one.contains(*address));
    let mut nodes = BTreeSet::<IpAddr>::new();
    let is_foreign = |network: &Cidr| {
        let mut of_family = settings.cluster_cidrs.iter().filter(|one| one.is_ipv4() == network.is_ipv4()).peekable();
        of_family.peek().is_some() && !of_family.any(|one| one.covers(network))
    };
    let (mut own, mut accepted, mut refused) = (Vec::<Cidr>::new(), BTreeSet::<Cidr>::new(), BTreeSet::new());
    for place in &mut places {
        let is_own = place.name == settings.node_name;
        nodes.extend(place.addresses.iter().filter(|address| is_own || !is_of_pods(address)));
        let node = place.name.clone();
        place.pods.retain(|network| {
            let overlaps = |other: &Cidr| other.covers(network) || network.covers(other);
            let reason = if is_own {
                None
            } else if is_foreign(network) {
                Some("it is not within the cluster's pod networks")
            } else if services.iter().any(overlaps) {
                Some("it overlaps the networks of services")
            } else if nodes.range(network.first()..).next().is_some_and(|address| network.contains(*address)) {
                Some("it holds the address of a node")
            } else if own.iter().any(overlaps) || overlaps_one(&accepted, network) {
                Some("it overlaps the pod network of this node or an older one")
            } else {
                None
            };
            match reason {
                Some(reason) => drop(refused.insert(Refusal { node: node.clone(), network: *network, reason })),
                None if is_own => own.push(*network),
                None => drop(accepted.insert(*network)),
            }
            reason.is_none()
        });
    }
    (places, refused)
}

/// Whether a network overlaps one of these, of which no two overlap: with thousands of nodes, no search through all of them.
fn overlaps_one(disjoint: &BTreeSet<Cidr>, network: &Cidr) -> bool {
    let mut before = disjoint.range(..=*network);
    let mut after = disjoint.range(*network..);
    before.next_back().is_some_and(|one| one.covers(network)) || after.next().is_some_and(|one| network.covers(one))
}

/// The route to one pod network of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PeerRoute {
    Direct { to: Cidr, gateway: IpAddr },
    Tunnel { to: Cidr, inner: IpAddr, mac: [u8; 6], node: IpAddr },
}

/// All routes from a node whose interfaces have the given addresses and are on the given networks. Others are not reached at
/// addresses of this node, whatever they say.
fn plan(places: &[NodeNetwork], own: &NodeNetwork, local: &BTreeSet<IpAddr>, networks: &[Cidr]) -> Vec<PeerRoute> {
    let mut routes = Vec::new();
    for place in places.iter().filter(|place| place.name != own.name) {
        let addresses = || place.addresses.iter().filter(|address| !local.contains(address));
        let mac = tunnel_mac(&place.pods);
        for to in &place.pods {
            let direct = addresses().find(|address| {
                address.is_ipv4() == to.is_ipv4() && networks.iter().any(|network| network.contains(**address))
            });
            if let Some(gateway) = direct {
                routes.push(PeerRoute::Direct { to: *to, gateway: *gateway });
                continue;
            }
            // The outer address must be of a family that this node has, too.
            let spoken = |address: &&IpAddr| own.addresses.iter().any(|mine| mine.is_ipv4() == address.is_ipv4());
            if let (Some(mac), Some(node)) = (mac, addresses().find(spoken)) {
                routes.push(PeerRoute::Tunnel { to: *to, inner: to.first(), mac, node: *node });
            }
        }
    }
    routes
}

fn tunnel_mac(pods: &[Cidr]) -> Option<[u8; 6]> {
    pods.first().map(|cidr| hardware_address(cidr.first()))
}

/// Service networks that no other route covers, each with this node's address of its family.
fn unreachable(services: &BTreeSet<Cidr>, others: &[Route], own: &NodeNetwork) -> Vec<(Cidr, IpAddr)> {
    let leads = |to: &Cidr| {
        let covers = |route: &Route| route.to.is_ipv4() == to.is_ipv4() && route.to.length() <= to.length();
        others.iter().any(|route| covers(route) && route.to.contains(to.first()))
    };
    let source = |to: &Cidr| own.addresses.iter().find(|address| address.is_ipv4() == to.is_ipv4());
    services.iter().filter(|to| !leads(to)).filter_map(|to| Some((*to, *source(to)?))).collect()
}

async fn apply(places: &[NodeNetwork], node: &str, services: &BTreeSet<Cidr>) -> Result<(), NetlinkError> {
    let Some(own) = places.iter().find(|place| place.name == node) else { return Ok(()) };
    let netlink = Netlink::open()?;
    let addresses = netlink.addresses(None).await?;
    let networks: Vec<Cidr> = addresses
        .iter()
        .filter(|(_, address, length)| !address.is_loopback() && *length > 0 && !is_whole(*address, *length))
        .filter_map(|(_, address, length)| Cidr::new(*address, *length))
        .filter(|network| !own.pods.contains(network))
        .collect();
    let local = addresses.iter().map(|(_, address, _)| *address).collect();
    let routes = plan(places, own, &local, &networks);
    let needs_tunnel = routes.iter().any(|way| matches!(way, PeerRoute::Tunnel { .. }));
    let tunnel = if needs_tunnel { ensure_tunnel(&netlink, own, &addresses).await? } else { None };
    let mut desired = BTreeSet::new();
    // A wrong address of one node must not prevent the routes to other nodes.
    let mut outcome = Ok(());
    for way in &routes {
        match set(&netlink, way, tunnel).await {
            Ok(to) => desired.extend(to),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    for (to, source) in unreachable(services, &netlink.other_routes().await?, own) {
        let link = Some(netlink.link("lo").await?.index);
        let route = Route { to, gateway: None, link, on_link: false, source: Some(source) };
        netlink.set_route(&route, true).await?;
        desired.insert(to);
    }
    for route in netlink.own_routes().await? {
        if !desired.contains(&route.to) {
            match netlink.delete_route(&route).await {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
    }
    outcome
}

/// Sets a route, and returns where it leads. There may be no tunnel for it.
async fn set(netlink: &Netlink, way: &PeerRoute, tunnel: Option<u32>) -> Result<Option<Cidr>, NetlinkError> {
    let route = match *way {
        PeerRoute::Direct { to, gateway } => {
            Route { to, gateway: Some(gateway), link: None, on_link: false, source: None }
        }
        PeerRoute::Tunnel { to, inner, mac, node } => {
            let Some(link) = tunnel else { return Ok(None) };
            netlink.set_tunnel_peer(link, inner, &mac, node).await?;
            Route { to, gateway: Some(inner), link: Some(link), on_link: true, source: None }
        }
    };
    netlink.set_route(&route, true).await?;
    Ok(Some(route.to))
}

fn is_whole(address: IpAddr, length: u8) -> bool {
    length == if address.is_ipv4() { 32 } else { 128 }
}

/// The tunnel interface, created if it does not exist.
async fn ensure_tunnel(
    netlink: &Netlink,
    own: &NodeNetwork,
    addresses: &[(u32, IpAddr, u8)],
) -> Result<Option<u32>, NetlinkError> {
    let local = own.addresses.iter().find_map(|desired| addresses.iter().find(|(_, address, _)| address == desired));
    let (Some((under, local, _)), Some(mac)) = (local, tunnel_mac(&own.pods)) else { return Ok(None) };
    let mtu = netlink.link_at(*under).await?.mtu - TUNNEL_HEADERS[usize::from(local.is_ipv6())];
    let link = match netlink.link(TUNNEL).await {
        Ok(link) if link.mac == mac => link,
        other => {
            if let Ok(old) = other {
                netlink.delete_link(old.index).await?;
            }
            netlink.add_vxlan(TUNNEL, TUNNEL_ID, TUNNEL_PORT, *local, mtu, mac).await?;
            // Packets may arrive through the tunnel although this node replies directly, and vice versa.
            sysctl::set(&format!("net/ipv4/conf/{TUNNEL}/rp_filter"), "0");
            netlink.link(TUNNEL).await?
        }
    };
    if link.mtu != mtu {
        netlink.set_mtu(link.index, mtu).await?;
    }
    for cidr in &own.pods {
        netlink.add_address(link.index, cidr.first(), if cidr.is_ipv4() { 32 } else { 128 }).await?;
    }
    netlink.bring_up(link.index).await?;
    Ok(Some(link.index))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
