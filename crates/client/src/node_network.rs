//! Who a node's network components are to the API: service proxy, network policies, DNS, routes, ingress.
//!
//! They read pods, services and nodes of the whole cluster, which a kubelet must not: so each node has a second identity
//! for them, by a certificate that the node asks for and that names the node.

/// The group that all of them are in.
pub const GROUP: &str = "knarr:node-network";

/// The right to have such a certificate approved: a subresource of certificate requests, as Kubernetes does it for kubelets.
pub const APPROVAL: &str = "nodenetworkclient";

const USER_PREFIX: &str = "knarr:node-network:";
const KUBELET_PREFIX: &str = "system:node:";

/// The user that the components of a node are.
pub fn user(node: &str) -> String {
    format!("{USER_PREFIX}{node}")
}

/// Whether one user, a kubelet, asks for the identity of its own node's network.
pub fn is_own(kubelet: &str, wanted: &str) -> bool {
    let node = kubelet.strip_prefix(KUBELET_PREFIX).filter(|node| !node.is_empty());
    node.is_some() && node == wanted.strip_prefix(USER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_asks_for_its_own_node() {
        for (kubelet, wanted, own) in [
            ("system:node:a", "knarr:node-network:a", true),
            ("system:node:a", "knarr:node-network:b", false),
            ("system:node:", "knarr:node-network:", false),
            ("admin", "knarr:node-network:a", false),
            ("system:node:a", "system:node:a", false),
        ] {
            assert_eq!(is_own(kubelet, wanted), own, "{kubelet} {wanted}");
        }
        assert_eq!(user("a"), "knarr:node-network:a");
    }
}
