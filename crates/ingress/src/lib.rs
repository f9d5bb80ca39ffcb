//! The ingress controller: HTTP and HTTPS from outside the cluster reach pods by host and path.
//!
//! In: ingresses, their classes, services, endpoint slices and TLS secrets from the API, and connections of clients.
//! Out: requests to pods, and the addresses under which an ingress is reached in its status.
//!
//! Every node serves ([`run`]): `routes` says which backend a request is for (pure); `backends` knows the pods behind it
//! and keeps connections to them; `line` carries a request; `certificates` chooses by server name from `secrets`; `follow`
//! keeps these true to the API; `quick` serves plain requests and `proxy` all others; `server` accepts connections on the
//! threads of `worker`, no more than `connections` allows, and closes those on which there is no `activity`; `announce` says that this node does so. In one place of the cluster ([`run_central`]), `status` tells where ingresses
//! are reached, and `grants` lets nodes read the secrets that they need.

mod activity;
mod again;
mod announce;
mod backends;
mod certificates;
mod connections;
mod counted;
mod follow;
mod forwarded;
mod grants;
mod line;
mod metrics;
mod proxy;
mod quick;
mod routes;
mod secrets;
mod server;
mod status;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::Informers;
use knarr_client::kube::Client;
use tokio::sync::watch;

pub use metrics::render as metrics;
#[doc(hidden)]
pub use quick::fuzzing;
pub use server::Listeners;

/// The controller name by which an IngressClass asks for us.
pub const CONTROLLER: &str = "knarr.dev/ingress";
/// The class that is made for us.
pub const CLASS: &str = "knarr";

/// Where clients come in.
#[derive(Clone, Debug)]
pub struct Addresses {
    pub http: Vec<SocketAddr>,
    pub https: Vec<SocketAddr>,
}

impl Addresses {
    /// Listens on all of them. Connections wait from then on until [`run`] serves them, so this is best done as soon as
    /// a process starts.
    pub fn bind(&self) -> Result<Listeners, IngressError> {
        Listeners::bind(self)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// Until a pod begins to answer.
    pub answer: Duration,
    /// Until a client has sent its request's head, once it has begun.
    pub head: Duration,
    /// Until a client asks again, or takes more of its answer.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(60),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(75),
        }
    }
}

/// What clients and Services can claim of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all clients, and of one.
    pub connections: usize,
    pub connections_of_client: usize,
    /// Whether pods may be at loopback addresses, as they are in tests. On a node these are the node's own services.
    pub allows_loopback_pods: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16_384, connections_of_client: 2048, allows_loopback_pods: false }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IngressError {
    #[error("ingress cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("the certificate for unknown names cannot be made: {0}")]
    Certificate(String),
}

/// Serves until dropped.
pub async fn run(
    informers: Informers,
    client: Client,
    node_name: String,
    listeners: Listeners,
    timeouts: Timeouts,
    limits: Limits,
) -> Result<(), IngressError> {
    let certificates = Arc::new(certificates::Certificates::new()?);
    let backends = Arc::new(backends::Backends::new(timeouts.connect, limits.allows_loopback_pods));
    let followed = follow::start(&informers, &backends, &certificates).await;
    let proxy = Arc::new(proxy::Proxy { routes: followed.routes(), timeouts });
    // Plain requests need not wait for certificates.
    let (sender, is_secure) = watch::channel(false);
    tracing::info!("ingress serves");
    tokio::join!(
        server::serve(listeners, proxy, certificates, is_secure, connections::Connections::new(limits)),
        followed.run(),
        async {
            followed.certificates_known().await;
            sender.send_replace(true);
        },
        announce::run(informers, client, node_name, true),
    );
    Ok(())
}

/// What a node does that serves no ingresses: it takes back what it may have said before.
pub async fn withdraw(informers: Informers, client: Client, node_name: String) {
    announce::run(informers, client, node_name, false).await;
}

/// What is done in one place of the cluster: ingresses' status, the class, and the right of `nodes`, a group of users, to
/// read TLS secrets that ingresses name.
pub async fn run_central(informers: Informers, client: Client, nodes: String) {
    tokio::join!(status::run(informers.clone(), client.clone()), grants::run(informers, client, nodes));
}
