//! Joins a host to a cluster with an address and a token.
//!
//! The token pins the cluster's certificate authority by the hash of its public key, so the new node verifies the server before
//! it sends anything (`authority`). Then it authenticates with the token's secret, requests a certificate in its own name and
//! uses that from then on (`identity`). The objects that the cluster needs for this are in `objects`.

mod authority;
mod cluster_info;
mod component_policy;
mod identity;
mod objects;
mod reach;
mod storage;
#[cfg(test)]
pub mod test_node;
mod token;
mod token_client;
mod trust;

pub use authority::{connect as connect_pinned, fetch as fetch_authority};
pub use cluster_info::ClusterInfo;
pub use component_policy::{CHARTS, CLUSTER_SETUP, MANIFESTS, READINESS, SERVERS, component_policy};
pub use identity::Identity;
pub use objects::{NETWORK_CONTROLLER, ensure as ensure_objects};
pub use reach::until_reached;
pub use storage::{NAMESPACE as STORAGE_NAMESPACE, ensure_local as ensure_local_storage};
pub use token::{BootstrapToken, JoinToken, Pin};
pub use trust::{ANNOTATION as AUTHORITY_ANNOTATION, Trust, keep as keep_trust};

/// The group of tokens that admit servers.
pub const SERVER_GROUP: &str = "system:bootstrappers:knarr:server";

/// The group of our bootstrap tokens.
pub const GROUP: &str = "system:bootstrappers:knarr:default-node-token";

/// A certificate in PEM format.
pub fn pem(certificate: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
