//! CIDR networks, which the API defines.

pub use knarr_client::node::pod_cidrs;
pub use knarr_client::semantics::cidr::Cidr;
