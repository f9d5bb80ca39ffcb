//! The ingress controller: HTTP and HTTPS from outside the cluster reach pods by host and path.
//!
//! In: ingresses, their classes, services, endpoint slices and TLS secrets from the API, and connections of clients.
//! Out: requests to pods, and the address under which an ingress is reached in its status.
//!
//! `routes` says which backend a request is for (pure); `backends` knows the pods behind it and keeps connections to
//! them; `line` carries a request; `certificates` chooses by server name; `follow` keeps these three true to the API; `proxy` forwards one request;
//! `server` accepts connections on the threads of `worker`; `status` tells the API.

mod backends;
mod certificates;
mod follow;
mod forwarded;
mod line;
mod metrics;
mod proxy;
mod routes;
mod server;
mod status;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::Informers;
use knarr_client::kube::Client;

pub use metrics::render as metrics;

/// The controller name by which an IngressClass asks for us.
pub const CONTROLLER: &str = "knarr.dev/ingress";
/// The class that is made for us.
pub const CLASS: &str = "knarr";

#[derive(Clone, Debug)]
pub struct Settings {
    pub http: Vec<SocketAddr>,
    pub https: Vec<SocketAddr>,
    /// Addresses or names written into the status of ingresses. Nothing is written when empty: one node is enough.
    pub publish: Vec<String>,
    pub timeouts: Timeouts,
}

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// Until a pod begins to answer.
    pub answer: Duration,
    /// Until a client has sent its request's head.
    pub head: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), answer: Duration::from_secs(60), head: Duration::from_secs(60) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IngressError {
    #[error("ingress cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("the certificate for unknown names cannot be made: {0}")]
    Certificate(String),
}

/// Serves until dropped. Returns an error when an address cannot be listened on.
pub async fn run(informers: Informers, client: Client, settings: Settings) -> Result<(), IngressError> {
    let listeners = server::bind(&settings)?;
    let certificates = Arc::new(certificates::Certificates::new()?);
    let backends = Arc::new(backends::Backends::new(settings.timeouts.connect));
    let followed = follow::start(&informers, &backends, &certificates).await;
    let proxy = Arc::new(proxy::Proxy { routes: followed.routes(), timeouts: settings.timeouts });
    tracing::info!(http = ?settings.http, https = ?settings.https, "ingress serves");
    tokio::join!(
        server::serve(listeners, proxy, certificates, settings.timeouts),
        followed.run(),
        status::run(informers, client, settings.publish),
    );
    Ok(())
}
