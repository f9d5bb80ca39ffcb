//! Interfaces, addresses and routes of the caller's network namespace, through netlink.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope};
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan};
use rtnetlink::{RouteMessageBuilder, new_connection};

use crate::cidr::Cidr;

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netlink socket")]
    Open(#[source] std::io::Error),
    #[error("{step} failed")]
    Step {
        step: String,
        #[source]
        source: Box<rtnetlink::Error>,
    },
    #[error("interface {0} does not exist")]
    NoLink(String),
    #[error("cannot encode a route: {0}")]
    Route(String),
}

impl NetlinkError {
    /// Whether the object to create exists already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether the object to delete does not exist.
    pub fn is_gone(&self) -> bool {
        matches!(self, NetlinkError::NoLink(_))
            || matches!(self.errno(), Some(libc::ENODEV | libc::ESRCH | libc::ENOENT | libc::EADDRNOTAVAIL))
    }

    fn errno(&self) -> Option<i32> {
        match self {
            NetlinkError::Step { source, .. } => match source.as_ref() {
                rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
                _ => None,
            },
            _ => None,
        }
    }
}

fn failed(step: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> NetlinkError {
    move |source| NetlinkError::Step { step: step.into(), source: Box::new(source) }
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Link {
    pub index: u32,
    pub mac: Vec<u8>,
    pub mtu: u32,
    pub controller: Option<u32>,
}

/// A veth pair to create, the second interface in another namespace.
pub struct Pair<'a> {
    pub host: &'a str,
    pub inside: &'a str,
    pub namespace: RawFd,
    pub inside_mac: Option<[u8; 6]>,
    pub mtu: u32,
}

/// A route of this node; those with our protocol number are ours to delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    pub to: Cidr,
    pub gateway: Option<IpAddr>,
    pub link: Option<u32>,
    /// The gateway need not be within a network of the interface.
    pub on_link: bool,
    /// Preferred source address.
    pub source: Option<IpAddr>,
}

/// The protocol number of our routes.
const OWN_ROUTES: u8 = 0x6b;

pub struct Netlink {
    handle: Handle,
    connection: tokio::task::AbortHandle,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Netlink {
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = new_connection().map_err(NetlinkError::Open)?;
        Ok(Self { handle, connection: knarr_supervisor::spawn(connection).abort_handle() })
    }

    pub async fn link(&self, name: &str) -> Result<Link, NetlinkError> {
        let mut found = std::pin::pin!(self.handle.link().get().match_name(name.to_owned()).execute());
        match found.try_next().await {
            Ok(Some(message)) => Ok(describe(&message)),
            Ok(None) => Err(NetlinkError::NoLink(name.to_owned())),
            Err(error) => {
                let error = failed(format!("finding interface {name}"))(error);
                Err(if error.is_gone() { NetlinkError::NoLink(name.to_owned()) } else { error })
            }
        }
    }

    pub async fn link_at(&self, index: u32) -> Result<Link, NetlinkError> {
        let mut found = std::pin::pin!(self.handle.link().get().match_index(index).execute());
        let message = found.try_next().await.map_err(failed("finding an interface"))?;
        message.as_ref().map(describe).ok_or_else(|| NetlinkError::NoLink(index.to_string()))
    }

    pub async fn add_bridge(&self, name: &str, mac: [u8; 6], mtu: u32) -> Result<(), NetlinkError> {
        let message = LinkBridge::new(name).address(mac.to_vec()).mtu(mtu).up().build();
        self.handle.link().add(message).execute().await.map_err(failed(format!("creating bridge {name}")))
    }

