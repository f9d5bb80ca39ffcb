//! Whether a node of a cluster has started.

use std::path::Path;

use jiff::Timestamp;
use knarr_client::k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde::Deserialize;

use super::node::settings_path;
use super::spec::Spec;

/// How a kubelet reports that no network plugin is installed.
const NETWORK_MISSING: &str = "container runtime network not ready";

/// Who provides the network of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    BuiltIn,
    /// A plugin that the user installs once the cluster runs. Nodes are not ready before.
    Plugin,
}

/// The settings that choose the network of pods.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    network: Option<String>,
    disable: OneOrMany,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl PodNetwork {
    /// That of a node, by its configuration file. The node itself reports a file that cannot be read.
    pub fn of_node(spec: &Spec, directory: &Path, number: u8) -> Self {
        let path = settings_path(directory, spec.is_server(number));
        std::fs::read_to_string(path).map_or(Self::BuiltIn, |text| Self::parse(&text))
    }

    fn parse(settings: &str) -> Self {
        let Settings { network, disable } = serde_yaml_ng::from_str(settings).unwrap_or_default();
        let disabled = match disable {
            OneOrMany::One(names) => names.split(',').map(str::to_owned).collect(),
            OneOrMany::Many(names) => names,
        };
        match network.as_deref() == Some("none") || disabled.iter().any(|name| name.trim() == "network") {
            true => Self::Plugin,
            false => Self::BuiltIn,
        }
    }
}

/// Whether a node is ready but for a network plugin that it does not have yet. A report from before `since` does not count.
pub fn has_started(node: &Node, network: PodNetwork, since: Option<Timestamp>) -> bool {
    let lacks_only_network = |condition: &NodeCondition| {
        let message = condition.message.as_deref().unwrap_or_default();
        network == PodNetwork::Plugin && condition.status == "False" && message.starts_with(NETWORK_MISSING)
    };
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| {
        let reported = condition.last_heartbeat_time.as_ref().map(|time| time.0.as_second());
        let is_current = since.is_none_or(|since| reported.is_some_and(|reported| reported >= since.as_second()));
        is_current && (condition.status == "True" || lacks_only_network(condition))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::PodNetwork::{BuiltIn, Plugin};
    use super::*;

    fn node(status: &str, message: &str, at: &str) -> Node {
        let condition = json!({"type": "Ready", "status": status, "message": message, "lastHeartbeatTime": at});
        serde_json::from_value(json!({"status": {"conditions": [condition]}})).expect("a node")
    }

    #[test]
    fn a_report_from_before_the_start_does_not_count() {
        let started: Timestamp = "2026-11-17T19:12:42.7Z".parse().expect("a moment");
        for (status, at, since, expected) in [
            ("True", "2026-11-17T19:12:36Z", None, true),
            ("True", "2026-11-17T19:12:36Z", Some(started), false),
            ("True", "2026-11-17T19:12:42Z", Some(started), true),
            ("Unknown", "2026-11-17T19:12:44Z", Some(started), false),
        ] {
            let node = node(status, "", at);
            assert_eq!(has_started(&node, BuiltIn, since), expected, "{status} at {at} since {since:?}");
        }
        assert!(!has_started(&Node::default(), BuiltIn, None));
    }

    #[test]
    fn a_node_without_a_network_plugin_has_started() {
        let network = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady";
        let runtime = "container runtime not ready: RuntimeReady=false reason:R";
        for (status, message, provider, expected) in [
            ("False", network, Plugin, true),
            ("False", network, BuiltIn, false),
            ("False", runtime, Plugin, false),
            ("Unknown", network, Plugin, false),
            ("True", "kubelet is posting ready status", Plugin, true),
        ] {
            let node = node(status, message, "2026-11-17T19:12:36Z");
            assert_eq!(has_started(&node, provider, None), expected, "{status} {message} {provider:?}");
        }
    }

    #[test]
    fn the_settings_say_who_provides_the_network() {
        for (settings, expected) in [
            ("{}\n", BuiltIn),
            ("network: none\n", Plugin),
            ("network: bridge\n", BuiltIn),
            ("disable: [dns, network]\n", Plugin),
            ("disable: dns,network\nnode-labels: [a=b]\n", Plugin),
            ("disable: dns\n", BuiltIn),
            ("disable: 5\n", BuiltIn),
        ] {
            assert_eq!(PodNetwork::parse(settings), expected, "{settings}");
        }
    }
}
