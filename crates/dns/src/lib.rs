//! The cluster DNS server, which runs inside the process of every node.
//!
//! Input: Services and EndpointSlices from the API, and queries over UDP and TCP. Output: responses according to the
//! Kubernetes DNS specification 1.1 for names in the cluster domain. All other queries are forwarded to upstream resolvers,
//! and their responses are cached for their TTL.
//!
//! `watcher` keeps `directory` in sync with the API; `zone` resolves names from it (pure); `message` reads and writes the
//! wire format; `forward`, `in_flight` and `cache` handle upstream queries; `server` owns the sockets and `clients` limits
//! connections; `upstream` parses resolver addresses; `service` creates the `kube-dns` Service.

mod cache;
mod clients;
mod directory;
mod forward;
mod in_flight;
mod message;
mod metrics;
mod name;
mod resolver;
mod server;
mod service;
mod upstream;
mod watcher;
mod zone;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use knarr_client::Informers;

use resolver::Resolver;

pub use service::ensure_service;
pub use upstream::{StubDomain, Upstream, UpstreamError};

/// Configuration of the DNS server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to listen on, over UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain, such as `cluster.local`.
    pub domain: String,
    /// Resolvers for names outside the cluster; those in `/etc/resolv.conf` if empty.
    pub forwarders: Vec<Upstream>,
    /// Domains that have their own resolvers.
    pub stub_domains: Vec<StubDomain>,
}

/// Why the DNS server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("{0:?} is not a domain name")]
    Domain(String),
    #[error("DNS cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// Serves DNS until dropped. Returns an error if it cannot listen on an address.
pub async fn run(informers: Informers, settings: Settings) -> Result<(), DnsError> {
    knarr_metrics::register(metrics::FAMILIES);
    let directory = Arc::new(directory::Directory::default());
    let synced = watcher::start(&informers, Arc::clone(&directory));
    let sockets = server::bind(&settings.listen)?;
    let mut forwarders: Vec<SocketAddr> = settings.forwarders.iter().map(|upstream| upstream.0).collect();
    if forwarders.is_empty() {
        forwarders = system_resolvers(Path::new("/etc/resolv.conf"));
    }
    // Forwarding to our own address would loop.
    forwarders.retain(|forwarder| !settings.listen.contains(forwarder));
    let resolver =
        Resolver::new(directory, &settings.domain, settings.listen.clone(), forwarders, &settings.stub_domains)?;
    // Until all Services are known, a name that is merely not synced yet would get NXDOMAIN.
    synced.await;
    tracing::info!(listen = ?settings.listen, domain = settings.domain, "serving DNS");
    server::serve(sockets, Arc::new(resolver)).await;
    Ok(())
}

/// The name servers in a resolv.conf file.
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

/// Entry points for fuzzing the message parsers.
#[doc(hidden)]
pub mod fuzzing {
    use crate::cache::{Cache, CacheKey};
    use crate::message::Query;
    use crate::resolver::{Handled, Resolver};

    /// Parses and resolves bytes as a query, and as a response that is cached and aged.
    pub fn message(bytes: &[u8]) {
        if let Ok(query) = Query::read(bytes) {
            let _ = (query.is_internet(), query.max_response_size());
        }
        let address = std::net::SocketAddr::from(([10, 96, 0, 10], 53));
        if let Ok(resolver) = Resolver::new(Default::default(), "cluster.local", vec![address], Vec::new(), &[]) {
            let mut response = Vec::new();
            if let Handled::Answered = resolver.handle(bytes, None, &mut response) {
                assert!(response.get(..2) == bytes.get(..2) && response[2] & 0x80 != 0, "no response to the query");
                assert!(Query::read(&response).is_err(), "a response is no query");
            }
        }
        let Some((name, _)) = crate::message::read_name(bytes, 0) else { return };
        let key = CacheKey { name, kind: 1, class: 1, wants_signatures: false, checking_disabled: false };
        let (cache, now) = (Cache::default(), std::time::Instant::now());
        cache.keep(key.clone(), bytes, now);
        drop(cache.find(&key, now));
    }
}
