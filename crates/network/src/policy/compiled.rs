//! NetworkPolicies in normalized form, without the API's different ways to say the same.

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_client::selector::{self, Labels, Selector};

use super::member::PolicyPod;
use crate::cidr::Cidr;
use crate::protocol::Protocol;

#[derive(Clone, Debug, PartialEq)]
pub struct CompiledPolicy {
    pub namespace: String,
    pub targets: Selector,
    /// Allowed ingress; `None` if the policy does not restrict it.
    pub ingress: Option<Vec<Rule>>,
    /// Allowed egress.
    pub egress: Option<Vec<Rule>>,
}

/// One permission: these peers, on these ports.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// `None` for any peer.
    pub peers: Option<Vec<Peer>>,
    /// `None` for all ports.
    pub ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Peer {
    Group(Group),
    Block { network: Cidr, except: Vec<Cidr> },
}

/// Pods by their labels and those of their namespaces. Policies with equal selectors share a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Equal for groups with equal selectors.
    pub identity: String,
    namespaces: Namespaces,
    pods: Selector,
}

#[derive(Clone, Debug, PartialEq)]
enum Namespaces {
    One(String),
    Selected(Selector),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    All(Protocol),
    Range { protocol: Protocol, first: u16, last: u16 },
    Named { protocol: Protocol, name: String },
}

impl CompiledPolicy {
    pub fn of(policy: &NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let Some(spec) = &policy.spec else {
            return Self { namespace, targets: Selector::nothing(), ingress: None, egress: None };
        };
        let rule = |peers: Option<&Vec<NetworkPolicyPeer>>, ports: Option<&Vec<NetworkPolicyPort>>| Rule {
            peers: peers
                .filter(|peers| !peers.is_empty())
                .map(|peers| peers.iter().filter_map(|peer| compile_peer(peer, &namespace)).collect()),
            ports: ports.filter(|ports| !ports.is_empty()).map(|ports| ports.iter().filter_map(compile_port).collect()),
        };
        let ingress = spec.ingress.iter().flatten().map(|one| rule(one.from.as_ref(), one.ports.as_ref())).collect();
        let egress: Vec<Rule> =
            spec.egress.iter().flatten().map(|one| rule(one.to.as_ref(), one.ports.as_ref())).collect();
        let is_about = |direction: &str, unsaid: bool| match spec.policy_types.as_deref() {
            None | Some([]) => unsaid,
            Some(directions) => directions.iter().any(|one| one == direction),
        };
        let targets = spec.pod_selector.as_ref().map_or_else(Selector::everything, selector);
        Self {
            targets,
            ingress: is_about("Ingress", true).then_some(ingress),
            egress: is_about("Egress", !egress.is_empty()).then_some(egress),
            namespace,
        }
    }

    pub fn is_for(&self, member: &PolicyPod) -> bool {
        member.namespace == self.namespace && self.targets.matches(Some(&member.labels))
    }

    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.ingress.iter().chain(&self.egress).flatten()
    }

    /// Removes peers, which are then not allowed.
    pub fn retain_peers(&mut self, mut keep: impl FnMut(&Peer) -> bool) {
        let rules = self.ingress.iter_mut().chain(&mut self.egress).flatten();
        rules.filter_map(|rule| rule.peers.as_mut()).for_each(|peers| peers.retain(&mut keep));
    }
}

impl Group {
    /// `labels` are those of the pod's namespace, if it is known.
    pub fn contains(&self, member: &PolicyPod, labels: Option<&Labels>) -> bool {
        let is_of_namespace = match &self.namespaces {
            Namespaces::One(name) => member.namespace == *name,
            Namespaces::Selected(selector) => labels.is_some_and(|labels| selector.matches(Some(labels))),
        };
        is_of_namespace && self.pods.matches(Some(&member.labels))
    }

    pub fn depends_on_namespaces(&self) -> bool {
        matches!(self.namespaces, Namespaces::Selected(_))
    }
}

fn compile_peer(peer: &NetworkPolicyPeer, namespace: &str) -> Option<Peer> {
    if let Some(block) = &peer.ip_block {
        // A block with an invalid exception allows nothing.
        let except: Result<Vec<Cidr>, _> = block.except.iter().flatten().map(|text| text.parse()).collect();
        return Some(Peer::Block { network: block.cidr.parse().ok()?, except: except.ok()? });
    }
    let namespaces = match &peer.namespace_selector {
        Some(labels) => Namespaces::Selected(selector(labels)),
        None => Namespaces::One(namespace.to_owned()),
    };
    // Selectors have a canonical text, by which equal ones are recognized.
    let text = |selector: &Option<LabelSelector>| serde_json::to_string(selector).unwrap_or_default();
    let of_namespaces = match &namespaces {
        Namespaces::One(name) => name.clone(),
        Namespaces::Selected(_) => text(&peer.namespace_selector),
    };
    Some(Peer::Group(Group {
        identity: format!("{of_namespaces} {}", text(&peer.pod_selector)),
        namespaces,
        pods: peer.pod_selector.as_ref().map_or_else(Selector::everything, selector),
    }))
}

