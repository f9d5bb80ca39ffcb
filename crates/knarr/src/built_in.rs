//! The built-in components that can be left out.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

/// A component that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BuiltIn {
    /// The service proxy.
    Proxy,
    /// The DNS server on every node, and the Service kube-dns.
    Dns,
    /// Addresses of Services of type LoadBalancer.
    LoadBalancer,
    /// The ingress controller.
    Ingress,
    /// The resource metrics API (metrics.k8s.io).
    Metrics,
    /// The pod network and network policies.
    Network,
    /// The driver of local volumes.
    LocalStorage,
    /// Knarr's own containerd; the host's is used.
    Containerd,
}

impl BuiltIn {
    /// Components that run on every node of a cluster: what a server disables is disabled on its agents, too.
    pub const SHARED: [BuiltIn; 3] = [BuiltIn::Proxy, BuiltIn::Dns, BuiltIn::LoadBalancer];
}

impl fmt::Display for BuiltIn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        formatter.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// A name that is not a component's.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a built-in component")]
pub struct UnknownComponent(String);

impl FromStr for BuiltIn {
    type Err = UnknownComponent;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(name, false).map_err(|_| UnknownComponent(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for component in BuiltIn::value_variants() {
            assert_eq!(component.to_string().parse::<BuiltIn>().unwrap(), *component);
        }
        assert!("other".parse::<BuiltIn>().is_err());
    }
}
