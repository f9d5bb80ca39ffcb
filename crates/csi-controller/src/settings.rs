//! What the CSI controllers of a node are started with.

use std::path::PathBuf;

/// The settings of [`crate::run`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this node.
    pub node: String,
    /// The kubelet's directory of registration sockets.
    pub registry: PathBuf,
    /// The namespace of CSIStorageCapacities and Leases.
    pub namespace: String,
}
