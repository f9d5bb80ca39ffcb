//! What a cluster is made of, and the names and addresses that follow from it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The networks of clusters are the /24 networks of this one.
const NETWORKS: [u8; 2] = [10, 190];

/// The first node's address ends with this number plus one.
const FIRST_NODE: u8 = 10;

/// Names become parts of namespaces and cgroups.
const MAX_NAME: usize = 40;
const MAX_NODES: u8 = 100;
/// etcd's documentation advises against more.
const MAX_SERVERS: u8 = 7;

/// The port of the API server on the cluster's network.
const API_PORT: u16 = 6443;
/// The ports of this host for the API servers of clusters in user namespaces.
const API_PORTS: std::ops::Range<u16> = 16443..17443;

/// The port of a cluster's registry on the cluster's own network.
pub const REGISTRY_PORT: u16 = 5000;

/// A cluster as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    pub name: String,
    /// Distinguishes clusters of the same name in different directories or containers. Those of earlier versions have none.
    #[serde(default)]
    pub id: String,
    pub nodes: u8,
    /// How many of the nodes run the control plane.
    #[serde(default = "one")]
    pub servers: u8,
    /// The third number of its network.
    pub network: u8,
    /// Whether its nodes reach other networks, through this host.
    pub is_offline: bool,
    #[serde(default)]
    pub ports: Vec<PortMapping>,
    /// The port of this host's loopback address where the cluster's registry listens, if it has one.
    #[serde(default)]
    pub registry: Option<u16>,
    /// The port of this host's loopback address that leads to the API server, if the cluster is in a user namespace: nothing else
    /// leads there.
    #[serde(default)]
    pub api_port: Option<u16>,
    /// Additional flags of `knarr server`, and of every `knarr agent`.
    #[serde(default)]
    pub server_flags: Vec<String>,
    #[serde(default)]
    pub agent_flags: Vec<String>,
}

fn one() -> u8 {
    1
}

/// A port of this host's loopback address that leads to a port of the first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    pub host: u16,
    pub node: u16,
}

impl FromStr for PortMapping {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<PortMapping> {
        let (host, node) = text.split_once(':').context("expected HOST:NODE, such as 8080:80")?;
        let port = |text: &str| text.parse().ok().filter(|port| *port != 0).context(format!("{text:?} is not a port"));
        Ok(PortMapping { host: port(host)?, node: port(node)? })
    }
}

impl Spec {
    /// Whether the cluster belongs to an ordinary user, and is in a user namespace.
    pub fn is_rootless(&self) -> bool {
        self.api_port.is_some()
    }

    /// All ports of this host's loopback address that lead to the first node.
    pub fn mappings(&self) -> Vec<PortMapping> {
        let api = self.api_port.map(|host| PortMapping { host, node: API_PORT });
        self.ports.iter().copied().chain(api).collect()
    }

    /// The address of the API server for programs on this host.
    pub fn api(&self) -> String {
        match self.api_port {
            Some(port) => format!("https://{}:{port}", Ipv4Addr::LOCALHOST),
            None => self.inner_api(),
        }
    }

    /// The address of the API server on the cluster's network.
    pub fn inner_api(&self) -> String {
        format!("https://{}:{API_PORT}", self.address(1))
    }

    /// Why a cluster of this description cannot be.
    pub fn validate(&self) -> anyhow::Result<()> {
        validate_name(&self.name)?;
        ensure!((1..=MAX_NODES).contains(&self.nodes), "a cluster has 1 to {MAX_NODES} nodes, not {}", self.nodes);
        ensure!(
            (1..=self.nodes).contains(&self.servers) && self.servers <= MAX_SERVERS,
            "a cluster of {} nodes has 1 to {} servers, not {}",
            self.nodes,
            self.nodes.min(MAX_SERVERS),
            self.servers
        );
        let mappings = self.mappings();
        if let Some(registry) = self.registry
            && mappings.iter().any(|mapping| mapping.host == registry)
        {
            bail!("port {registry} of the host is the registry's and mapped, too");
        }
        for (index, mapping) in mappings.iter().enumerate() {
            if mappings[..index].iter().any(|other| other.host == mapping.host) {
                bail!("port {} of the host is mapped twice", mapping.host);
            }
        }
        Ok(())
    }

