//! The API identity of a node's network components: service proxy, network policies, DNS, routes, ingress.
//!
//! They read pods, services and nodes of the whole cluster, which a kubelet must not. So each node has a second identity
//! for them, by a client certificate that the node requests and that names the node.

/// The group of all these identities.
pub const GROUP: &str = "knarr:node-network";

/// The subresource of certificate requests that authorizes the approval of such a certificate.
pub const APPROVAL: &str = "nodenetworkclient";

const USER_PREFIX: &str = "knarr:node-network:";
const KUBELET_PREFIX: &str = "system:node:";

/// The user of a node's network components.
pub fn user(node: &str) -> String {
    format!("{USER_PREFIX}{node}")
}

/// Whether `requested` is the network identity of the kubelet user's own node.
pub fn is_for_own_node(kubelet: &str, requested: &str) -> bool {
    let node = kubelet.strip_prefix(KUBELET_PREFIX).filter(|node| !node.is_empty());
    node.is_some() && node == requested.strip_prefix(USER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_gets_only_its_own_node() {
        for (kubelet, requested, own) in [
            ("system:node:a", "knarr:node-network:a", true),
            ("system:node:a", "knarr:node-network:b", false),
            ("system:node:", "knarr:node-network:", false),
            ("admin", "knarr:node-network:a", false),
            ("system:node:a", "system:node:a", false),
        ] {
            assert_eq!(is_for_own_node(kubelet, requested), own, "{kubelet} {requested}");
        }
        assert_eq!(user("a"), "knarr:node-network:a");
    }
}