    pub async fn add_pair(&self, pair: &Pair<'_>) -> Result<(), NetlinkError> {
        let mut inside = LinkMessageBuilder::<LinkUnspec>::new()
            .name(pair.inside.to_owned())
            .mtu(pair.mtu)
            .setns_by_fd(pair.namespace);
        if let Some(mac) = pair.inside_mac {
            inside = inside.address(mac.to_vec());
        }
        let message = LinkVeth::new(pair.host, pair.inside)
            .mtu(pair.mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(inside.build())))
            .build();
        self.handle.link().add(message).execute().await.map_err(failed(format!("creating interface {}", pair.host)))
    }

    pub async fn add_vxlan(
        &self,
        name: &str,
        id: u32,
        port: u16,
        local: IpAddr,
        mtu: u32,
        mac: [u8; 6],
    ) -> Result<(), NetlinkError> {
        let builder = LinkVxlan::new(name, id).port(port).learning(false);
        let builder = match local {
            IpAddr::V4(address) => builder.local(address),
            IpAddr::V6(address) => builder.local6(address),
        };
        let message = builder.address(mac.to_vec()).mtu(mtu).up().build();
        self.handle.link().add(message).execute().await.map_err(failed(format!("making {name}")))
    }

    /// Makes a bridge drop frames between this port and other isolated ports.
    pub async fn isolate_port(&self, index: u32) -> Result<(), NetlinkError> {
        let port = LinkBridgePort::new(index).isolated(true).build();
        self.handle.link().set_port(port).execute().await.map_err(failed("isolating a bridge port"))
    }

    /// Sets a permanent neighbour entry: it is never queried, and nobody can spoof it.
    pub async fn set_neighbour(&self, index: u32, address: IpAddr, mac: &[u8]) -> Result<(), NetlinkError> {
        use rtnetlink::packet_route::neighbour::NeighbourState;
        let neighbours = self.handle.neighbours();
        let neighbour = neighbours.add(index, address).link_layer_address(mac).state(NeighbourState::Permanent);
        neighbour.replace().execute().await.map_err(failed(format!("setting the neighbour {address}")))
    }

    pub async fn bring_up(&self, index: u32) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(message).execute().await.map_err(failed("bringing an interface up"))
    }

    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(index).mtu(mtu).build();
        self.handle.link().set(message).execute().await.map_err(failed("setting the MTU"))
    }

    pub async fn delete_link(&self, index: u32) -> Result<(), NetlinkError> {
        self.handle.link().del(index).execute().await.map_err(failed("deleting an interface"))
    }

    /// Adds an address unless it exists. IPv6 addresses are usable at once: they are unique by construction.
    pub async fn add_address(&self, index: u32, address: IpAddr, length: u8) -> Result<(), NetlinkError> {
        let mut request = self.handle.address().add(index, address, length);
        if address.is_ipv6() {
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        match request.execute().await.map_err(failed(format!("adding address {address}"))) {
            Err(error) if error.is_exists() => Ok(()),
            result => result,
        }
    }

    /// Adds a single IPv6 address unless it exists; it is never chosen as a source address.
    pub async fn add_passive_address(&self, index: u32, address: IpAddr) -> Result<(), NetlinkError> {
        let mut request = self.handle.address().add(index, address, 128);
        let message = request.message_mut();
        message.header.flags |= AddressHeaderFlags::Nodad;
        let mut lifetime = CacheInfo::default();
        (lifetime.ifa_preferred, lifetime.ifa_valid) = (0, u32::MAX);
        message.attributes.push(AddressAttribute::CacheInfo(lifetime));
        match request.execute().await.map_err(failed(format!("adding address {address}"))) {
            Err(error) if error.is_exists() => Ok(()),
            result => result,
        }
    }

    pub async fn delete_address(&self, index: u32, address: IpAddr) -> Result<(), NetlinkError> {
        let found = self.handle.address().get().set_link_index_filter(index).set_address_filter(address).execute();
        let messages: Vec<_> = found.try_collect().await.map_err(failed("listing addresses"))?;
        for message in messages {
            self.handle
                .address()
                .del(message)
                .execute()
                .await
                .map_err(failed(format!("removing address {address}")))?;
        }
        Ok(())
    }

    /// Addresses with their prefix lengths, of one interface or of all.
    pub async fn addresses(&self, index: Option<u32>) -> Result<Vec<(u32, IpAddr, u8)>, NetlinkError> {
        let messages = self.address_messages(index).await?;
        let read =
            |message: &AddressMessage| Some((message.header.index, address_of(message)?, message.header.prefix_len));
        Ok(messages.iter().filter_map(read).collect())
    }

    /// Addresses added by [`Self::add_passive_address`], with their interface.
    pub async fn passive_addresses(&self) -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
        let is_passive = |message: &&AddressMessage| {
            message.header.prefix_len == 128
                && message.attributes.iter().any(
                    |attribute| matches!(attribute, AddressAttribute::CacheInfo(lifetime) if lifetime.ifa_preferred == 0),
                )
        };
        let messages = self.address_messages(None).await?;
        let read = |message: &AddressMessage| Some((message.header.index, address_of(message)?));
        Ok(messages.iter().filter(is_passive).filter_map(read).collect())
    }

    async fn address_messages(&self, index: Option<u32>) -> Result<Vec<AddressMessage>, NetlinkError> {
        let mut request = self.handle.address().get();
        if let Some(index) = index {
            request = request.set_link_index_filter(index);
        }
        request.execute().try_collect().await.map_err(failed("listing addresses"))
    }

    /// Adds a route or replaces the one to the same network.
    pub async fn set_route(&self, route: &Route, is_own: bool) -> Result<(), NetlinkError> {
        let message = route_message(route, is_own)?;
        let step = format!("setting the route to {}", route.to);
        self.handle.route().add(message).replace().execute().await.map_err(failed(step))
    }

    pub async fn delete_route(&self, route: &Route) -> Result<(), NetlinkError> {
        let message = route_message(route, true)?;
        self.handle.route().del(message).execute().await.map_err(failed(format!("removing the route to {}", route.to)))
    }

    /// Routes created by us.
    pub async fn own_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        Ok(self.routes().await?.iter().filter(|message| is_own(message)).filter_map(read_route).collect())
    }

    /// Routes created by others.
    pub async fn other_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        Ok(self.routes().await?.iter().filter(|message| !is_own(message)).filter_map(read_route).collect())
    }

    /// The interface of the default route.
    pub async fn default_link(&self) -> Result<Option<u32>, NetlinkError> {
        let routes = self.routes().await?;
        let default = routes.iter().filter(|message| message.header.destination_prefix_length == 0);
        Ok(default.filter_map(read_route).find_map(|route| route.link))
    }

    async fn routes(&self) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut all = Vec::new();
        for message in [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            let found = self.handle.route().get(message).execute();
            let found: Vec<_> = found.try_collect().await.map_err(failed("listing routes"))?;
            all.extend(found);
        }
        Ok(all)
    }

    /// Sets a tunnel's peer: its inner address, its hardware address, and the node behind it.
    pub async fn set_tunnel_peer(
        &self,
        index: u32,
        inner: IpAddr,
        mac: &[u8],
        node: IpAddr,
    ) -> Result<(), NetlinkError> {
        use rtnetlink::packet_route::neighbour::{NeighbourFlags, NeighbourState};
        let neighbours = self.handle.neighbours();
        let neighbour = neighbours.add(index, inner).link_layer_address(mac).state(NeighbourState::Permanent).replace();
        neighbour.execute().await.map_err(failed("setting a tunnel's neighbour"))?;
        let forward = neighbours.add_bridge(index, mac).destination(node).flags(NeighbourFlags::Own);
        let forward = forward.state(NeighbourState::Permanent).replace();
        forward.execute().await.map_err(failed("setting a tunnel's forwarding entry"))
    }

    /// Limits the egress rate of an interface, by a token bucket.
    pub async fn limit_rate(&self, index: u32, bytes_a_second: u64, burst: u32) -> Result<(), NetlinkError> {
        let mut message = TcMessage::default();
        message.header.index = i32::try_from(index).unwrap_or(i32::MAX);
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major: 1, minor: 0 };
        message.attributes.push(TcAttribute::Kind("tbf".to_owned()));
        message.attributes.push(TcAttribute::Options(token_bucket(bytes_a_second, burst)));
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let mut handle = self.handle.clone();
        let step = "limiting bandwidth";
        let mut answers = handle.request(request).map_err(failed(step))?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(failed(step)(rtnetlink::Error::NetlinkError(error)));
            }
        }
        Ok(())
    }
}

fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let plain = || {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    };
    local.or_else(plain)
}

fn describe(message: &LinkMessage) -> Link {
    let mut link = Link { index: message.header.index, mac: Vec::new(), mtu: 1500, controller: None };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(mac) => link.mac.clone_from(mac),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            _ => {}
        }
    }
    link
}

fn route_message(route: &Route, is_own: bool) -> Result<RouteMessage, NetlinkError> {
    let builder = RouteMessageBuilder::<IpAddr>::new();
    let mut builder = builder.destination_prefix(route.to.first(), route.to.length()).map_err(unwritable)?;
    if let Some(gateway) = route.gateway {
        builder = builder.gateway(gateway).map_err(unwritable)?;
    } else {
        builder = builder.scope(RouteScope::Link);
    }
    if let Some(link) = route.link {
        builder = builder.output_interface(link);
    }
    if route.on_link {
        builder = builder.onlink();
    }
    if let Some(source) = route.source {
        builder = builder.pref_source(source).map_err(unwritable)?;
    }
    if is_own {
        builder = builder.protocol(RouteProtocol::from(OWN_ROUTES));
    }
    Ok(builder.build())
}

fn is_own(message: &RouteMessage) -> bool {
    u8::from(message.header.protocol) == OWN_ROUTES
}

fn unwritable(error: impl std::fmt::Display) -> NetlinkError {
    NetlinkError::Route(error.to_string())
}

