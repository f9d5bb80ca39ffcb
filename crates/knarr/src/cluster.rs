//! Settings that all nodes of a cluster share. The server publishes them in a ConfigMap; agents read it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::kube::{Api, Client};
use knarr_dns::{StubDomain, Upstream};
use knarr_network::cidr::Cidr;

use crate::built_in::BuiltIn;

/// The ConfigMap.
pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "knarr-cluster";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Networks of all pods, at most one per family.
    pub pod_networks: Vec<Cidr>,
    /// Addresses of the cluster DNS, which every node serves.
    pub dns: Vec<IpAddr>,
    /// The cluster's DNS domain.
    pub domain: String,
    /// Networks of load balancer addresses; if empty, load balancers share the nodes' addresses.
    pub load_balancers: Vec<Cidr>,
    /// Whether nodes serve Ingresses.
    pub ingress: bool,
    /// Resolvers for names outside the cluster; if empty, each node uses its own.
    pub dns_upstreams: Vec<Upstream>,
    pub dns_stub_domains: Vec<StubDomain>,
    /// Components that no node runs.
    pub disabled: Vec<BuiltIn>,
}

impl Cluster {
    pub fn to_data(&self) -> BTreeMap<String, String> {
        [
            ("podNetworks", join(&self.pod_networks)),
            ("dns", join(&self.dns)),
            ("domain", self.domain.clone()),
            ("loadBalancers", join(&self.load_balancers)),
            ("ingress", self.ingress.to_string()),
            ("dnsUpstreams", join(&self.dns_upstreams)),
            ("dnsStubDomains", join(&self.dns_stub_domains)),
            ("disabled", join(&self.disabled)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    pub fn from_data(data: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        Ok(Cluster {
            pod_networks: split(data, "podNetworks")?,
            dns: split(data, "dns")?,
            domain: data.get("domain").cloned().unwrap_or_default(),
            load_balancers: split(data, "loadBalancers")?,
            ingress: data.get("ingress").is_none_or(|value| value != "false"),
            dns_upstreams: split(data, "dnsUpstreams")?,
            dns_stub_domains: split(data, "dnsStubDomains")?,
            disabled: split(data, "disabled")?,
        })
    }

    /// Reads the published settings.
    pub async fn read(client: &Client) -> anyhow::Result<Self> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let map = maps.get(NAME).await.with_context(|| {
            format!("cannot read the cluster's settings ({NAMESPACE}/{NAME}); is the server a `knarr server`?")
        })?;
        Self::from_data(&map.data.unwrap_or_default())
            .with_context(|| format!("the cluster's settings ({NAMESPACE}/{NAME}) are invalid"))
    }
}

fn join<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn split<T>(data: &BTreeMap<String, String>, key: &str) -> anyhow::Result<Vec<T>>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text = data.get(key).map(String::as_str).unwrap_or_default();
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| part.parse().with_context(|| format!("{key} is {text:?}"))).collect()
}

impl Cluster {
    /// Saves the settings on this host, so that a node can restart without the server, and can be cleaned up.
    pub fn save(&self, data: &Path) -> anyhow::Result<()> {
        let path = file(data);
        let text = serde_json::to_string_pretty(&self.to_data())?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The saved settings, if any.
    pub fn load(data: &Path) -> Option<Self> {
        let text = std::fs::read(file(data)).ok()?;
        Self::from_data(&serde_json::from_slice(&text).ok()?).ok()
    }
}

fn file(data: &Path) -> PathBuf {
    data.join("cluster.json")
}

/// The conventional DNS address: the tenth of each Service network.
pub fn dns_addresses(service_networks: &[String]) -> Vec<IpAddr> {
    let networks = service_networks.iter().filter_map(|text| text.parse::<Cidr>().ok());
    networks.filter_map(|network| network.nth(10.min(network.size().saturating_sub(1)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_settings_are_read_back() {
        let cluster = Cluster {
            pod_networks: ["10.244.0.0/16", "fd00:244::/48"].map(|text| text.parse().unwrap()).into(),
            dns: vec!["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()],
            domain: "cluster.local".into(),
            load_balancers: vec![],
            ingress: false,
            dns_upstreams: vec!["10.0.0.53".parse().unwrap()],
            dns_stub_domains: vec!["corp.example=10.0.0.54:5353".parse().unwrap()],
            disabled: vec![BuiltIn::Dns, BuiltIn::LoadBalancer],
        };
        assert_eq!(Cluster::from_data(&cluster.to_data()).unwrap(), cluster);
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Cluster::load(directory.path()), None);
        cluster.save(directory.path()).unwrap();
        assert_eq!(Cluster::load(directory.path()), Some(cluster));
    }

    #[test]
    fn dns_is_the_tenth_address() {
        for (networks, expected) in [
            (vec!["10.96.0.0/12"], vec!["10.96.0.10"]),
            (vec!["10.43.0.0/16", "fd00:96::/112"], vec!["10.43.0.10", "fd00:96::a"]),
        ] {
            let networks: Vec<String> = networks.into_iter().map(str::to_owned).collect();
            let found: Vec<String> = dns_addresses(&networks).iter().map(IpAddr::to_string).collect();
            assert_eq!(found, expected);
        }
    }
}
