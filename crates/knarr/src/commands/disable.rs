//! `--disable`: built-in components that a node or cluster leaves out, for others to take their place.

use clap::Args;

use super::network::IngressArguments;
use super::node::{Network, NodeArguments};
pub use crate::built_in::BuiltIn;

/// The socket of the host's containerd.
const HOST_CONTAINERD: &str = "unix:///run/containerd/containerd.sock";

#[derive(Args, Clone, Debug, Default)]
pub struct DisableArguments {
    /// Built-in components to leave out, for others to take their place.
    #[arg(long, value_name = "COMPONENT", value_enum, value_delimiter = ',')]
    pub disable: Vec<BuiltIn>,
}

impl DisableArguments {
    pub fn has(&self, component: BuiltIn) -> bool {
        self.disable.contains(&component)
    }

    /// What holds for all nodes of the cluster.
    pub fn shared(&self) -> Vec<BuiltIn> {
        BuiltIn::SHARED.into_iter().filter(|component| self.has(*component)).collect()
    }

    /// Adds what the cluster's server disables.
    pub fn add(&mut self, shared: &[BuiltIn]) {
        self.disable
            .extend(shared.iter().filter(|component| !self.disable.contains(component)).copied().collect::<Vec<_>>());
    }
}

/// Applies `--disable` to the flags that disable a single component, which keep working.
pub fn apply(node: &mut NodeArguments, ingress: Option<&mut IngressArguments>) {
    let disabled = node.disable.clone();
    if let Some(ingress) = ingress {
        ingress.disable_ingress |= disabled.has(BuiltIn::Ingress);
    }
    node.storage.disable_local_storage |= disabled.has(BuiltIn::LocalStorage);
    if disabled.has(BuiltIn::Network) {
        node.network = Network::None;
    }
    if disabled.has(BuiltIn::Containerd) {
        node.container_runtime_endpoint.get_or_insert_with(|| HOST_CONTAINERD.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser as _, ValueEnum as _};

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        node: NodeArguments,
        #[command(flatten)]
        ingress: IngressArguments,
    }

    fn applied(words: &[&str]) -> Line {
        let mut line = Line::parse_from(["knarr"].iter().chain(words));
        apply(&mut line.node, Some(&mut line.ingress));
        line
    }

    #[test]
    fn each_component_is_disabled_by_its_name() {
        let line = applied(&[
            "--disable=proxy,dns,load-balancer,ingress,metrics",
            "--disable=network,local-storage,containerd",
        ]);
        assert!(BuiltIn::value_variants().iter().all(|component| line.node.disable.has(*component)));
        assert!(line.ingress.disable_ingress && line.node.storage.disable_local_storage);
        assert_eq!(line.node.network, Network::None);
        assert_eq!(line.node.container_runtime_endpoint.as_deref(), Some(HOST_CONTAINERD));
        assert_eq!(line.node.disable.shared(), BuiltIn::SHARED);
        let own = applied(&["--disable=containerd", "--container-runtime-endpoint=/run/crio/crio.sock"]);
        assert_eq!(own.node.container_runtime_endpoint.as_deref(), Some("/run/crio/crio.sock"));
        assert!(Line::try_parse_from(["knarr", "--disable=traefik"]).is_err());
    }

    #[test]
    fn older_flags_keep_working() {
        let line = applied(&["--disable-ingress", "--disable-local-storage", "--network=none"]);
        assert!(line.ingress.disable_ingress && line.node.storage.disable_local_storage);
        assert_eq!(line.node.network, Network::None);
        assert!(line.node.disable.disable.is_empty());
    }
}
