//! Routes, through netlink.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope};

use super::{Netlink, NetlinkError, failed};
use crate::cidr::Cidr;

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

impl Netlink {
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
