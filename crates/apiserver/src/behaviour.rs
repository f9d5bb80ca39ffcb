//! How a server behaves where Kubernetes has a flag for it. The defaults are those of Kubernetes.

use std::time::Duration;

use http::HeaderValue;
use knarr_api::catalogue::Catalogue;
use knarr_rules::Features;
use regex::Regex;

/// Addresses are preferred to names: not every cluster can resolve the names of its nodes.
pub const KUBELET_ADDRESS_TYPES: [&str; 5] = ["InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname"];

/// The configurable behaviour of a server.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// The built-in kinds that are served: `--runtime-config`.
    pub built_in: Catalogue,
    pub requests: RequestLimits,
    pub responses: SharedHeaders,
    /// How long an Event is kept: `--event-ttl`.
    pub event_lifetime: Duration,
    /// The range of node ports: `--service-node-port-range`.
    pub node_ports: PortRange,
    /// Which addresses of nodes are called, in order: `--kubelet-preferred-address-types`.
    pub kubelet_address_types: Vec<String>,
    /// `--feature-gates`.
    pub features: Features,
}

/// Timeouts of requests, and the concurrency of deletions.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// The longest timeout of a request that is not long-running, and the default: `--request-timeout`.
    pub timeout: Duration,
    /// A watch without a timeout lasts at least this long, and up to twice as long: `--min-request-timeout`.
    pub min_watch: Duration,
    /// How many objects of a collection are deleted at once: `--delete-collection-workers`.
    pub concurrent_deletions: usize,
}

/// Headers that do not depend on what is requested.
#[derive(Debug, Clone, Default)]
pub struct SharedHeaders {
    /// Origins of pages whose scripts may use the API: `--cors-allowed-origins`.
    pub allowed_origins: Vec<Regex>,
    /// `--strict-transport-security-directives`.
    pub strict_transport_security: Option<HeaderValue>,
    /// The probability that an HTTP/2 client is asked to open another connection: `--goaway-chance`.
    pub goaway_chance: f64,
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            built_in: Catalogue::built_in(),
            requests: RequestLimits::default(),
            responses: SharedHeaders::default(),
            event_lifetime: Duration::from_secs(3600),
            node_ports: PortRange::default(),
            kubelet_address_types: KUBELET_ADDRESS_TYPES.map(str::to_owned).to_vec(),
            features: Features::default(),
        }
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits {
            timeout: Duration::from_secs(60),
            min_watch: Duration::from_secs(30 * 60),
            concurrent_deletions: 1,
        }
    }
}

impl Default for PortRange {
    fn default() -> Self {
        PortRange { first: 30_000, last: 32_767 }
    }
}

impl PortRange {
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The number of ports after the first one.
    pub fn width(self) -> u16 {
        self.last - self.first
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

/// A text that names no range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse port range: {0}")]
pub struct PortRangeError(String);

impl std::str::FromStr for PortRange {
    type Err = PortRangeError;

    /// `30000-32767`, `30000+2767` or one port.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || PortRangeError(text.to_owned());
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| invalid());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (port(first)?, port(last)?)
        } else if let Some((first, more)) = text.split_once('+') {
            let first = port(first)?;
            (first, first.checked_add(port(more)?).ok_or_else(invalid)?)
        } else {
            (port(text)?, port(text)?)
        };
        if first == 0 || first > last { Err(invalid()) } else { Ok(PortRange { first, last }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports_are_parsed() {
        for (text, expected) in [
            ("30000-32767", Some((30_000, 32_767))),
            ("30000+100", Some((30_000, 30_100))),
            ("8080", Some((8080, 8080))),
            ("5-4", None),
            ("0-4", None),
            ("65000+1000", None),
            ("a-b", None),
        ] {
            let parsed = text.parse::<PortRange>().ok().map(|range| (range.first, range.last));
            assert_eq!(parsed, expected, "{text}");
        }
    }
}
