//! Names and addresses that no node may serve under, whatever its status reports: with a certificate for them it could
//! impersonate the API server, a service, or programs of another host.

use std::net::IpAddr;

use crate::Settings;
use crate::common::network::Network;

pub(super) struct Reserved {
    /// Suffixes of service names, and the cluster's domain.
    domains: Vec<String>,
    services: Vec<Network>,
    /// Names (lower case) and addresses of the API server.
    api_server: Vec<String>,
    /// The node that the API server runs on shares its addresses.
    api_server_node: Option<String>,
}

impl Reserved {
    pub fn new(settings: &Settings) -> Self {
        let domain = normal(&settings.cluster_domain);
        let domains = vec!["svc".to_owned(), domain];
        Self {
            domains: domains.into_iter().filter(|domain| !domain.is_empty()).collect(),
            services: settings.service_cidrs.iter().filter_map(|cidr| Network::parse(cidr)).collect(),
            api_server: settings.api_server_names.iter().map(|name| normal(name)).collect(),
            api_server_node: settings.api_server_node.clone(),
        }
    }

    /// Why a node may not have a certificate for a name or an address, if it may not.
    pub fn refuse(&self, desired: &str, node: &str) -> Option<String> {
        let is_with_api_server = self.api_server_node.as_deref() == Some(node);
        let is_reserved = match desired.parse::<IpAddr>() {
            Ok(address) => self.has_address(address.to_canonical(), is_with_api_server),
            Err(_) => self.has_name(&normal(desired), is_with_api_server),
        };
        is_reserved.then(|| format!("{desired} is reserved and cannot be certified for node {node}"))
    }

    fn has_address(&self, address: IpAddr, is_with_api_server: bool) -> bool {
        let own = Network::of_address(address);
        let is_of_services = self.services.iter().any(|network| network.contains(&own));
        let is_of_api_server = address.is_loopback() || self.api_server.contains(&address.to_string());
        address.is_unspecified()
            || address.is_multicast()
            || is_of_services
            || (is_of_api_server && !is_with_api_server)
    }

    fn has_name(&self, name: &str, is_with_api_server: bool) -> bool {
        let is_below =
            |domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let is_of_api_server = is_below("localhost") || self.api_server.iter().any(|own| own == name);
        let is_plain =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        !is_plain
            || self.domains.iter().any(|domain| is_below(domain))
            || matches!(name, "kubernetes" | "kubernetes.default")
            || (is_of_api_server && !is_with_api_server)
    }
}

/// DNS names ignore case and a trailing dot.
fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn settings() -> Settings {
        Settings {
            service_cidrs: vec!["10.96.0.0/16".to_owned(), "fd00::/112".to_owned()],
            cluster_domain: "Cluster.local".to_owned(),
            api_server_names: vec!["api.example".to_owned(), "192.0.2.1".to_owned()],
            api_server_node: Some("first".to_owned()),
            ..Settings::default()
        }
    }

    #[test]
    fn no_node_gets_the_clusters_own_names() {
        let reserved = Reserved::new(&settings());
        for (desired, by_first, by_others) in [
            ("kubernetes", true, true),
            ("kubernetes.default", true, true),
            ("kubernetes.default.svc", true, true),
            ("Kubernetes.Default.SVC.", true, true),
            ("kubernetes.default.svc.cluster.local", true, true),
            ("web.shop.svc.cluster.local", true, true),
            ("cluster.local", true, true),
            ("localhost", false, true),
            ("a.localhost", false, true),
            ("*.example", true, true),
            ("a\0b", true, true),
            ("", true, true),
            ("10.96.0.1", true, true),
            ("::ffff:10.96.0.1", true, true),
            ("fd00::1", true, true),
            ("0.0.0.0", true, true),
            ("api.example", false, true),
            ("192.0.2.1", false, true),
            ("127.0.0.1", false, true),
            ("::1", false, true),
            ("192.0.2.2", false, false),
            ("second", false, false),
            ("notcluster.local.example", false, false),
            ("mysvc", false, false),
        ] {
            assert_eq!(reserved.refuse(desired, "first").is_some(), by_first, "{desired} for the first");
            assert_eq!(reserved.refuse(desired, "second").is_some(), by_others, "{desired} for the second");
        }
    }
}