    /// A short text that is different for each cluster: names of interfaces have 15 letters.
    fn short(&self) -> String {
        if !self.id.is_empty() {
            return self.id.clone();
        }
        let digest = Sha256::digest(self.name.as_bytes());
        digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn bridge(&self) -> String {
        format!("kn{}", self.short())
    }

    /// The interface on the bridge that leads to a node.
    pub fn port(&self, number: u8) -> String {
        format!("kn{}n{number}", self.short())
    }

    /// The table of firewall rules.
    pub fn table(&self) -> String {
        format!("knarr-cluster-{}", self.short())
    }

    pub fn namespace(&self, number: u8) -> String {
        match self.id.as_str() {
            "" => format!("knarr-{}-{}", self.name, self.node_name(number)),
            id => format!("knarr-{}-{id}-{}", self.name, self.node_name(number)),
        }
    }

    /// Whether a node runs the control plane: the first ones do.
    pub fn is_server(&self, number: u8) -> bool {
        number <= self.servers
    }

    /// Where the registry is that serves the cluster's nodes.
    pub fn registry_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.gateway(), REGISTRY_PORT)
    }

    pub fn node_name(&self, number: u8) -> String {
        format!("node-{number}")
    }

    pub fn cgroup_root(&self, number: u8) -> String {
        format!("/{}", self.namespace(number))
    }

    pub fn subnet(&self) -> String {
        format!("{}/24", Ipv4Addr::new(NETWORKS[0], NETWORKS[1], self.network, 0))
    }

    /// This host's address on the cluster's network.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(NETWORKS[0], NETWORKS[1], self.network, 1)
    }

    pub fn address(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(NETWORKS[0], NETWORKS[1], self.network, FIRST_NODE + number)
    }

    /// The data directory of a node.
    pub fn data(&self, directory: &Path, number: u8) -> PathBuf {
        directory.join(self.node_name(number))
    }

    /// The arguments of a node's process, without those that join an agent.
    pub fn arguments(&self, directory: &Path, number: u8) -> Vec<String> {
        let is_server = self.is_server(number);
        let address = self.address(number).to_string();
        let data = self.data(directory, number).to_string_lossy().into_owned();
        let mut arguments = vec![if is_server { "server" } else { "agent" }.to_owned()];
        for (flag, value) in [
            ("--data-dir", data),
            ("--node-name", self.node_name(number)),
            ("--node-ip", address.clone()),
            ("--cgroup-root", self.cgroup_root(number)),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        if is_server {
            arguments.extend(["--advertise-address".to_owned(), address]);
        }
        if self.servers > 1 && number == 1 {
            arguments.push("--cluster-init".to_owned());
        }
        arguments.extend_from_slice(if is_server { &self.server_flags } else { &self.agent_flags });
        arguments
    }
}

/// An identifier for a new cluster.
pub fn new_id() -> String {
    format!("{:08x}", rand::random::<u32>())
}

/// Refuses names that are not a label of DNS.
pub fn validate_name(name: &str) -> anyhow::Result<()> {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_valid = !bytes.is_empty()
        && bytes.len() <= MAX_NAME
        && bytes.iter().all(|byte| is_letter(byte) || *byte == b'-')
        && bytes.first().is_some_and(is_letter)
        && bytes.last().is_some_and(is_letter);
    ensure!(is_valid, "{name:?} is not a name: lower case letters, digits and '-', at most {MAX_NAME}");
    Ok(())
}

/// A network that neither a cluster nor a route of this host uses. `routes` are destinations such as `10.190.3.0/24`.
pub fn free_network(used: &[u8], routes: &[String]) -> anyhow::Result<u8> {
    let is_routed = |number: u8| {
        let prefix = format!("{}.{}.{number}.", NETWORKS[0], NETWORKS[1]);
        routes.iter().any(|route| route.starts_with(&prefix))
    };
    (1..=254)
        .find(|number| !used.contains(number) && !is_routed(*number))
        .context("all networks for clusters are in use: delete a cluster")
}

