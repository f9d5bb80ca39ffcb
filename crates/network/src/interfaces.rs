//! Names of the network interfaces that Knarr creates, besides the bridge, whose name is configured.

/// Prefix of the node's ends of pods' interfaces.
pub const POD_PREFIX: &str = "knarrp";
/// The interface that carries pods' packets to nodes in other subnets.
pub const TUNNEL: &str = "knarr-vx";
