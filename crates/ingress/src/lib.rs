//! The ingress controller: routes HTTP and HTTPS from outside the cluster to pods by host and path.
//!
//! Input: Ingresses, IngressClasses, Services, EndpointSlices and TLS Secrets from the API, and client connections.
//! Output: requests to pods, and the load balancer addresses in the status of each Ingress.
//!
//! Every node serves ([`run`]): `routes` selects the backend of a request (pure); `backends` holds its pods and pools
//! connections to them; `pod_connection` and `raw_connection` carry requests; `certificates` selects by server name from
//! `secrets`; `watcher` keeps these in sync with the API; `fast_path` serves simple requests and `proxy` all others;
//! `server` accepts connections on the threads of `worker`, within the limits of `connections`, and closes those without
//! `activity`; `announce` marks this node as serving. Once per cluster ([`run_central`]), `status` publishes the addresses
//! of Ingresses and `grants` lets nodes read the Secrets that they need.

mod activity;
mod announce;
mod backends;
mod certificates;
mod counted_body;
mod fast_path;
mod forwarded;
mod forwarded_body;
mod grants;
mod metrics;
mod payload;
mod pod_connection;
mod progress;
mod proxy;
mod raw_connection;
mod replay;
mod routes;
mod secrets;
mod server;
mod service_endpoints;
mod status;
mod watcher;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_listen::Admission;
use tokio::sync::watch;

#[doc(hidden)]
pub use fast_path::fuzzing;
pub use metrics::render as metrics;
pub use server::Listeners;

/// The controller name in the spec of our IngressClass.
pub const CONTROLLER: &str = "knarr.dev/ingress";
/// The IngressClass that is created for this controller.
pub const CLASS: &str = "knarr";

/// Addresses to listen on.
#[derive(Clone, Debug)]
pub struct Addresses {
    pub http: Vec<SocketAddr>,
    pub https: Vec<SocketAddr>,
}

impl Addresses {
    /// Listens on all addresses. Connections queue until [`run`] serves them, so call this as early as possible in a
    /// process.
    pub fn bind(&self) -> Result<Listeners, IngressError> {
        Listeners::bind(self)
    }
}

/// Timeouts of client and pod connections.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// Until a pod sends the head of its response, from the last part of the request that it got.
    pub response: Duration,
    /// Until a client has sent the rest of a request's head after its first byte.
    pub head: Duration,
    /// Until a client sends its next request, or reads more of a response.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(60),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(75),
        }
    }
}

/// Limits on the node's resources that clients and Services can use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all clients together, and of one client.
    pub connections: usize,
    pub connections_of_client: usize,
    /// Whether pods may have loopback addresses, as in tests. On a node these are the node's own services.
    pub allows_loopback_pods: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16_384, connections_of_client: 2048, allows_loopback_pods: false }
    }
}

/// Why the ingress controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum IngressError {
    #[error("ingress cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("cannot create the default certificate: {0}")]
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
    let watcher = watcher::start(&informers, &backends, &certificates).await;
    let proxy = Arc::new(proxy::Proxy { routes: watcher.routes(), timeouts });
    // Plain HTTP need not wait for certificates.
    let (sender, is_secure) = watch::channel(false);
    let connections = Arc::new(Admission::with_limits(limits.connections, limits.connections_of_client));
    tracing::info!("serving ingresses");
    tokio::join!(
        server::serve(listeners, proxy, certificates, is_secure, connections),
        watcher.run(),
        async {
            watcher.certificates_known().await;
            sender.send_replace(true);
        },
        announce::run(informers, client, node_name, true),
    );
    Ok(())
}

/// Runs on a node that serves no Ingresses: removes the annotation of an earlier configuration.
pub async fn withdraw(informers: Informers, client: Client, node_name: String) {
    announce::run(informers, client, node_name, false).await;
}

/// Runs once per cluster: Ingress status, the IngressClass, and the permission of the user group `nodes` to read the TLS
/// Secrets that Ingresses reference.
pub async fn run_central(informers: Informers, client: Client, nodes: String) {
    tokio::join!(status::run(informers.clone(), client.clone()), grants::run(informers, client, nodes));
}
