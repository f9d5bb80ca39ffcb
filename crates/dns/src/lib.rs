//! The cluster's DNS, in every node's own process.
//!
//! In: services and endpoint slices from the API, and queries over UDP and TCP. Out: answers to the Kubernetes DNS
//! specification 1.1 for names of the cluster; everything else is asked of upstream resolvers and remembered for as long
//! as they say.
//!
//! `follow` keeps `directory` true to the API; `zone` answers from it (pure); `message` speaks the wire format;
//! `forward`, `in_flight` and `cache` deal with the world outside; `server` moves packets for as many `clients` as it can;
//! `upstream` names resolvers; `service` makes DNS findable in the API.

mod cache;
mod clients;
mod directory;
mod follow;
mod forward;
mod in_flight;
mod message;
mod name;
mod resolver;
mod server;
mod service;
mod upstream;
mod zone;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use knarr_client::Informers;

use resolver::Resolver;

pub use service::keep_service;
pub use upstream::{StubDomain, Upstream, UpstreamError};

#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to answer on, over UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain, such as `cluster.local`.
    pub domain: String,
    /// Resolvers for names outside the cluster; those of `/etc/resolv.conf` when empty.
    pub forwarders: Vec<Upstream>,
    /// Domains that have resolvers of their own.
    pub stub_domains: Vec<StubDomain>,
}

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("{0:?} is not a domain name")]
    Domain(String),
    #[error("DNS cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// Answers until dropped. Returns an error when an address cannot be listened on.
pub async fn run(informers: Informers, settings: Settings) -> Result<(), DnsError> {
    let directory = Arc::new(directory::Directory::default());
    let synced = follow::start(&informers, Arc::clone(&directory));
    let sockets = server::bind(&settings.listen)?;
    let mut forwarders: Vec<SocketAddr> = settings.forwarders.iter().map(|upstream| upstream.0).collect();
    if forwarders.is_empty() {
        forwarders = system_resolvers(Path::new("/etc/resolv.conf"));
    }
    // Asking ourselves would go round in circles.
    forwarders.retain(|forwarder| !settings.listen.contains(forwarder));
    let resolver =
        Resolver::new(directory, &settings.domain, settings.listen.clone(), forwarders, &settings.stub_domains)?;
    // Before all services are known, a name that is not known yet would be denied.
    synced.await;
    tracing::info!(listen = ?settings.listen, domain = settings.domain, "DNS answers");
    server::serve(sockets, Arc::new(resolver)).await;
    Ok(())
}

/// The resolvers that a resolv.conf names.
fn system_resolvers(path: &Path) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("nameserver")
            && let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok())
        {
            found.push(SocketAddr::new(address, 53));
        }
    }
    found
}

/// The readers of messages, for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    use crate::cache::{Asked, Cache};
    use crate::message::Query;

    /// Reads bytes as a question, and as an answer that is kept and grows old.
    pub fn message(bytes: &[u8]) {
        if let Ok(query) = Query::read(bytes) {
            let _ = (query.is_internet(), query.largest_answer());
        }
        let Some((name, _)) = crate::message::read_name(bytes, 0) else { return };
        let asked = Asked { name, kind: 1, class: 1, wants_signatures: false, checking_disabled: false };
        let (cache, now) = (Cache::default(), std::time::Instant::now());
        cache.keep(asked.clone(), bytes, now);
        drop(cache.find(&asked, now));
    }
}
