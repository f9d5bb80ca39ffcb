//! The API identities that a node has beside its kubelet's.
//!
//! Some components of a node need rights that a kubelet must not have. Each such group of components has an identity of its
//! own, by a client certificate that the node requests and that names the node.

/// One of these identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The group of these users of all nodes.
    pub group: &'static str,
}

/// The network components: service proxy, network policies, DNS, routes, ingress. They read pods, services and nodes of the
/// whole cluster.
pub const NETWORK: NodeIdentity = NodeIdentity { group: "knarr:node-network" };

/// The CSI controller, which serves the drivers on the node: it creates PersistentVolumes for claims of the whole cluster.
pub const STORAGE: NodeIdentity = NodeIdentity { group: "knarr:node-storage" };

/// All of them.
pub const ALL: [NodeIdentity; 2] = [NETWORK, STORAGE];

/// The subresource of certificate requests that authorizes the approval of such a certificate.
pub const APPROVAL: &str = "nodenetworkclient";

/// The attribute (`extra`) of a kubelet's user that runs in the process of an API server, with whose addresses its certificate
/// may be valid. Only that process can set it: it is no part of a certificate.
pub const IN_API_SERVER: &str = "knarr.dev/api-server";

/// The annotation of an API server's Lease with the names and addresses, separated by commas, that its certificate is valid for.
/// No node is certified for them.
pub const SERVING_NAMES: &str = "knarr.dev/serving-names";

const KUBELET_PREFIX: &str = "system:node:";

impl NodeIdentity {
    /// The user of a node with this identity.
    pub fn user(self, node: &str) -> String {
        format!("{}:{node}", self.group)
    }

    /// Whether `requested` is this identity of the kubelet user's own node.
    pub fn is_for_own_node(self, kubelet: &str, requested: &str) -> bool {
        let node = kubelet.strip_prefix(KUBELET_PREFIX).filter(|node| !node.is_empty());
        node.is_some_and(|node| requested == self.user(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_gets_only_its_own_node() {
        for identity in ALL {
            let group = identity.group;
            for (kubelet, requested, own) in [
                ("system:node:a", format!("{group}:a"), true),
                ("system:node:a", format!("{group}:b"), false),
                ("system:node:", format!("{group}:"), false),
                ("admin", format!("{group}:a"), false),
                ("system:node:a", "system:node:a".to_owned(), false),
                ("system:node:a", "knarr:node-other:a".to_owned(), false),
            ] {
                assert_eq!(identity.is_for_own_node(kubelet, &requested), own, "{kubelet} {requested}");
            }
        }
        assert_eq!(
            (NETWORK.user("a").as_str(), STORAGE.user("a").as_str()),
            ("knarr:node-network:a", "knarr:node-storage:a")
        );
        assert!(!NETWORK.is_for_own_node("system:node:a", &STORAGE.user("a")));
    }
}