/// A port of this host for an API server, which neither a cluster nor another program uses.
pub fn free_api_port(used: &[u16], is_free: impl Fn(u16) -> bool) -> anyhow::Result<u16> {
    API_PORTS.into_iter().find(|port| !used.contains(port) && is_free(*port)).with_context(|| {
        format!("all ports from {} to {} are in use: delete a cluster", API_PORTS.start, API_PORTS.end - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> Spec {
        Spec {
            name: name.into(),
            id: "0badcafe".into(),
            nodes: 2,
            servers: 1,
            network: 7,
            is_offline: false,
            ports: Vec::new(),
            registry: None,
            api_port: None,
            server_flags: vec!["--disable=ingress".into()],
            agent_flags: Vec::new(),
        }
    }

    #[test]
    fn names_fit_and_differ_between_clusters() {
        let (one, other) = (spec("dev"), Spec { id: new_id(), ..spec("dev") });
        for (one, other) in [
            (one.bridge(), other.bridge()),
            (one.table(), other.table()),
            (one.port(1), other.port(1)),
            (one.namespace(1), other.namespace(1)),
            (one.cgroup_root(1), other.cgroup_root(1)),
        ] {
            assert_ne!(one, other, "two clusters of the same name in different directories");
        }
        assert!(one.port(100).len() <= 15, "{}", one.port(100));
        assert_eq!(one.namespace(2), "knarr-dev-0badcafe-node-2");
        assert_eq!(Spec { id: String::new(), ..one }.namespace(2), "knarr-dev-node-2", "of an earlier version");
    }

    #[test]
    fn the_first_node_is_the_server() {
        let server = spec("dev").arguments(Path::new("/c/dev"), 1).join(" ");
        assert_eq!(
            server,
            "server --data-dir /c/dev/node-1 --node-name node-1 --node-ip 10.190.7.11 --cgroup-root \
             /knarr-dev-0badcafe-node-1 \
             --advertise-address 10.190.7.11 --disable=ingress"
        );
        assert!(spec("dev").arguments(Path::new("/c/dev"), 2).join(" ").starts_with("agent --data-dir /c/dev/node-2 "));
        let several = Spec { servers: 2, ..spec("dev") };
        let arguments = |number| several.arguments(Path::new("/c/dev"), number).join(" ");
        assert!(arguments(1).contains(" --cluster-init") && arguments(1).starts_with("server "));
        assert!(!arguments(2).contains(" --cluster-init") && arguments(2).starts_with("server "));
    }

    #[test]
    fn wrong_descriptions_are_refused() {
        for name in ["", "-a", "a-", "A", "a/b", "..", "a b", &"a".repeat(41)] {
            assert!(spec(name).validate().is_err(), "{name:?}");
        }
        assert!(Spec { nodes: 0, ..spec("dev") }.validate().is_err());
        assert!(Spec { nodes: 101, ..spec("dev") }.validate().is_err());
        assert!(Spec { servers: 0, ..spec("dev") }.validate().is_err());
        assert!(Spec { servers: 3, ..spec("dev") }.validate().is_err());
        let mapped = vec!["5001:80".parse().unwrap()];
        assert!(Spec { registry: Some(5001), ports: mapped, ..spec("dev") }.validate().is_err());
        let ports = vec!["8080:80".parse().unwrap(), "8080:81".parse().unwrap()];
        assert!(Spec { ports, ..spec("dev") }.validate().is_err());
        for text in ["80", "x:1", "1:x", "0:1", "1:70000"] {
            assert!(text.parse::<PortMapping>().is_err(), "{text}");
        }
        spec("dev").validate().unwrap();
    }

    #[test]
    fn networks_in_use_are_not_given_again() {
        assert_eq!(free_network(&[], &[]).unwrap(), 1);
        assert_eq!(free_network(&[1, 2], &["10.190.3.0/24".into(), "10.19.4.0/24".into()]).unwrap(), 4);
        assert!(free_network(&(1..=254).collect::<Vec<_>>(), &[]).is_err());
        assert_eq!(free_api_port(&[16443], |port| port != 16444).unwrap(), 16445);
        assert!(free_api_port(&[], |_| false).unwrap_err().to_string().contains("16443 to 17442"));
    }

    #[test]
    fn a_cluster_in_a_user_namespace_is_reached_through_a_port() {
        let rootless = Spec { api_port: Some(16443), ports: vec!["8080:80".parse().unwrap()], ..spec("dev") };
        assert_eq!((spec("dev").api(), rootless.api()), (rootless.inner_api(), "https://127.0.0.1:16443".to_owned()));
        let mapped = |spec: &Spec| spec.mappings().iter().map(|one| (one.host, one.node)).collect::<Vec<_>>();
        assert_eq!(mapped(&rootless), [(8080, 80), (16443, 6443)]);
        assert_eq!(mapped(&spec("dev")), []);
        let twice = Spec { api_port: Some(8080), ..rootless.clone() };
        assert!(twice.validate().is_err() && rootless.validate().is_ok());
        assert!(Spec { registry: Some(16443), ..rootless }.validate().is_err());
    }
}
