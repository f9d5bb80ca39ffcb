//! Names and addresses that no node may serve under, whatever its status reports: with a certificate for them it could
//! impersonate the API server, a service, or programs of another host.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::node_identity::{IN_API_SERVER, SERVING_NAMES};
use knarr_client::semantics::cidr::Cidr;

use crate::Settings;

pub(super) struct Reserved {
    /// Suffixes of service names, and the cluster's domain.
    domains: Vec<String>,
    services: Vec<Cidr>,
    /// Names (lower case) and addresses of the API servers.
    api_server: Vec<String>,
}

/// Whether an API server runs in the process of the requesting node.
fn is_with_api_server(spec: &CertificateSigningRequestSpec) -> bool {
    spec.extra.as_ref().is_some_and(|extra| extra.contains_key(IN_API_SERVER))
}

impl Reserved {
    /// `slices` are all EndpointSlices: those of the Service `kubernetes` hold the addresses of all API servers. `leases` are
    /// those of the API servers, which hold the other names that their certificates are valid for.
    pub fn new(settings: &Settings, slices: &[Arc<EndpointSlice>], leases: &[Lease]) -> Self {
        let domain = normal(&settings.cluster_domain);
        let domains = vec!["svc".to_owned(), domain];
        let names = settings.api_server_names.iter().map(String::as_str).chain(serving_names(leases));
        Self {
            domains: domains.into_iter().filter(|domain| !domain.is_empty()).collect(),
            services: settings.service_cidrs.iter().filter_map(|cidr| cidr.parse::<Cidr>().ok()).collect(),
            api_server: names.map(canonical).chain(addresses(slices)).collect(),
        }
    }

    /// Why a node may not have a certificate for a name or an address, if it may not.
    pub fn refuse(&self, desired: &str, spec: &CertificateSigningRequestSpec, node: &str) -> Option<String> {
        let is_with_api_server = is_with_api_server(spec);
        let is_reserved = match desired.parse::<IpAddr>() {
            Ok(address) => self.has_address(address.to_canonical(), is_with_api_server),
            Err(_) => self.has_name(&normal(desired), is_with_api_server),
        };
        is_reserved.then(|| format!("{desired} is reserved and cannot be certified for node {node}"))
    }

    fn has_address(&self, address: IpAddr, is_with_api_server: bool) -> bool {
        let own = Cidr::of_address(address);
        let is_of_services = self.services.iter().any(|network| network.covers(&own));
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

/// The addresses of all API servers.
fn addresses(slices: &[Arc<EndpointSlice>]) -> impl Iterator<Item = String> {
    let own = slices.iter().filter(|slice| {
        let labels = slice.metadata.labels.as_ref();
        slice.metadata.namespace.as_deref() == Some("default")
            && labels
                .and_then(|labels| labels.get("kubernetes.io/service-name"))
                .is_some_and(|name| name == "kubernetes")
    });
    let addresses = own.flat_map(|slice| slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses));
    addresses.filter_map(|address| address.parse::<IpAddr>().ok()).map(|address| address.to_canonical().to_string())
}

/// The names and addresses that API servers have announced.
fn serving_names(leases: &[Lease]) -> impl Iterator<Item = &str> {
    let announced = leases.iter().filter_map(|lease| lease.metadata.annotations.as_ref()?.get(SERVING_NAMES));
    announced.flat_map(|names| names.split(',')).filter(|name| !name.is_empty())
}

/// A name or an address in the form that is compared.
pub(super) fn canonical(name: &str) -> String {
    name.parse::<IpAddr>().map_or_else(|_| normal(name), |address| address.to_canonical().to_string())
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
            ..Settings::default()
        }
    }

    /// The slice of the Service `kubernetes`, with this server and another.
    pub fn slices() -> Vec<Arc<EndpointSlice>> {
        let slice = |namespace: &str, service: &str, address: &str| {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "s", "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": [address]}],
            }))
            .unwrap()
        };
        vec![
            Arc::new(slice("default", "kubernetes", "192.0.2.9")),
            Arc::new(slice("default", "web", "192.0.2.2")),
            Arc::new(slice("team", "kubernetes", "192.0.2.2")),
        ]
    }

    /// The Lease of another server, which is reached by a name of its own.
    pub fn leases() -> Vec<Lease> {
        let lease = |annotations: serde_json::Value| {
            let metadata = serde_json::json!({"name": "apiserver-a", "annotations": annotations});
            serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap()
        };
        vec![
            lease(serde_json::json!({SERVING_NAMES: "LB.example,192.0.2.50,,2001:DB8::1"})),
            lease(serde_json::json!({})),
        ]
    }

    #[test]
    fn no_node_gets_the_clusters_own_names() {
        let reserved = Reserved::new(&settings(), &slices(), &leases());
        let with_server = CertificateSigningRequestSpec {
            extra: Some([(IN_API_SERVER.to_owned(), vec!["true".to_owned()])].into()),
            ..CertificateSigningRequestSpec::default()
        };
        let other = CertificateSigningRequestSpec::default();
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
            ("192.0.2.9", false, true),
            ("::ffff:192.0.2.9", false, true),
            ("lb.example", false, true),
            ("LB.Example.", false, true),
            ("192.0.2.50", false, true),
            ("2001:db8::1", false, true),
            ("notlb.example", false, false),
            ("192.0.2.2", false, false),
            ("second", false, false),
            ("notcluster.local.example", false, false),
            ("mysvc", false, false),
        ] {
            assert_eq!(reserved.refuse(desired, &with_server, "first").is_some(), by_first, "{desired} for the first");
            assert_eq!(reserved.refuse(desired, &other, "second").is_some(), by_others, "{desired} for the second");
        }
    }
}
