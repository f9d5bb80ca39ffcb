//! Interfaces, addresses and routes of the caller's network namespace, through netlink.

mod addresses;
mod rate_limit;
mod routes;

pub use routes::Route;

use std::net::IpAddr;
use std::os::fd::RawFd;

use futures::TryStreamExt;
use rtnetlink::new_connection;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan};

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