fn read_route(message: &RouteMessage) -> Option<Route> {
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    let is_ipv4 = message.header.address_family == rtnetlink::packet_route::AddressFamily::Inet;
    let any = if is_ipv4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let (mut to, mut gateway, mut link) = (any, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(destination) => to = address(destination)?,
            RouteAttribute::Gateway(through) => gateway = address(through),
            RouteAttribute::Oif(index) => link = Some(*index),
            _ => {}
        }
    }
    let to = Cidr::new(to, message.header.destination_prefix_length)?;
    let on_link = message.header.flags.contains(rtnetlink::packet_route::route::RouteFlags::Onlink);
    Some(Route { to, gateway, link, on_link, source: None })
}

/// The kernel's parameters of a token bucket filter.
fn token_bucket(bytes_a_second: u64, burst: u32) -> Vec<TcOption> {
    const PARAMETERS: u16 = 1;
    const RATE_64: u16 = 4;
    const BURST: u16 = 6;
    const ETHERNET: u8 = 1;
    // Maximum time a packet is queued before it is dropped.
    const LATENCY_MILLISECONDS: u64 = 50;
    let waiting = bytes_a_second.saturating_mul(LATENCY_MILLISECONDS) / 1000 + u64::from(burst);
    let rate = u32::try_from(bytes_a_second).unwrap_or(u32::MAX);
    let mut parameters = Vec::with_capacity(36);
    parameters.extend([0, ETHERNET, 0, 0, 0, 0, 0, 0]);
    parameters.extend(rate.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend(u32::try_from(waiting).unwrap_or(u32::MAX).to_ne_bytes());
    parameters.extend([0; 8]);
    let mut options = vec![TcOption::Other(DefaultNla::new(PARAMETERS, parameters))];
    if bytes_a_second > u64::from(u32::MAX) {
        options.push(TcOption::Other(DefaultNla::new(RATE_64, bytes_a_second.to_ne_bytes().to_vec())));
    }
    options.push(TcOption::Other(DefaultNla::new(BURST, burst.to_ne_bytes().to_vec())));
    options
}
