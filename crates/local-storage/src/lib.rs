//! The CSI driver of Knarr: volumes with an enforced size on the disk of the node where their first pod was scheduled.
//!
//! In: CSI calls on the driver's unix socket, from the kubelet and from the CSI controller of the same node.
//! Out: one directory per volume below the data directory, with an image file (a filesystem or a raw block device, attached
//! as a loop device) or, without a limit, a plain directory.
//!
//! What must hold: a volume exists when its directory has its final name, so that every step before can be interrupted;
//! loop devices and mounts are found in the kernel and are recorded nowhere else; names of requests never become paths.

mod capacity;
mod controller;
mod copy;
mod driver;
mod error;
mod filesystem;
mod freeze;
mod identity;
mod loop_device;
mod mount;
mod mount_table;
mod node;
mod plan;
mod record;
mod serve;
mod shared;
mod store;

pub use capacity::Reserve;
pub use driver::Settings;
pub use error::Error;
pub use loop_device::release;
pub use serve::{Sockets, run};

/// The name of the driver and of its CSIDriver object.
pub const DRIVER: &str = "local.knarr.io";
/// The topology key whose value is the node that has a volume.
pub const TOPOLOGY_KEY: &str = "topology.local.knarr.io/node";
