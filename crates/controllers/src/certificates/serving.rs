//! Whether a node may serve under the names it requests.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use k8s_openapi::api::core::v1::Node;

use super::request::RequestedCertificate;
use super::reserved::{Reserved, canonical};
use crate::common::key::name;

/// Accepts the node's own name, and addresses that it reports and no other node does; otherwise returns why not. A node
/// reports its addresses itself, so one that belongs to another node or to the cluster is not trusted.
pub(super) fn is_own(
    spec: &CertificateSigningRequestSpec,
    requested: &RequestedCertificate,
    nodes: &[Arc<Node>],
    reserved: &Reserved,
) -> Result<(), String> {
    let node_name = requested.node();
    if spec.username.as_deref() != Some(&requested.identity.name) {
        return Err("only a node itself may ask for its serving certificate".to_owned());
    }
    let node = nodes.iter().find(|node| name(&***node) == node_name);
    let node = node.ok_or_else(|| format!("node {node_name} is not registered yet"))?;
    for desired in requested.names() {
        if let Some(refusal) = reserved.refuse(desired, spec, node_name) {
            return Err(refusal);
        }
        if desired != node_name && !reports(node, desired) {
            return Err(format!("node {node_name} does not report the address {desired}"));
        }
        let others = nodes.iter().filter(|other| name(&***other) != node_name);
        let is_named = |other: &Node| canonical(name(other)) == canonical(desired);
        if let Some(other) = others.into_iter().find(|other| reports(other, desired) || is_named(other)) {
            return Err(format!("{desired} belongs to node {} as well", name(&**other)));
        }
    }
    Ok(())
}

/// Clients compare names without regard to case, and some take an IPv4 address in IPv6 notation for the same one.
fn reports(node: &Node, address: &str) -> bool {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let address = canonical(address);
    addresses.into_iter().flatten().any(|reported| canonical(&reported.address) == address)
}

#[cfg(test)]
mod tests {
    use super::super::request::{KUBELET_SERVING, tests::spec};
    use super::*;
    use serde_json::json;

    fn node(name: &str, addresses: &[&str]) -> Arc<Node> {
        let addresses: Vec<_> = addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let node = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn nodes_serve_under_their_own_names_only() {
        let claimed = [
            "10.0.0.1",
            "10.0.0.9",
            "kubernetes.default.svc",
            "10.96.0.1",
            "192.0.2.1",
            "192.0.2.9",
            "B",
            "b.",
            "::ffff:10.0.0.2",
            "fd00::2",
        ];
        let nodes = [node("a", &claimed), node("b", &["10.0.0.2", "10.0.0.9", "fd00:0::2"])];
        let reserved_tests = (super::super::reserved::tests::settings(), super::super::reserved::tests::slices());
        let reserved = Reserved::new(&reserved_tests.0, &reserved_tests.1, &[]);
        for (user, names, granted) in [
            ("system:node:a", &["a", "10.0.0.1"][..], true),
            ("system:node:b", &["a", "10.0.0.1"], false),
            ("system:node:a", &["b"], false),
            ("system:node:a", &["10.0.0.2"], false),
            ("system:node:a", &["10.0.0.9"], false),
            ("system:node:a", &["B"], false),
            ("system:node:a", &["b."], false),
            ("system:node:a", &["::ffff:10.0.0.2"], false),
            ("system:node:a", &["fd00::2"], false),
            ("system:node:a", &["10.0.0.1", "example.com"], false),
            ("system:node:c", &["c"], false),
            ("system:node:a", &["a", "kubernetes.default.svc"], false),
            ("system:node:a", &["a", "10.96.0.1"], false),
            ("system:node:a", &["a", "192.0.2.1"], false),
            ("system:node:a", &["a", "192.0.2.9"], false),
        ] {
            let subject = if user == "system:node:b" { "system:node:a" } else { user };
            let mut spec = spec(KUBELET_SERVING, subject, "system:nodes", names, &["digital signature", "server auth"]);
            spec.username = Some(user.to_owned());
            let verdict = is_own(&spec, &RequestedCertificate::read(&spec).unwrap(), &nodes, &reserved);
            assert_eq!(verdict.is_ok(), granted, "{user} {names:?}: {verdict:?}");
        }
    }
}
