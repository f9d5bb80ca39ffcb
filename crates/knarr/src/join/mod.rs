//! How a machine becomes a node of a cluster with nothing but an address and a token.
//!
//! The token names the cluster's authority by the hash of its public key, so the new node knows the server before it
//! says anything to it (`authority`). Then it proves itself with the token's secret, asks for a certificate in its own
//! name and goes on with that (`identity`). What the cluster must hold for this is in `objects`.

mod authority;
mod identity;
mod objects;
mod token;

pub use authority::fetch as fetch_authority;
pub use identity::Identity;
pub use objects::ensure as ensure_objects;
pub use token::{BootstrapToken, JoinToken, Pin};

/// The group that bootstrap tokens of ours stand for.
pub const GROUP: &str = "system:bootstrappers:knarr:default-node-token";
