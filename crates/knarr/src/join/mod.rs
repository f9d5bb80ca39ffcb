//! How a machine becomes a node of a cluster with nothing but an address and a token.
//!
//! The token names the cluster's authority by the hash of its public key, so the new node knows the server before it
//! says anything to it (`authority`). Then it proves itself with the token's secret, asks for a certificate in its own
//! name and goes on with that (`identity`). What the cluster must hold for this is in `objects`.

mod authority;
mod cluster_info;
mod identity;
mod objects;
mod reach;
mod token;

pub use authority::fetch as fetch_authority;
pub use cluster_info::ClusterInfo;
pub use identity::Identity;
pub use objects::{NETWORK_CONTROLLER, ensure as ensure_objects};
pub use reach::until_reached;
pub use token::{BootstrapToken, JoinToken, Pin};

/// The group that bootstrap tokens of ours stand for.
pub const GROUP: &str = "system:bootstrappers:knarr:default-node-token";

/// A certificate in the form that files hold.
pub fn pem(certificate: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