/// The API server rejects unknown operators; if one arrives all the same, nothing is selected.
fn selector(labels: &LabelSelector) -> Selector {
    selector::of(labels).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot parse a network policy's selector");
        Selector::nothing()
    })
}

fn compile_port(port: &NetworkPolicyPort) -> Option<Port> {
    let protocol = Protocol::parse(port.protocol.as_deref());
    match &port.port {
        None => Some(Port::All(protocol)),
        Some(IntOrString::String(name)) => Some(Port::Named { protocol, name: name.clone() }),
        Some(IntOrString::Int(number)) => {
            let first = u16::try_from(*number).ok()?;
            let last = match port.end_port {
                Some(number) => u16::try_from(number).ok()?,
                None => first,
            };
            // A range that the kernel refuses would keep it from all other policies.
            (first <= last).then_some(Port::Range { protocol, first, last })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn compile(spec: Value) -> CompiledPolicy {
        let policy = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        CompiledPolicy::of(&serde_json::from_value(policy).unwrap())
    }

    #[test]
    fn directions_depend_on_policy_types() {
        for (spec, ingress, egress) in [
            (json!({"podSelector": {}}), true, false),
            (json!({"podSelector": {}, "egress": [{}]}), true, true),
            (json!({"podSelector": {}, "policyTypes": ["Egress"]}), false, true),
            (json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), true, true),
        ] {
            let compiled = compile(spec);
            assert_eq!((compiled.ingress.is_some(), compiled.egress.is_some()), (ingress, egress));
        }
    }

    #[test]
    fn invalid_ports_allow_nothing() {
        for port in [json!({"port": 80, "endPort": 70}), json!({"port": 80, "endPort": 70_000}), json!({"port": -1})] {
            let compiled = compile(json!({"podSelector": {}, "ingress": [{"ports": [port.clone()]}]}));
            assert_eq!(compiled.ingress.unwrap()[0].ports.as_deref(), Some(&[][..]), "{port}");
        }
    }

    #[test]
    fn invalid_blocks_allow_nothing() {
        for block in [
            json!({"cidr": "010.0.0.0/8"}),
            json!({"cidr": "10.0.0.0/8", "except": ["10.010.0.0/16"]}),
            json!({"cidr": "10.0.0.0/8 } accept #"}),
        ] {
            let compiled = compile(json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": block.clone()}]}]}));
            assert_eq!(compiled.ingress.unwrap()[0].peers.as_deref(), Some(&[][..]), "{block}");
        }
    }

    #[test]
    fn peers_are_pods_of_their_namespaces_or_networks() {
        let compiled = compile(json!({"podSelector": {}, "ingress": [{"from": [
            {"podSelector": {"matchLabels": {"a": "1"}}},
            {"namespaceSelector": {"matchLabels": {"team": "x"}}},
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        ], "ports": [{"port": 80, "endPort": 90}, {"port": "web", "protocol": "UDP"}, {"protocol": "SCTP"}]}, {"from": []}]}));
        let rules = compiled.ingress.unwrap();
        assert_eq!(rules[1], Rule { peers: None, ports: None }, "an empty list lets everybody in");
        let [Peer::Group(own), Peer::Group(others), Peer::Block { except, .. }] = rules[0].peers.as_deref().unwrap()
        else {
            panic!("{rules:?}")
        };
        assert_eq!(except.len(), 1);
        let member = |namespace: &str, label: &str| PolicyPod {
            namespace: namespace.into(),
            labels: [("a".to_owned(), label.to_owned())].into(),
            addresses: vec![],
            named_ports: vec![],
            is_local: false,
        };
        let team: Labels = [("team".to_owned(), "x".to_owned())].into();
        assert!(own.contains(&member("n", "1"), None) && !own.contains(&member("m", "1"), Some(&team)));
        assert!(!own.contains(&member("n", "2"), None));
        assert!(others.contains(&member("m", "2"), Some(&team)) && !others.contains(&member("m", "2"), None));
        assert_eq!(
            rules[0].ports.as_deref().unwrap(),
            [
                Port::Range { protocol: Protocol::Tcp, first: 80, last: 90 },
                Port::Named { protocol: Protocol::Udp, name: "web".into() },
                Port::All(Protocol::Sctp),
            ]
        );
    }
}
