//! Whether a node requests a certificate for its own network components or its own CSI controller.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use knarr_client::node_identity;

use super::request::{CLIENT, RequestedCertificate};

/// The request names exactly that user and group and only the usage of a client.
pub(super) fn is_own(spec: &CertificateSigningRequestSpec, requested: &RequestedCertificate) -> bool {
    let requester = spec.username.as_deref().unwrap_or_default();
    let usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    spec.signer_name == CLIENT
        && spec.groups.iter().flatten().any(|group| group == "system:nodes")
        && is_component(requester, requested)
        && requested.names().next().is_none()
        && usages.contains(&"client auth")
        && usages.iter().all(|usage| ["client auth", "digital signature", "key encipherment"].contains(usage))
}

/// User and group belong together, and both to the node.
fn is_component(requester: &str, requested: &RequestedCertificate) -> bool {
    let user = &requested.identity.name;
    match requested.identity.groups.as_slice() {
        [group] => node_identity::ALL
            .iter()
            .any(|identity| group == identity.group && identity.is_for_own_node(requester, user)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::KUBELET_CLIENT;
    use super::super::request::tests::spec;
    use super::*;

    #[test]
    fn nodes_get_only_the_identity_of_their_own_network() {
        let client = ["digital signature", "client auth"];
        let own = "knarr:node-network:a";
        for (user, signer, name, group, names, granted) in [
            ("system:node:a", CLIENT, own, "knarr:node-network", &[][..], true),
            ("system:node:b", CLIENT, own, "knarr:node-network", &[], false),
            ("jane", CLIENT, own, "knarr:node-network", &[], false),
            ("system:node:a", CLIENT, own, "system:masters", &[], false),
            ("system:node:a", CLIENT, "admin", "knarr:node-network", &[], false),
            ("system:node:a", CLIENT, own, "knarr:node-network", &["a"], false),
            ("system:node:a", KUBELET_CLIENT, own, "knarr:node-network", &[], false),
            ("system:node:a", CLIENT, "knarr:node-storage:a", "knarr:node-storage", &[], true),
            ("system:node:a", CLIENT, "knarr:node-storage:b", "knarr:node-storage", &[], false),
            ("system:node:a", CLIENT, own, "knarr:node-storage", &[], false),
        ] {
            let mut spec = spec(signer, name, group, names, &client);
            spec.username = Some(user.to_owned());
            spec.groups = Some(vec!["system:nodes".to_owned(), "system:authenticated".to_owned()]);
            let requested = RequestedCertificate::read(&spec).unwrap();
            assert_eq!(is_own(&spec, &requested), granted, "{user} {signer} {name} {group} {names:?}");
            spec.groups = Some(vec!["system:authenticated".to_owned()]);
            assert!(!is_own(&spec, &requested), "without the nodes' group");
        }
    }
}
