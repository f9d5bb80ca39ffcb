//! Parses upstream resolvers from settings: `10.0.0.1` or `10.0.0.1:5353`, and for a single domain `corp.example=10.0.0.1`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::name::Name;

const PORT: u16 = 53;

/// The address of a resolver outside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream(pub SocketAddr);

/// A resolver for a domain and its subdomains. Several resolvers of one domain are queried in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubDomain {
    pub domain: String,
    pub server: Upstream,
}

/// Why a setting is not a resolver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    #[error("{0:?} is not the address of a resolver, such as 10.0.0.1 or 10.0.0.1:5353")]
    Address(String),
    #[error("{0:?} does not name a domain and a resolver, such as corp.example=10.0.0.1")]
    StubDomain(String),
}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = || text.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
        let address = text.parse().or_else(|_| plain());
        address.map(Self).map_err(|_| UpstreamError::Address(text.to_owned()))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl FromStr for StubDomain {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || UpstreamError::StubDomain(text.to_owned());
        let (domain, server) = text.split_once('=').ok_or_else(wrong)?;
        if domain.is_empty() || Name::from_text(domain).is_none() {
            return Err(wrong());
        }
        Ok(Self { domain: domain.to_owned(), server: server.parse()? })
    }
}

impl fmt::Display for StubDomain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.domain, self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_and_written() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1:53")),
            ("10.0.0.1:5353", Some("10.0.0.1:5353")),
            ("fd00::1", Some("[fd00::1]:53")),
            ("[fd00::1]", Some("[fd00::1]:53")),
            ("[fd00::1]:5353", Some("[fd00::1]:5353")),
            ("resolver.example", None),
        ] {
            assert_eq!(text.parse::<Upstream>().ok().map(|one| one.to_string()).as_deref(), expected, "{text}");
        }
        for (text, expected) in [
            ("corp.example=10.0.0.1", Some("corp.example=10.0.0.1:53")),
            ("corp.example", None),
            ("=10.0.0.1", None),
            ("a..b=10.0.0.1", None),
        ] {
            assert_eq!(text.parse::<StubDomain>().ok().map(|one| one.to_string()).as_deref(), expected, "{text}");
        }
    }
}
